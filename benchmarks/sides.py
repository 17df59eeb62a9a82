"""The two sides of the comparison: load once, then decode batches of prompts on request.

A side is made in the process that uses it, and sets that process's threads.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbatch.config import JobConfig
from specbatch.errors import RowFault
from specbatch.models.config import ModelConfig
from specbatch.models.files import GENERATION_CONFIG, SIDE_FILES, ModelFiles
from specbatch.models.resolve import resolve_model
from specbatch.progress import Snapshot
from specbatch.rows import Answer, Prompt, RawPrompt, SamplingParams, Status
from specbatch.table.decisions import Entry
from specbatch.text.chat import ChatTemplate
from specbatch.text.encoder import PromptEncoder
from specbatch.text.tokenizer import Tokenizer

Decode = Callable[[Sequence[str], int], tuple[int, float]]
"""``(prompts, max_tokens) -> (output tokens, seconds)``: exactly ``max_tokens`` tokens for every prompt."""


def specbatch_decode(
    model_spec: str, prompts: Sequence[str], max_tokens: int, rows_in_flight: int, threads: int
) -> tuple[int, float]:
    """Loads the model and decodes once; returns output tokens and seconds without loading."""
    return specbatch_side(model_spec, rows_in_flight, threads)(prompts, max_tokens)


def specbatch_side(model_spec: str, rows_in_flight: int, threads: int) -> Decode:
    """The native engine, exact, on the CPU in float32."""
    from specbatch.engine.encoder import open_encoder  # noqa: PLC0415
    from specbatch.engine.native import open_engine  # noqa: PLC0415 - imports torch

    job = JobConfig(
        input=("benchmark",),
        model=model_spec,
        device="cpu",
        dtype="float32",
        max_rows_in_flight=rows_in_flight,
        threads=threads,
        policy="off",
    )
    with tempfile.TemporaryDirectory() as folder:
        files = without_eos(resolve_model(model_spec, report=_ignore), Path(folder))
        engine = open_engine(job, files, open_encoder(job, files.directory))

    def decode(prompts: Sequence[str], max_tokens: int) -> tuple[int, float]:
        feed = ListFeed(prompts, SamplingParams(max_tokens=max_tokens), engine.encoder)
        host = CountingHost()
        start = time.perf_counter()
        engine.run(feed, host)
        return host.output_tokens, time.perf_counter() - start

    return decode


def transformers_side(model_spec: str, rows_in_flight: int, threads: int) -> Decode:
    """Transformers ``generate``: one left-padded batch, greedy, float32, the same weights."""
    # Loaded in the process that measures.
    import torch  # noqa: PLC0415

    from specbatch.models.export import export_hf  # noqa: PLC0415

    del rows_in_flight  # generate runs all prompts of a call together
    transformers: Any = import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        files = resolve_model(model_spec, report=_ignore)
        export_hf(files, ModelConfig.from_directory(files.directory), Path(folder))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token

    def decode(prompts: Sequence[str], max_tokens: int) -> tuple[int, float]:
        start = time.perf_counter()
        turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
        texts = [
            tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False) for turn in turns
        ]
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            output = model.generate(
                **batch, do_sample=False, min_new_tokens=max_tokens, max_new_tokens=max_tokens
            )
        seconds = time.perf_counter() - start
        return (output.shape[1] - batch["input_ids"].shape[1]) * len(prompts), seconds

    return decode


class PromptTokens:
    """Text → the tokens specbatch would compute for it, for sides that take tokens."""

    def __init__(self, files: ModelFiles) -> None:
        config = ModelConfig.from_directory(files.directory)
        template = ChatTemplate.load(files.directory)
        self._encoder = PromptEncoder(Tokenizer.load(files.directory), template, config)

    def __call__(self, prompt: str) -> list[int]:
        """Token ids of one user message."""
        raw = RawPrompt(0, "", None, "standard", prompt, SamplingParams(max_tokens=1))
        return list(self._encoder.encode(raw).token_ids)


def without_eos(files: ModelFiles, folder: Path) -> ModelFiles:
    """The same model with side files in ``folder`` that name no end-of-sequence token."""
    for name in SIDE_FILES:
        if (files.directory / name).exists():
            shutil.copy(files.directory / name, folder / name)
    (folder / GENERATION_CONFIG).write_text(json.dumps({"eos_token_id": []}), "utf-8")
    return replace(files, directory=folder)


@dataclass(slots=True)
class ListFeed:
    """Prompts that are all there at the start, without deadlines."""

    prompts: Sequence[str]
    params: SamplingParams
    encoder: PromptEncoder
    rows: NDArray[np.int64] = field(init=False)
    arrival: NDArray[np.float64] = field(init=False)
    deadline: NDArray[np.float64] = field(init=False)
    due: NDArray[np.float64] = field(init=False)
    priority: NDArray[np.int16] = field(init=False)
    tier: NDArray[np.int16] = field(init=False)
    used: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.prompts)
        self.rows = np.arange(count, dtype=np.int64)
        self.arrival = np.zeros(count)
        self.deadline = self.due = np.full(count, np.inf)
        self.priority = self.tier = np.zeros(count, np.int16)

    def fetch(self, row_index: int, demoted: str | None = None) -> Prompt:
        """One prompt, encoded."""
        text = self.prompts[row_index]
        raw = RawPrompt(row_index, f"{row_index:032x}", None, "standard", text, self.params)
        return self.encoder.encode(raw)


@dataclass(slots=True)
class CountingHost:
    """Counts the output tokens; a row that fails ends the benchmark."""

    output_tokens: int = 0

    def now(self) -> float:
        """Seconds on a clock of its own."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """All rows are there from the start, so the engine has no reason to wait."""
        time.sleep(seconds)

    def joules(self) -> float | None:
        """Energy is not compared."""
        return None

    def deliver(self, answer: Answer) -> None:
        """Counts one answer."""
        if not answer.succeeded:
            raise RuntimeError(f"row {answer.row_index}: {answer.error_message}")
        self.output_tokens += answer.output_tokens

    def refuse(self, row_index: int, status: Status, fault: RowFault) -> None:
        """Passes the fault on."""
        raise RuntimeError(f"row {row_index} {status}: {fault.message}")

    def note(self, entry: Entry) -> None:
        """What is decided is not looked at."""

    def tick(self, snapshot: Snapshot) -> None:
        """Progress is not shown."""

    def stop_requested(self) -> bool:
        """Never."""
        return False


def _ignore(_message: str) -> None:
    """Progress of a download is not shown."""
