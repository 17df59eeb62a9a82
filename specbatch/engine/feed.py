"""What the engine asks of its surroundings, and what it offers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specbatch.errors import RowFault
from specbatch.ledger import EngineStats
from specbatch.models.config import ModelConfig
from specbatch.progress import Snapshot
from specbatch.rows import Answer, Prompt, Status
from specbatch.table.decisions import Entry
from specbatch.text.encoder import PromptEncoder


class Feed(Protocol):
    """The rows of a job: numbers for scheduling, prompts on demand.

    Attributes:
        rows: Row indices still to answer, int64 ``[n]``.
        arrival: Seconds on the run clock, float64 ``[n]``.
        deadline: Seconds on the run clock, ``inf`` when none, float64 ``[n]``.
        due: When the first promise falls due: the deadline, or the time to the first token where that
            is earlier; ``inf`` when none, float64 ``[n]``.
        priority: Tier priority, lower is more urgent, int16 ``[n]``.
        tier: Place of the row's tier among those of the job, int16 ``[n]``.
        used: Verified tokens of earlier attempts by owner.
    """

    rows: NDArray[np.int64]
    arrival: NDArray[np.float64]
    deadline: NDArray[np.float64]
    due: NDArray[np.float64]
    priority: NDArray[np.int16]
    tier: NDArray[np.int16]
    used: Mapping[str, int]

    def fetch(self, row_index: int, demoted: str | None = None) -> Prompt:
        """Read and tokenise one row.

        Args:
            row_index: The row.
            demoted: Why it gets the default tier; ``None``: the one it asks for.

        Raises:
            RowFault: The row cannot be answered.
        """
        ...


class Host(Protocol):
    """What the engine calls back, always on its own thread."""

    def now(self) -> float:
        """Seconds on the run clock."""
        ...

    def joules(self) -> float | None:
        """What the energy meter has counted since the attempt began; ``None`` without a meter."""
        ...

    def sleep(self, seconds: float) -> None:
        """Nothing to do for this long, unless a stop is requested."""
        ...

    def deliver(self, answer: Answer) -> None:
        """A row ended."""
        ...

    def refuse(self, row_index: int, status: Status, fault: RowFault) -> None:
        """A row ended before it had a prompt: faulty (``rejected``) or ``expired``."""
        ...

    def note(self, entry: Entry) -> None:
        """Something was decided."""
        ...

    def tick(self, snapshot: Snapshot) -> None:
        """A step ended; must return at once."""
        ...

    def stop_requested(self) -> bool:
        """Whether to leave after this step."""
        ...


class Engine(Protocol):
    """Something that answers rows."""

    @property
    def config(self) -> ModelConfig:
        """Shape of the target model."""
        ...

    @property
    def encoder(self) -> PromptEncoder:
        """Turns raw prompts into tokens of this model."""
        ...

    @property
    def numerics(self) -> Mapping[str, str]:
        """Device class, number format and kernels: what can change a row's last bits."""
        ...

    @property
    def notice(self) -> str:
        """One line the user should know, such as why it is slower than it could be; mostly empty."""
        ...

    def run(self, feed: Feed, host: Host) -> EngineStats:
        """Answer every row of the feed, or stop early when the host asks for it."""
        ...
