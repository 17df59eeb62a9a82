"""The engine's view of the table: the rows that are left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from specbatch.rows import Prompt, RawPrompt
from specbatch.table.fetch import RowFetcher


class TableFeed:
    """Implements :class:`specbatch.engine.feed.Feed`.

    Args:
        fetcher: Reads rows.
        encode: Tokenises them.
        left: Whether each row is still to answer, bool ``[N]``.
        used: Verified tokens of earlier attempts by owner.
    """

    def __init__(
        self,
        fetcher: RowFetcher,
        encode: Callable[[RawPrompt], Prompt],
        left: NDArray[np.bool_],
        used: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._fetcher, self._encode = fetcher, encode
        self.rows = np.flatnonzero(left).astype(np.int64)
        self.arrival = fetcher.index.arrival[self.rows]
        self.deadline = fetcher.index.deadline[self.rows]
        self.priority = fetcher.index.priority[self.rows]
        self.tier = fetcher.index.tier[self.rows]
        first = self.arrival + 1e-3 * fetcher.index.ttft_ms[self.rows].astype(np.float64)
        self.due: NDArray[np.float64] = np.fmin(self.deadline, first)
        self.used = used

    def fetch(self, row_index: int, demoted: str | None = None) -> Prompt:
        """Read and tokenise one row.

        Args:
            row_index: The row.
            demoted: Why it gets the default tier; ``None``: the one it asks for.

        Raises:
            RowFault: The row cannot be answered.
        """
        return self._fetcher.prompt(row_index, self._encode, demoted)
