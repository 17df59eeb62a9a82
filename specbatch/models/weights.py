"""Weight files → named tensors, checked against the configuration before the first one is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from specbatch.errors import ModelError
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles, out_of_memory
from specbatch.models.gguf import read_blocks, read_gguf
from specbatch.models.gguf_blocks import dequantize
from specbatch.models.stored import QuantizedKind, StoredTensor, quantize

_SHOWN = 4


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name → shape of every tensor the decoder needs."""
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * head, config.num_kv_heads * head
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config.qkv_bias:
        layer |= {"self_attn.q_proj.bias": (queries,)}
        layer |= {"self_attn.k_proj.bias": (keys,), "self_attn.v_proj.bias": (keys,)}
    if config.qk_norm:
        layer |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    shapes = {
        f"model.layers.{index}.{name}": shape
        for index in range(config.num_layers)
        for name, shape in layer.items()
    }
    shapes |= {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def load_weights(
    files: ModelFiles, config: ModelConfig, kind: QuantizedKind | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the plain values of every tensor; arguments and errors as in :func:`load_stored`.

    Tensors are float32 from quantised blocks and of the stored type otherwise.
    """
    for name, tensor in load_stored(files, config, kind):
        yield name, tensor.values()


def load_stored(
    files: ModelFiles, config: ModelConfig, kind: QuantizedKind | None = None
) -> Iterator[tuple[str, StoredTensor]]:
    """Yield every tensor of the decoder once, under its Hugging Face name, in file order.

    Names are those of transformers, such as ``model.layers.0.self_attn.q_proj.weight``; a tied
    output projection is not among them.

    Args:
        files: Where they are.
        config: What to expect.
        kind: Quantise the matrices of a float checkpoint to this.

    Raises:
        ModelError: A file is damaged, or tensors are missing, unknown or of the wrong shape; or a
            checkpoint that is quantised already is to be quantised.
    """
    if kind is not None and files.quantization != "none":
        raise ModelError(
            f"{files.name} is quantised already ({files.quantization})", "run it without --quantize"
        )
    expected = expected_shapes(config)
    load = _load_gguf if files.format == "gguf" else _load_safetensors
    for name, tensor in load(files, config, expected):
        if name in expected:
            yield name, tensor if kind is None else quantize(name, tensor, kind)


def _load_gguf(
    files: ModelFiles, config: ModelConfig, expected: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, StoredTensor]]:
    gguf = read_gguf(files.weights[0])
    _check(files, config, {tensor.hf_name: tensor.shape for tensor in gguf.tensors}, expected)
    for name, tensor, rows in read_blocks(gguf, config.num_heads, config.num_kv_heads):
        if tensor.kind.is_float or len(tensor.shape) != 2:
            values = dequantize(rows, tensor.kind).reshape(tensor.shape)
            yield name, StoredTensor(torch.from_numpy(values))
        else:
            yield name, StoredTensor(torch.from_numpy(rows), tensor.kind)


def _load_safetensors(
    files: ModelFiles, config: ModelConfig, expected: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[str, StoredTensor]]:
    found: dict[str, tuple[int, ...]] = {}
    for path in files.weights:
        found |= _shapes(path)
    _check(files, config, found, expected)
    for path in files.weights:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name in expected:
                    yield name, StoredTensor(file.get_tensor(name))


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Name → shape from the header of one safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        if out_of_memory(error):
            raise MemoryError(f"{path}: {error}") from error
        raise ModelError(f"{path} is damaged: {error}", "fetch the file again") from error


def _check(
    files: ModelFiles,
    config: ModelConfig,
    found: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, tuple[int, ...]],
) -> None:
    """Compare what is there with what the configuration asks for."""
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected and not _superfluous(name, config)]
    wrong = [
        f"{name} is {list(found[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    for problem, names in (("lack", missing), ("hold unknown", unknown), ("hold misshapen", wrong)):
        if names:
            shown = ", ".join(names[:_SHOWN])
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise ModelError(
                f"the weights of {files.name} {problem} tensors: {shown}{more}",
                f"config.json and weights in {files.directory} do not belong together",
            )


def _superfluous(name: str, config: ModelConfig) -> bool:
    """Tensors some checkpoints carry that hold nothing of their own."""
    tied = config.tie_embeddings and name == "lm_head.weight"
    return tied or name.endswith("rotary_emb.inv_freq")
