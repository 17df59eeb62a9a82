"""The loaded model as the loop sees it."""

from __future__ import annotations

from dataclasses import dataclass

from specbatch.draft.base import Drafter
from specbatch.engine.executor import Executor
from specbatch.hardware.cost import CostTable
from specbatch.models.config import ModelConfig
from specbatch.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Target:
    """The model as the loop sees it.

    Attributes:
        drafter: Who proposes what the policy may have verified; ``None`` decodes plainly.
        profile: What steps cost here; ``None`` leaves policies that count with it to decode plainly.
        no_profile: Why there is none.
        max_drafted: Drafted tokens of a pass for which there is memory beside the keys and values.
        draft_nodes: Drafted tokens of a row with promises for which room is kept when rows are let in.
    """

    config: ModelConfig
    tokenizer: Tokenizer
    executor: Executor
    drafter: Drafter | None = None
    profile: CostTable | None = None
    no_profile: str = ""
    max_drafted: int = 2**31
    draft_nodes: int = 0
