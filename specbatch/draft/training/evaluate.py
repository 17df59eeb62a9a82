"""How far a head's drafts get: every chain of held-out answers, drafted as the engine drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from specbatch.draft.head_module import HeadModule
from specbatch.draft.training.batch import Batch, Example, chain_lengths, pack
from specbatch.draft.training.unroll import first_step, next_step, survivors

_BATCH_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Chains of greedy drafts against greedy answers.

    Attributes:
        documents: Held-out answers.
        positions: Places at which a chain was drafted: every one.
        acceptance: Share of the places whose first k drafts are all accepted, for k = 1, 2, ...
        tokens_per_pass: What decoding these answers would yield per target pass, the target's own
            token included.
    """

    documents: int
    positions: int
    acceptance: tuple[float, ...]
    tokens_per_pass: float

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return asdict(self)

    def __str__(self) -> str:
        shares = "/".join(f"{share:.3f}" for share in self.acceptance)
        return f"accepted {shares}, {self.tokens_per_pass:.3f} tokens per pass"


@torch.no_grad()
def evaluate(module: HeadModule, examples: Sequence[Example], target_ids: Tensor, depth: int) -> Evaluation:
    """Draft a chain at every place of greedy answers, and count what the target would accept.

    Args:
        module: The head.
        examples: Documents whose answers are the target's most likely tokens.
        target_ids: Target token of each draft token.
        depth: Length of the chains.
    """
    accepted: list[Tensor] = []
    group: list[Example] = []
    for number, example in enumerate(examples):
        group.append(example)
        if sum(map(len, group)) >= _BATCH_TOKENS or number == len(examples) - 1:
            accepted.extend(_accepted(module, pack(group, 1.0), target_ids, depth))
            group = []
    counts = torch.cat(accepted)
    passes = sum(_passes(chain.tolist()) for chain in accepted)
    return Evaluation(
        documents=len(examples),
        positions=len(counts),
        acceptance=tuple(float((counts >= k).float().mean()) for k in range(1, depth + 1)),
        tokens_per_pass=len(counts) / max(1, passes),
    )


def _accepted(module: HeadModule, batch: Batch, target_ids: Tensor, depth: int) -> list[Tensor]:
    """For each document, how many drafts of the chain at every place are accepted; int64 ``[places]``."""
    _, chains = first_step(module, batch, module.embed(batch.tokens))
    counts = torch.zeros(len(chains.entries), dtype=torch.int64)
    alive = torch.ones(len(counts), dtype=torch.bool)
    there = torch.arange(len(counts))
    for step in range(depth):
        drafted = target_ids[(chains.outputs @ module.lm_head.weight.T).argmax(dim=1)]
        right = alive[there] & (drafted == batch.tokens[chains.entries + 1])
        alive[there] = right
        counts[there] += right
        if step < depth - 1:
            kept = survivors(batch, step)
            there = there[kept]
            chains = next_step(module, batch, chains, module.embed(drafted[kept]))
    return list(counts.split_with_sizes(chain_lengths(batch, 0)))


def _passes(accepted: list[int]) -> int:
    """Target passes that decode an answer: each moves on by what it accepts and one more."""
    place = passes = 0
    while place < len(accepted):
        place += accepted[place] + 1
        passes += 1
    return passes
