"""Which page of the K/V store belongs to whom. Pure bookkeeping: no tensors, no time.

A page holds the keys and values of ``page_size`` consecutive tokens of a row. Full pages are content
addressed: rows that begin with the same tokens share them (reference counts), and a page nobody
holds keeps its content until it is needed for something else (least recently used first).

Page 0 is never handed out: it stays zero and stands in wherever a table must name some page.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

NULL_PAGE = 0
_ROOT = b""


def slots_of(pages: Sequence[int], positions: Iterable[int], page_size: int) -> list[int]:
    """Where the K/V store holds these positions of a row.

    Args:
        pages: The row's pages in logical order.
        positions: Each within them.
        page_size: Tokens in a page.
    """
    return [pages[at // page_size] * page_size + at % page_size for at in positions]


class PagePool:
    """Reference-counted pages with prefix sharing.

    Args:
        num_pages: Pages in the store, the null page included; at least 2.
        page_size: Tokens in a page.
        sharing: Whether full pages are kept and shared by content.
    """

    def __init__(self, num_pages: int, page_size: int, sharing: bool) -> None:
        if num_pages < 2 or page_size < 1:
            raise ValueError(f"a pool needs 2 pages of 1 token, got {num_pages} of {page_size}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.sharing = sharing
        self._free: list[int] = list(range(num_pages - 1, NULL_PAGE, -1))
        self._refs = [0] * num_pages
        self._by_content: dict[bytes, int] = {}
        self._content: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # unreferenced, content still valid

    @property
    def capacity(self) -> int:
        """Pages that can be handed out in total."""
        return self.num_pages - 1

    @property
    def available(self) -> int:
        """Pages that can be handed out now."""
        return len(self._free) + len(self._idle)

    @property
    def in_use(self) -> int:
        """Pages held by rows."""
        return self.capacity - self.available

    def pages_for(self, tokens: int) -> int:
        """Pages needed to hold this many tokens."""
        return -(-tokens // self.page_size)

    def allocate(self, count: int) -> list[int] | None:
        """Hand out fresh pages, or ``None`` (and nothing) when there are not enough."""
        if count > self.available:
            return None
        return [self._take() for _ in range(count)]

    def release(self, pages: Sequence[int]) -> None:
        """Give pages back, last page first so that a prefix outlives its continuation."""
        for page in reversed(pages):
            self._refs[page] -= 1
            if self._refs[page]:
                continue
            if page in self._content:
                self._idle[page] = None
            else:
                self._free.append(page)

    def match(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Find and hold the pages that already contain a prefix of these tokens.

        Args:
            tokens: The row's committed tokens.
            limit: At most this many tokens may come from the store.

        Returns:
            Pages in logical order, each full; the caller releases them.
        """
        held: list[int] = []
        if not self.sharing:
            return held
        parent = _ROOT
        for start in range(0, limit - self.page_size + 1, self.page_size):
            parent = _digest(parent, tokens[start : start + self.page_size])
            page = self._by_content.get(parent)
            if page is None:
                break
            self._hold(page)
            held.append(page)
        return held

    def publish(self, pages: Sequence[int], tokens: Sequence[int], start: int) -> None:
        """Offer a row's full pages for sharing.

        Args:
            pages: The row's pages.
            tokens: The tokens whose keys and values they hold, from the row's beginning.
            start: Pages before this one are known to be published.
        """
        if not self.sharing or len(tokens) // self.page_size <= start:
            return
        parent = self._content.get(pages[start - 1], _ROOT) if start else _ROOT
        if start and parent == _ROOT:
            return  # the row's previous page lost its name to an equal page; so must its children
        for index in range(start, len(tokens) // self.page_size):
            parent = _digest(parent, tokens[index * self.page_size : (index + 1) * self.page_size])
            if parent in self._by_content:
                return
            self._by_content[parent] = pages[index]
            self._content[pages[index]] = parent

    def exclusive(self, pages: Sequence[int]) -> list[int]:
        """Those of a row's pages that no other row holds."""
        return [page for page in pages if self._refs[page] == 1]

    def forget(self, pages: Sequence[int]) -> None:
        """Stop sharing these pages: their content is not to be trusted."""
        for page in pages:
            self._unname(page)
            if page in self._idle:
                del self._idle[page]
                self._free.append(page)

    def check(self, holders: Sequence[Sequence[int]]) -> None:
        """Assert every invariant, given the pages that each row says it holds.

        Raises:
            AssertionError: A page is lost, leaked, doubly free or wrongly counted.
        """
        counts = [0] * self.num_pages
        for pages in holders:
            for page in pages:
                counts[page] += 1
        assert counts == self._refs, "reference counts differ from what the rows hold"
        assert not self._refs[NULL_PAGE], "the null page was handed out"
        free, idle = set(self._free), set(self._idle)
        assert len(free) == len(self._free), "a page is free twice"
        assert not free & idle, "a page is both free and idle"
        assert free | idle == {p for p in range(1, self.num_pages) if not counts[p]}, "a page leaked"
        assert {p: c for c, p in self._by_content.items()} == self._content, "content maps disagree"
        assert idle <= set(self._content), "an idle page has no content"
        assert not free & set(self._content), "a free page has content"

    def _take(self) -> int:
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            self._unname(page)
        self._refs[page] = 1
        return page

    def _hold(self, page: int) -> None:
        self._refs[page] += 1
        self._idle.pop(page, None)

    def _unname(self, page: int) -> None:
        content = self._content.pop(page, None)
        if content is not None:
            del self._by_content[content]


def _digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Name of a page's content: its tokens and, through the parent, all tokens before them."""
    words = b"".join(token.to_bytes(4, "little") for token in tokens)
    return blake2b(parent + words, digest_size=16).digest()
