"""A whole pass through a decoder of the Llama family in one call, and its torch twin.

One hand-over to the pool per pass: the workers go through all layers together and wait for each
other at barriers inside. Covers what Llama, SmolLM2, Mistral, Qwen2 (biases) and Qwen3 (norms of
queries and keys) need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.attention import AttentionKeys, KvCache, paged_attention_reference
from specbatch_kernels.cpu.linear import gated_linear_reference, linear_reference
from specbatch_kernels.cpu.lookup import lookup_reference
from specbatch_kernels.cpu.norm import RmsNorm
from specbatch_kernels.cpu.packing import Activations, PackedMatrix, native_matrix
from specbatch_kernels.cpu.pool import ThreadPool
from specbatch_kernels.cpu.rotary import Placement, Rotary, rotate_and_store_reference

if TYPE_CHECKING:
    from specbatch_kernels.cpu import _native as _types


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer, vectors float32.

    Attributes:
        input_norm: [hidden], before attention.
        qkv: hidden → (num_heads + 2 * num_kv_heads) * head_dim, queries first, with bias or without.
        q_norm: [head_dim], or None; with ``k_norm`` or not at all.
        k_norm: [head_dim], or None.
        output: num_heads * head_dim → hidden.
        mlp_norm: [hidden], before the MLP.
        gate_up: Gated, hidden → intermediate.
        down: intermediate → hidden.
    """

    input_norm: torch.Tensor
    qkv: PackedMatrix
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: PackedMatrix
    mlp_norm: torch.Tensor
    gate_up: PackedMatrix
    down: PackedMatrix


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """Everything else a decoder consists of.

    Attributes:
        embedding: [vocabulary, hidden]; the same object as ``head`` when tied.
        head: hidden → vocabulary.
        final_norm: float32 [hidden].
        rotary: float32 [max positions, 2, head_dim / 2]: cosines, then sines.
        num_heads: Query heads.
        num_kv_heads: Key and value heads.
        eps: Of every norm.
        captured: Layers whose inputs a pass can report, in the order they are reported; the number of
            layers stands for the input of the final norm.
    """

    embedding: PackedMatrix
    head: PackedMatrix
    final_norm: torch.Tensor
    rotary: torch.Tensor
    num_heads: int
    num_kv_heads: int
    eps: float
    captured: tuple[int, ...] = ()


