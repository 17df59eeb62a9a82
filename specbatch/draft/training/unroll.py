"""Training-time test: the head reads its own output, as it will when it drafts (EAGLE-3, section 3.2).

Step 0 computes every entry of a text from the target's features. A chain starts at each entry from the
first answer token on. At step j, a chain that started at entry r stands at entry r + j: it reads the
token there, in place of features its own output of the step before, and it attends to what a
drafting pass would find: the entries 0 .. r made of true features, then its own of steps 1 .. j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specbatch.draft.head_module import HeadModule
from specbatch.draft.training.batch import Batch, chain_lengths


@dataclass(frozen=True, slots=True)
class Unrolled:
    """What the head says at one step.

    Attributes:
        entries: Place in the batch of each output, int64 ``[R]``, ascending.
        outputs: Normed states, ``[R, hidden]``.
    """

    entries: Tensor
    outputs: Tensor


@dataclass(frozen=True, slots=True)
class _Cache:
    """Keys and values of one step, ``[R, kv_heads, head_dim]``; chains by document."""

    keys: Tensor
    values: Tensor
    bounds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chains:
    """All chains that have come as far as a step.

    Attributes:
        entries: Where they stand, int64 ``[R]``, ascending.
        outputs: What the head says there, normed, ``[R, hidden]``.
        caches: Keys and values of the steps so far.
    """

    entries: Tensor
    outputs: Tensor
    caches: tuple[_Cache, ...]

    @property
    def step(self) -> int:
        """Feedback steps taken."""
        return len(self.caches) - 1


def unroll(module: HeadModule, batch: Batch, feedback: int) -> list[Unrolled]:
    """Run step 0 and then ``feedback`` steps that follow the true tokens."""
    embedded = module.embed(batch.tokens)
    outputs, chains = first_step(module, batch, embedded)
    steps = [Unrolled(torch.arange(batch.num_tokens), outputs)]
    for step in range(1, feedback + 1):
        here = chain_entries(batch, step)
        chains = next_step(module, batch, chains, embedded[here])
        steps.append(Unrolled(chains.entries, chains.outputs))
    return steps


def first_step(module: HeadModule, batch: Batch, embedded: Tensor) -> tuple[Tensor, Chains]:
    """Every entry from the target's features.

    Args:
        module: The head.
        batch: The texts.
        embedded: ``module.embed`` of their tokens.

    Returns:
        Normed states of all entries, ``[T, hidden]``, and the chains that start there.
    """
    # Position 0 has no token before it: nothing is fused there.
    fused = module.fuse(batch.features) * (batch.positions > 0).unsqueeze(1)
    q, k, v = module.heads(embedded, fused, batch.positions)
    outputs = module.finish(fused, attend_documents(q, k, v, batch.documents))
    roots = chain_entries(batch, 0)
    return outputs, Chains(roots, outputs[roots], (_Cache(k, v, batch.documents),))


def next_step(module: HeadModule, batch: Batch, chains: Chains, embedded: Tensor) -> Chains:
    """One token further, as far as the documents go.

    Args:
        module: The head.
        batch: The texts.
        chains: As they stand.
        embedded: ``module.embed`` of the token that each chain reads now; for the :func:`survivors`.
    """
    fed = chains.outputs[survivors(batch, chains.step)]
    step = chains.step + 1
    lengths, entries = chain_lengths(batch, step), chain_entries(batch, step)
    q, k, v = module.heads(embedded, fed, batch.positions[entries])
    own = _Cache(k, v, _bounds(lengths))
    caches = (*chains.caches, own)
    mixed = [
        _attend_chains(q[own.bounds[d] : own.bounds[d + 1]], d, batch, caches)
        for d, length in enumerate(lengths)
        if length
    ]
    outputs = module.finish(fed, torch.cat(mixed) if mixed else q.flatten(1))
    return Chains(entries, outputs, caches)


def attend_documents(q: Tensor, k: Tensor, v: Tensor, bounds: Sequence[int]) -> Tensor:
    """Causal attention inside each document: ``[T, heads, head_dim]`` → ``[T, heads * head_dim]``."""
    mixed = []
    for start, end in pairwise(bounds):
        query, key, value = (x[start:end].transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        out = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        mixed.append(out.squeeze(0).transpose(0, 1).flatten(1))
    return torch.cat(mixed)


def _attend_chains(q: Tensor, document: int, batch: Batch, caches: Sequence[_Cache]) -> Tensor:
    """Attention of one document's chains at a step.

    Args:
        q: ``[C, heads, head_dim]``, one query per chain.
        document: Number of the document.
        batch: The texts.
        caches: Keys and values of all steps, the present one last.
    """
    count, heads, dim = q.shape
    start, first, end = batch.documents[document], batch.roots[document], batch.documents[document + 1]
    seen = slice(start, end)
    keys, values = caches[0].keys[seen], caches[0].values[seen]
    kv_heads = keys.shape[1]
    grouped = q.view(count, kv_heads, heads // kv_heads, dim).transpose(0, 1)  # [kv, C, g, dim]
    scores = grouped.flatten(1, 2) @ keys.permute(1, 2, 0)  # [kv, C * g, n]
    roots = torch.arange(first - start, first - start + count)
    hidden = torch.arange(end - start) > roots.unsqueeze(1)  # [C, n]
    scores = scores.view(kv_heads, count, -1, end - start).masked_fill(hidden.unsqueeze(1), -torch.inf)
    own_keys, own_values = _own(document, count, caches)
    own_scores = torch.einsum("kcgd,sckd->kcgs", grouped, own_keys)
    weights = torch.softmax(torch.cat([scores, own_scores], dim=-1) * dim**-0.5, dim=-1)
    past, own = weights.split_with_sizes([end - start, len(caches) - 1], dim=-1)
    mixed = (past.flatten(1, 2) @ values.transpose(0, 1)).view(kv_heads, count, -1, dim)
    mixed = mixed + torch.einsum("kcgs,sckd->kcgd", own, own_values)
    return mixed.transpose(0, 1).reshape(count, heads * dim)


def _own(document: int, count: int, caches: Sequence[_Cache]) -> tuple[Tensor, Tensor]:
    """Keys and values that the first ``count`` chains of a document made, ``[steps, C, kv, dim]``."""
    spans = [(cache, cache.bounds[document]) for cache in caches[1:]]
    keys = torch.stack([cache.keys[start : start + count] for cache, start in spans])
    return keys, torch.stack([cache.values[start : start + count] for cache, start in spans])


def chain_entries(batch: Batch, step: int) -> Tensor:
    """Entries at which the chains stand at a step, document by document."""
    lengths = chain_lengths(batch, step)
    return torch.cat(
        [
            torch.arange(root + step, root + step + count)
            for root, count in zip(batch.roots, lengths, strict=True)
        ]
    )


def survivors(batch: Batch, step: int) -> Tensor:
    """Which of the chains of a step reach the next one: all but the last of each document."""
    starts, counts = _bounds(chain_lengths(batch, step)), chain_lengths(batch, step + 1)
    return torch.cat([torch.arange(start, start + n) for start, n in zip(starts, counts, strict=False)])


def _bounds(lengths: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(lengths, initial=0))
