"""One pass through a one-layer draft head in one call, candidates included, and the torch twin.

The head is that of EAGLE-3 (Li et al. 2025, section 3): an entry for token i + 1 combines its
embedding with the target's features at token i (or, deeper in a tree, with what the entry before
gave back), attends to the entries before it, and predicts token i + 2 over a reduced vocabulary.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import torch
from torch.nn.functional import silu

from specbatch_kernels.cpu import native
from specbatch_kernels.cpu.attention import AttentionKeys, KvCache, paged_attention_reference
from specbatch_kernels.cpu.draft_batch import NOT_DRAFTED, ChainLevels, DraftBatch, DraftOutputs
from specbatch_kernels.cpu.draft_head import DenseHead, HeadParts, PackedHead
from specbatch_kernels.cpu.linear import round_inputs
from specbatch_kernels.cpu.norm import RmsNorm, rms_norm_reference
from specbatch_kernels.cpu.pool import ThreadPool
from specbatch_kernels.cpu.rotary import Placement, Rotary, rotate_and_store_reference
from specbatch_kernels.cpu.sampling import gumbel

_NO_SOURCE = "entries need features, or states and which of them each continues"
_COLDEST = 1e-30  # colder is not told apart from it


def draft_pass(
    head: PackedHead, batch: DraftBatch, cache: KvCache, outputs: DraftOutputs, pool: ThreadPool
) -> None:
    """Compute one pass: store keys and values of all entries, choose candidates for the wanted ones.

    With a chain, the likeliest candidates are drafted on in the same call.

    An entry's bits depend on its keys alone, never on the other entries of the pass or the threads.

    Args:
        head: The head.
        batch: The entries.
        cache: The head's own keys and values.
        outputs: Overwritten, but for ``temperature`` and ``noise``.
        pool: Threads and instruction set to compute with.

    Raises:
        ValueError: A tensor has the wrong type, shape or layout, or an index is out of range.
    """
    from specbatch_kernels.cpu import _native  # noqa: PLC0415 - missing where it was not compiled

    tokens, wanted = batch.tokens.shape[0], batch.wanted.shape[0]
    if batch.chain is not None and outputs.logits is not None:
        raise ValueError("the logits of a chain are not handed out")
    counts = torch.from_numpy(np.array(() if batch.chain is None else batch.chain.counts, dtype=np.int64))
    shape = (None, head.parts.num_kv_heads, head.head_dim)
    _native.draft_pass(
        pool.handle,
        head.handle,
        (
            native.address("tokens", batch.tokens, torch.int64, (tokens,)),
            native.address("positions", batch.placement.positions, torch.int64, (tokens,)),
            native.address("slots", batch.placement.slots, torch.int64, (tokens,)),
            native.address("wanted", batch.wanted, torch.int64, (wanted,)),
            tokens,
            wanted,
        ),
        _sources(head, batch, tokens),
        batch.keys.addresses(tokens),
        batch.keys.limits(cache.page_size, cache.k.shape[0]),
        (
            native.address("k", cache.k, torch.float32, shape),
            native.address("v", cache.v, torch.float32, tuple(cache.k.shape)),
        ),
        _output_addresses(head, outputs, batch.predictions),
        _chain_addresses(batch.chain, counts, wanted),
    )


def _sources(head: PackedHead, batch: DraftBatch, tokens: int) -> tuple[int, int, int, int]:
    """Addresses of features, or of states and which of them is whose."""
    if batch.features is not None:
        shape = (tokens, head.features, head.hidden)
        return native.address("features", batch.features, torch.float32, shape), 0, 0, 0
    if batch.states is None or batch.state_index is None:
        raise ValueError(_NO_SOURCE)
    states = native.address("states", batch.states, torch.float32, (None, head.hidden))
    index = native.address("state_index", batch.state_index, torch.int64, (tokens,))
    return 0, states, index, batch.states.shape[0]


def _output_addresses(head: PackedHead, outputs: DraftOutputs, wanted: int) -> tuple[int, ...]:
    width = outputs.ids.shape[1]
    f32, f64, i64 = torch.float32, torch.float64, torch.int64
    logits = outputs.logits
    return (
        native.address("temperature", outputs.temperature, f64, (wanted,)),
        native.address("noise", outputs.noise, i64, (wanted,)),
        native.address("states", outputs.states, f32, (wanted, head.hidden)),
        0 if logits is None else native.address("logits", logits, f32, (wanted, head.vocabulary)),
        native.address("ids", outputs.ids, i64, (wanted, width)),
        native.address("log_probs", outputs.log_probs, f64, (wanted, width)),
        native.address("scores", outputs.scores, f64, (wanted, width)),
        width,
    )


def _chain_addresses(chain: ChainLevels | None, counts: torch.Tensor, wanted: int) -> tuple[int, ...]:
    if chain is None:
        return (0,) * 10
    size, levels = chain.size, len(chain.counts)
    i32 = torch.int32
    return (
        native.address("chain counts", counts, torch.int64, (levels,)),
        native.address("chain positions", chain.placement.positions, torch.int64, (size,)),
        native.address("chain slots", chain.placement.slots, torch.int64, (size,)),
        native.address("chain token_row", chain.token_row, i32, (size,)),
        native.address("chain context_len", chain.context_len, i32, (size,)),
        native.address("chain extra_offsets", chain.extra_offsets, i32, (size + levels,)),
        native.address("chain extra_positions", chain.extra_positions, i32, (None,)),
        native.address("chain least", chain.least, torch.float64, (wanted,)),
        levels,
        chain.extra_positions.numel(),
    )


def draft_pass_reference(
    head: PackedHead, batch: DraftBatch, cache: KvCache, outputs: DraftOutputs, pool: ThreadPool | None
) -> None:
    """Twin of :func:`draft_pass` in torch; computes in the type of ``outputs.states``."""
    draft_pass_dense(DenseHead.unpacked(head), batch, cache, outputs)


def draft_pass_dense(head: DenseHead, batch: DraftBatch, cache: KvCache, outputs: DraftOutputs) -> None:
    """The same for plain weights, wherever they and the cache live; batch and outputs are on the CPU."""
    if batch.chain is None:
        _dense(head, batch, cache, outputs)
        return
    counts = (len(batch.wanted), *batch.chain.counts)
    ends = [0, *accumulate(counts)]
    before, paths = None, torch.zeros(len(batch.wanted), dtype=torch.float64)
    for level, (start, end) in enumerate(pairwise(ends)):
        part = _rows(outputs, slice(start, end))
        if before is not None:
            paths = paths[: end - start] + before.log_probs[: end - start, 0]
            if bool((paths < batch.chain.least[: end - start]).all()):
                outputs.ids[start:] = NOT_DRAFTED
                outputs.log_probs[start:] = outputs.scores[start:] = -torch.inf
                return
        here = batch if before is None else _level(batch, batch.chain, level - 1, before)
        _dense(head, here, cache, part)
        before = part


def _rows(outputs: DraftOutputs, rows: slice) -> DraftOutputs:
    """A view of some rows."""
    return DraftOutputs(
        temperature=outputs.temperature[rows],
        noise=outputs.noise[rows],
        states=outputs.states[rows],
        ids=outputs.ids[rows],
        log_probs=outputs.log_probs[rows],
        scores=outputs.scores[rows],
    )


def _level(batch: DraftBatch, chain: ChainLevels, level: int, before: DraftOutputs) -> DraftBatch:
    """The pass of one level of a chain, given the outputs of the pass before."""
    start, count = sum(chain.counts[:level]), chain.counts[level]
    rows, offsets = slice(start, start + count), slice(start + level, start + level + count + 1)
    first = sum(int(chain.extra_offsets[sum(chain.counts[: i + 1]) + i]) for i in range(level))
    keys = AttentionKeys(
        page_table=batch.keys.page_table,
        token_row=chain.token_row[rows],
        context_len=chain.context_len[rows],
        extra_offsets=chain.extra_offsets[offsets],
        extra_positions=chain.extra_positions[first:],
    )
    return DraftBatch(
        tokens=before.ids[:count, 0].clamp(min=0),
        placement=Placement(chain.placement.positions[rows], chain.placement.slots[rows]),
        keys=keys,
        wanted=torch.arange(count),
        states=before.states,
        state_index=torch.arange(count),
    )


def _dense(head: DenseHead, batch: DraftBatch, cache: KvCache, outputs: DraftOutputs) -> None:
    """One pass."""
    parts, dtype = head.parts, outputs.states.dtype
    embedded = _norm(head.embedding[batch.tokens].to(dtype), parts.embed_norm, parts)
    x = _states(head, batch, dtype)
    normed = _norm(x, parts.hidden_norm, parts)
    x = normed if parts.norm_residual else x
    x = x + _attend(head, torch.cat((embedded, normed), dim=1), batch, cache)
    gate, up = _times(head, _norm(x, parts.mlp_norm, parts), head.gate_up).chunk(2, dim=-1)
    x = x + _times(head, silu(gate) * up, head.down)
    last = x[batch.wanted]
    normed = _norm(last, parts.final_norm, parts)
    outputs.states.copy_(normed if parts.norm_output else last)
    logits = _times(head, normed, head.lm_head)
    if outputs.logits is not None:
        outputs.logits.copy_(logits)
    for i, row in enumerate(logits.double()):
        _choose(row, parts.target_ids, outputs, i)


def _times(head: DenseHead, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    inputs = x if head.activations == "float32" else round_inputs(x)
    return inputs @ weight.to(x.dtype).T


def _norm(x: torch.Tensor, weight: torch.Tensor, parts: HeadParts) -> torch.Tensor:
    y = torch.empty_like(x)
    rms_norm_reference(x, RmsNorm(weight, parts.eps), y, None)
    return y


def _states(head: DenseHead, batch: DraftBatch, dtype: torch.dtype) -> torch.Tensor:
    """What each entry continues, [T, d]."""
    parts = head.parts
    if batch.features is None:
        if batch.states is None or batch.state_index is None:
            raise ValueError(_NO_SOURCE)
        return batch.states[batch.state_index].to(head.fc.device, dtype)
    features = batch.features.to(head.fc.device, dtype)
    if parts.feature_norms is not None:
        features = _norm(features, parts.feature_norms, parts)
    features = features.flatten(1)
    if parts.joint_norm is not None:
        features = _norm(features, parts.joint_norm, parts)
    return _times(head, features, head.fc)


def _attend(head: DenseHead, pair: torch.Tensor, batch: DraftBatch, cache: KvCache) -> torch.Tensor:
    """Stores keys and values; [T, 2 d] → [T, d]."""
    parts, dim = head.parts, cache.k.shape[2]
    heads = _times(head, pair, head.qkv).view(len(pair), -1, dim)
    rotate_and_store_reference(heads, Rotary(parts.rotary), batch.placement, cache, None)
    queries = heads[:, : parts.num_heads].contiguous()
    mixed = torch.empty_like(queries)
    paged_attention_reference(queries, cache, batch.keys, dim**-0.5, mixed, None)
    return _times(head, mixed.flatten(1), head.output)


def _choose(logits: torch.Tensor, target_ids: torch.Tensor, outputs: DraftOutputs, i: int) -> None:
    """Candidates of one entry from its float64 logits."""
    outputs.ids[i], outputs.log_probs[i], outputs.scores[i] = -1, -torch.inf, -torch.inf
    if not bool(logits.isfinite().all()):
        return
    temperature = outputs.temperature[i].clamp(min=_COLDEST) if outputs.temperature[i] > 0 else 1.0
    scores = log_probs = torch.log_softmax(logits / temperature, dim=0)
    if outputs.temperature[i] > 0:
        scores = log_probs + gumbel(outputs.noise[i], target_ids)
    best = scores.sort(descending=True, stable=True).indices[: outputs.ids.shape[1]]
    outputs.ids[i, : len(best)] = target_ids[best]
    outputs.log_probs[i, : len(best)] = log_probs[best]
    outputs.scores[i, : len(best)] = scores[best]