class PackedDecoder:
    """A decoder ready for :func:`decoder_pass`; immutable.

    Args:
        layers: From the first to the last.
        parts: The rest of the model.

    Raises:
        KernelsUnavailableError: The extension was not compiled.
        ValueError: Shapes or types do not fit together.
    """

    def __init__(self, layers: Sequence[DecoderLayer], parts: DecoderParts) -> None:
        native.require()
        from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

        self.layers = tuple(layers)
        self.parts = parts
        self.hidden = parts.embedding.cols
        self.head_dim = 2 * parts.rotary.shape[2]
        self.inner = self.layers[0].down.cols
        sizes = (
            self.hidden,
            self.inner,
            parts.num_heads,
            parts.num_kv_heads,
            self.head_dim,
            parts.rotary.shape[0],
            self._place(len(self.layers)),
        )
        _expect("embedding", parts.embedding, (parts.embedding.rows, self.hidden), gated=False)
        _expect("head", parts.head, (parts.head.rows, self.hidden), gated=False)
        self._handle = _native.decoder_new(
            tuple(self._native_layer(i, layer) for i, layer in enumerate(self.layers)),
            native_matrix(parts.embedding),
            native_matrix(parts.head),
            (
                native.address("final_norm", parts.final_norm, torch.float32, (self.hidden,)),
                native.address("rotary", parts.rotary, torch.float32, (None, 2, None)),
            ),
            sizes,
            parts.eps,
        )

    @property
    def activations(self) -> Activations:
        """``"int8"`` where any matrix has its inputs rounded."""
        matrices = [m for layer in self.layers for m in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        rounded = any(matrix.activations == "int8" for matrix in (*matrices, self.parts.head))
        return "int8" if rounded else "float32"

    @property
    def handle(self) -> _types._Decoder:
        """The native decoder."""
        return self._handle

    def _native_layer(self, number: int, layer: DecoderLayer) -> tuple[object, ...]:
        mixed = self.parts.num_heads * self.head_dim
        heads = mixed + 2 * self.parts.num_kv_heads * self.head_dim
        _expect("qkv", layer.qkv, (heads, self.hidden), gated=False)
        _expect("output", layer.output, (self.hidden, mixed), gated=False)
        _expect("gate_up", layer.gate_up, (2 * self.inner, self.hidden), gated=True)
        _expect("down", layer.down, (self.hidden, self.inner), gated=False)
        head_norms = [
            0 if norm is None else native.address("q_norm or k_norm", norm, torch.float32, (self.head_dim,))
            for norm in (layer.q_norm, layer.k_norm)
        ]
        norms = (
            native.address("input_norm", layer.input_norm, torch.float32, (self.hidden,)),
            native.address("mlp_norm", layer.mlp_norm, torch.float32, (self.hidden,)),
            *head_norms,
        )
        matrices = (layer.qkv, layer.output, layer.gate_up, layer.down)
        return (*map(native_matrix, matrices), norms, self._place(number))

    def _place(self, number: int) -> int:
        """Where a layer's input is reported; -1 when it is not."""
        captured = self.parts.captured
        return captured.index(number) if number in captured else -1


def _expect(name: str, matrix: PackedMatrix, shape: tuple[int, int], *, gated: bool) -> None:
    if (matrix.rows, matrix.cols) != shape or matrix.gated != gated:
        kind = "gated " if gated else ""
        raise ValueError(
            f"{name}: expected a {kind}matrix of shape {shape}, got {(matrix.rows, matrix.cols)}"
        )


@dataclass(frozen=True, slots=True)
class DecoderBatch:
    """The tokens of one pass.

    Attributes:
        tokens: Ids, int64 [T].
        placement: Rotary positions and cache slots of the tokens.
        keys: What each token attends to; the keys of this pass's tokens are stored before they are read.
        wanted: int64 [S] tokens (indices into T) whose logits are due.
    """

    tokens: torch.Tensor
    placement: Placement
    keys: AttentionKeys
    wanted: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecoderOutputs:
    """What a pass writes.

    Attributes:
        logits: float32 [S, vocabulary].
        captured: float32 [captured places, T, hidden], the states there; None when not needed.
    """

    logits: torch.Tensor
    captured: torch.Tensor | None = None


def decoder_pass(
    decoder: PackedDecoder, batch: DecoderBatch, cache: KvCache, outputs: DecoderOutputs, pool: ThreadPool
) -> None:
    """Compute one pass: store keys and values of all tokens, and logits of the wanted ones.

    A token's bits depend on its keys alone, never on the other tokens of the pass or the threads.

    Args:
        decoder: The model.
        batch: The tokens.
        cache: Of all layers: ``k`` and ``v`` are float32 [num_layers, num_slots, num_kv_heads, head_dim].
        outputs: Overwritten.
        pool: Threads and instruction set to compute with.

    Raises:
        ValueError: A tensor has the wrong type, shape or layout, or an index is out of range.
    """
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    tokens, wanted = batch.tokens.shape[0], batch.wanted.shape[0]
    parts = decoder.parts
    shape = (len(decoder.layers), None, parts.num_kv_heads, decoder.head_dim)
    k = native.address("k", cache.k, torch.float32, shape)
    v = native.address("v", cache.v, torch.float32, tuple(cache.k.shape))
    _native.decoder_pass(
        pool.handle,
        decoder.handle,
        (
            native.address("tokens", batch.tokens, torch.int64, (tokens,)),
            native.address("positions", batch.placement.positions, torch.int64, (tokens,)),
            native.address("slots", batch.placement.slots, torch.int64, (tokens,)),
            native.address("wanted", batch.wanted, torch.int64, (wanted,)),
            tokens,
            wanted,
        ),
        batch.keys.addresses(tokens),
        batch.keys.limits(cache.page_size, cache.k.shape[1]),
        (k, v),
        _output_addresses(decoder, outputs, tokens, wanted),
    )


def _output_addresses(
    decoder: PackedDecoder, outputs: DecoderOutputs, tokens: int, wanted: int
) -> tuple[int, int]:
    parts = decoder.parts
    logits = native.address("logits", outputs.logits, torch.float32, (wanted, parts.head.rows))
    if outputs.captured is None:
        return logits, 0
    shape = (len(parts.captured), tokens, decoder.hidden)
    return logits, native.address("captured", outputs.captured, torch.float32, shape)


def decoder_pass_reference(
    decoder: PackedDecoder,
    batch: DecoderBatch,
    cache: KvCache,
    outputs: DecoderOutputs,
    pool: ThreadPool | None,
) -> None:
    """Twin of :func:`decoder_pass` in torch; computes in the type of ``outputs.logits``."""
    parts = decoder.parts
    x = torch.empty((len(batch.tokens), decoder.hidden), dtype=outputs.logits.dtype)
    lookup_reference(batch.tokens, parts.embedding, x, pool)
    for number, layer in enumerate(decoder.layers):
        if outputs.captured is not None and number in parts.captured:
            outputs.captured[parts.captured.index(number)] = x
        _attention_reference(decoder, number, x, batch, cache)
        inner = torch.empty((len(x), decoder.inner), dtype=x.dtype)
        gated_linear_reference(x, layer.gate_up, inner, pool, norm=RmsNorm(layer.mlp_norm, parts.eps))
        linear_reference(inner, layer.down, x, pool, accumulate=True)
    if outputs.captured is not None and len(decoder.layers) in parts.captured:
        outputs.captured[parts.captured.index(len(decoder.layers))] = x
    norm = RmsNorm(parts.final_norm, parts.eps)
    linear_reference(x[batch.wanted], parts.head, outputs.logits, pool, norm=norm)


def _attention_reference(
    decoder: PackedDecoder, number: int, x: torch.Tensor, batch: DecoderBatch, cache: KvCache
) -> None:
    """Adds one layer's attention block to ``x``."""
    parts, layer, dim = decoder.parts, decoder.layers[number], decoder.head_dim
    heads = torch.empty((len(x), layer.qkv.rows), dtype=x.dtype)
    linear_reference(x, layer.qkv, heads, None, norm=RmsNorm(layer.input_norm, parts.eps))
    split = heads.view(len(x), -1, dim)
    norms = [None if norm is None else RmsNorm(norm, parts.eps) for norm in (layer.q_norm, layer.k_norm)]
    here = KvCache(cache.k[number], cache.v[number], cache.page_size)
    rotate_and_store_reference(split, Rotary(parts.rotary, *norms), batch.placement, here, None)
    queries = split[:, : parts.num_heads].contiguous()
    mixed = torch.empty_like(queries)
    paged_attention_reference(queries, here, batch.keys, dim**-0.5, mixed, None)
    linear_reference(mixed.flatten(1), layer.output, x, None, accumulate=True)
