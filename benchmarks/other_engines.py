"""Sides of the comparison that are installed only where somebody wants to compare: llama.cpp, vLLM.

Both are given our tokens, so that every side computes the same prompts.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sides import Decode, PromptTokens
from specbatch.models.config import ModelConfig
from specbatch.models.resolve import resolve_model

CONTEXT = 1024
"""Tokens a sequence may hold."""


def llama_cpp_side(model_spec: str, rows_in_flight: int, threads: int) -> Decode:
    """llama.cpp on the same GGUF file: all sequences in one batch a step, greedy."""
    lib: Any = import_module("llama_cpp")
    files = resolve_model(model_spec, report=_ignore)
    if files.format != "gguf":
        raise RuntimeError(f"llama.cpp needs a GGUF file, {model_spec} is {files.format}")
    encode = PromptTokens(files)
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(str(files.weights[0]).encode(), lib.llama_model_default_params())
    settings = lib.llama_context_default_params()
    settings.n_ctx = CONTEXT * rows_in_flight
    settings.n_seq_max = rows_in_flight
    settings.n_batch = settings.n_ubatch = 2048
    settings.n_threads = settings.n_threads_batch = threads
    context = lib.llama_init_from_model(model, settings)
    vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    batch = lib.llama_batch_init(CONTEXT * rows_in_flight, 0, 1)

    def run(work: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """One pass over (token, position, sequence, wanted); greedy tokens of the wanted."""
        batch.n_tokens = len(work)
        for i, (token, position, sequence, wanted) in enumerate(work):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if lib.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        wanted_at = [i for i, item in enumerate(work) if item[3]]
        logits = [np.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), (vocab,)) for i in wanted_at]
        return [int(row.argmax()) for row in logits]

    def decode(prompts: Sequence[str], max_tokens: int) -> tuple[int, float]:
        start = time.perf_counter()
        tokens = [encode(prompt) for prompt in prompts]
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        last = [
            run([(token, p, sequence, p == len(ids) - 1) for p, token in enumerate(ids)])[0]
            for sequence, ids in enumerate(tokens)
        ]
        for step in range(max_tokens - 1):
            last = run([(token, len(tokens[s]) + step, s, True) for s, token in enumerate(last)])
        return max_tokens * len(prompts), time.perf_counter() - start

    return decode


def vllm_side(model_spec: str, rows_in_flight: int, threads: int) -> Decode:
    """The CPU build of vLLM in this process, eager, float32."""
    from specbatch.models.export import export_hf  # noqa: PLC0415 - imports torch

    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    vllm: Any = import_module("vllm")
    files = resolve_model(model_spec, report=_ignore)
    encode = PromptTokens(files)
    with tempfile.TemporaryDirectory() as folder:
        export_hf(files, ModelConfig.from_directory(files.directory), Path(folder))
        engine = vllm.LLM(
            folder,
            dtype="float32",
            enforce_eager=True,
            max_model_len=CONTEXT,
            max_num_seqs=rows_in_flight,
            disable_log_stats=True,
        )

    def decode(prompts: Sequence[str], max_tokens: int) -> tuple[int, float]:
        start = time.perf_counter()
        params = vllm.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        inputs = [{"prompt_token_ids": encode(prompt)} for prompt in prompts]
        outputs = engine.generate(inputs, params, use_tqdm=False)
        return sum(len(o.outputs[0].token_ids) for o in outputs), time.perf_counter() - start

    return decode


def _ignore(_message: str) -> None:
    """Progress of a download is not shown."""
