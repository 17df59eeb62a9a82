"""The engine's view of the table: the rows that are left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specbatch.rows import Prompt, RawPrompt
from specbatch.table.reader import RowFetcher


class TableFeed:
    """Implements :class:`specbatch.engine.feed.Feed`.

    Args:
        fetcher: Reads rows.
        encode: Tokenises them.
        left: Whether each row is still to answer, bool ``[N]``.
    """

    def __init__(
        self, fetcher: RowFetcher, encode: Callable[[RawPrompt], Prompt], left: NDArray[np.bool_]
    ) -> None:
        self._fetcher, self._encode = fetcher, encode
        self.rows = np.flatnonzero(left).astype(np.int64)
        self.arrival = fetcher.index.arrival[self.rows]
        self.deadline = fetcher.index.deadline[self.rows]
        self.priority = fetcher.index.priority[self.rows]

    def fetch(self, row_index: int) -> Prompt:
        """Read and tokenise one row.

        Raises:
            RowFault: The row cannot be answered.
        """
        return self._encode(self._fetcher.fetch(row_index))
