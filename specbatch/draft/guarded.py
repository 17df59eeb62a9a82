"""A drafter that may fail: what goes wrong in it costs speed, is counted and named, and does nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from specbatch.draft.base import Draft, Drafter, DraftRequest, Observed
from specbatch.errors import Interrupted
from specbatch.rows import Row
from specbatch.tree import TokenTree

MAX_FAULTS_IN_A_ROW = 3
"""Failed calls without a good step between them after which a drafter is switched off."""

_LONGEST_MESSAGE = 200

T = TypeVar("T")


def counted_faults(drafter: Drafter) -> int:
    """How many rows a drafter has left without a draft because its own output made no sense.

    It says so in an attribute ``faults``; one without it counts nothing.
    """
    faults: int = getattr(drafter, "faults", 0)
    return faults


class GuardedDrafter:
    """Passes everything on to another drafter, and survives it.

    A failed call leaves its rows without a draft; a malformed draft leaves its row without one. After
    several failures in a row the drafter is left alone for good.

    Args:
        inner: The drafter.
        vocab_size: Tokens from here on do not exist.
        limit: Failures in a row after which ``inner`` is switched off, at least 1.

    Attributes:
        name: That of the drafter inside.
        captured: Likewise.
    """

    def __init__(self, inner: Drafter, vocab_size: int, limit: int = MAX_FAULTS_IN_A_ROW) -> None:
        self.name = inner.name
        self.captured = inner.captured
        self._inner = inner
        self._vocab_size = vocab_size
        self._limit = limit
        self._faults: dict[str, int] = {}
        self._first = ""
        self._in_a_row = 0
        self._clean = True  # since the last proposal

    @property
    def faults(self) -> Mapping[str, int]:
        """What went wrong how often, such as ``{"propose: RuntimeError": 3}``; empty when all is well."""
        return dict(self._faults)

    @property
    def switched_off(self) -> bool:
        """Whether the drafter has failed so often that it is no longer called."""
        return self._in_a_row >= self._limit

    @property
    def notice(self) -> str:
        """One line for the report; empty when nothing went wrong."""
        if not self._faults:
            return ""
        count = sum(self._faults.values())
        times = "once" if count == 1 else f"{count} times"
        off = f" and was switched off after {self._limit} failures in a row" if self.switched_off else ""
        return f"drafter '{self.name}' failed {times}{off}; the first time: {self._first}"

    def begin(self) -> None:
        """Pass on that a run starts."""
        self._attempt("begin", self._inner.begin, None)

    def observe(self, observed: Sequence[Observed]) -> None:
        """Pass on what the target stored."""
        self._attempt("observe", lambda: self._inner.observe(observed), None)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """The drafts, and roots alone where there are none to be had."""
        drafts = self._attempt("propose", lambda: self._drafts(requests), None)
        if self._clean and not self.switched_off:
            self._in_a_row = 0
        self._clean = True
        return [_root(request) for request in requests] if drafts is None else drafts

    def forget(self, row: Row) -> None:
        """Pass on that a row is gone."""
        self._attempt("forget", lambda: self._inner.forget(row), None)

    def _attempt(self, call: str, function: Callable[[], T], otherwise: T) -> T:
        """Make a call, or count its failure and go on.

        Every ``Exception`` is caught here, and only here: a drafter runs whatever code and weights it
        was given, and no text depends on it. What is no fault of its own (an interrupt, an exit) passes.
        """
        if self.switched_off:
            return otherwise
        try:
            return function()
        except Interrupted:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            self._count(f"{call}: {type(error).__name__}", str(error))
            self._in_a_row += 1
            return otherwise

    def _drafts(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """What the drafter proposes, the malformed replaced."""
        before = counted_faults(self._inner)
        drafts = list(self._inner.propose(requests))
        if len(drafts) != len(requests):
            raise ValueError(f"{len(drafts)} drafts for {len(requests)} rows")
        reasons = [self._flaw(*pair) for pair in zip(requests, drafts, strict=True)]
        for reason in filter(None, reasons):
            self._count("propose: malformed draft", reason)
        own = counted_faults(self._inner) - before
        if own:
            self._count("propose: output not finite", f"{own} of {len(requests)} rows", own)
        self._in_a_row += any(reasons) or own > 0
        checked = zip(requests, drafts, reasons, strict=True)
        return [_root(request) if reason else draft for request, draft, reason in checked]

    def _flaw(self, request: DraftRequest, draft: Draft) -> str:
        """Why this is no draft for the request; empty when it is."""
        try:
            _check(request, draft, self._vocab_size)
        except ValueError as error:
            return str(error)
        return ""

    def _count(self, fault: str, message: str, count: int = 1) -> None:
        self._clean = False
        self._faults[fault] = self._faults.get(fault, 0) + count
        if not self._first:
            self._first = " ".join(f"{fault}: {message}".split())[:_LONGEST_MESSAGE]


def _check(request: DraftRequest, draft: Draft, vocab_size: int) -> None:
    """Look at everything that the engine will rely on.

    Raises:
        ValueError: The draft is malformed.
    """
    if not isinstance(draft, Draft) or not isinstance(draft.tree, TokenTree):
        raise ValueError(f"a {type(draft).__name__} that is no draft")
    if draft.tree.tokens.dtype.kind != "i":
        raise ValueError(f"tokens of type {draft.tree.tokens.dtype}")
    draft.tree.check()
    tokens = draft.tree.tokens.tolist()
    last = request.row.token(request.row.committed - 1)
    if tokens[0] != last:
        raise ValueError(f"the root is token {tokens[0]}, the row ends with {last}")
    if max(tokens) >= vocab_size:
        raise ValueError(f"token {max(tokens)} is beyond the vocabulary of {vocab_size}")
    if draft.sources is not None and draft.sources.shape != (len(tokens),):
        raise ValueError(f"sources of {len(draft.sources)} nodes for a tree of {len(tokens)}")
    if not (draft.passes >= 0 and 0.0 <= draft.flops < math.inf and draft.discarded >= 0):
        costs = f"{draft.passes} passes, {draft.flops} FLOPs and {draft.discarded} discarded tokens"
        raise ValueError(f"costs of {costs}")


def _root(request: DraftRequest) -> Draft:
    """No proposal."""
    row = request.row
    return Draft(TokenTree.root(row.token(row.committed - 1)))
