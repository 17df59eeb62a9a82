"""Rows to measure with: random text on pages of its own, cached without having been computed."""

from __future__ import annotations

import numpy as np

from specbatch.cache import PagedStore
from specbatch.models.config import ModelConfig
from specbatch.randomness import Purpose, Stream
from specbatch.rows import Prompt, Row, SamplingParams
from specbatch.tree import TokenTree

_MAX_TOKENS = 1024
"""That a row may still write: drafters that keep its text make room for as many."""


class Ground:
    """Rows on pages whose memory is real: pages that were never written would all be the same one.

    Args:
        store: Keys and values of an engine at rest.
        config: The model they belong to.
        kv_bytes: How much of the store may be written to.
    """

    def __init__(self, store: PagedStore, config: ModelConfig, kv_bytes: int) -> None:
        self.page_size, self._config = store.page_size, config
        affordable = kv_bytes // (store.bytes_per_token * store.page_size)
        self.pages = min(store.num_pages - 1, affordable)
        self._store, self._written = store, 0
        generator = np.random.default_rng(0)
        self._text: list[int] = generator.integers(0, self._config.vocab_size, 4096).tolist()

    def rows(self, count: int, context: int, room: int) -> list[Row] | None:
        """Rows with that many cached tokens and one more, whose pages have room for others behind.

        Returns:
            ``None`` where they fit neither the memory nor the model.
        """
        each = -(-(context + 1 + room) // self.page_size)
        if count * each > self.pages or context + 1 + room > self._config.max_context:
            return None
        self._store.scrub(range(1 + self._written, 1 + count * each))
        self._written = max(self._written, count * each)
        rows = []
        for index in range(count):
            start = 17 * index
            text = tuple(self._text[(start + i) % len(self._text)] for i in range(context))
            pages = list(range(1 + index * each, 1 + (index + 1) * each))
            prompt = Prompt(index, f"profile-{index}", None, "", text, SamplingParams(max_tokens=_MAX_TOKENS))
            rows.append(Row(prompt, output=[text[-1]], pages=pages, cached=context))
        return rows


def bushy_tree(row: Row, nodes: int, vocab_size: int) -> TokenTree:
    """Each node has two children: a tree about as deep as one that a policy would choose."""
    tokens = np.arange(nodes + 1) % vocab_size
    tokens[0] = row.token(row.committed - 1)
    parents = ((np.arange(nodes + 1) - 1) // 2).astype(np.int32)
    return TokenTree(tokens, parents, np.zeros(nodes + 1))


def stream_of(row: Row) -> Stream:
    """Its randomness; the text is greedy, so that nothing is drawn."""
    return Stream.at(0, row.prompt.key, Purpose.TOKEN)
