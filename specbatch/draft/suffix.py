"""Drafts without a model: what followed the last time the text stood as it stands now.

SuffixDecoding (Oliaro et al. 2024): the longest suffix of a row that occurred before, in its own prompt
and output or in earlier outputs of the job, proposes the tokens that followed there, as a tree with
counted probabilities. The index of earlier outputs is bounded; what leaves it first is the oldest.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specbatch.draft.base import Draft, DraftRequest, Observed, TreeShape
from specbatch.draft.continuations import Continuations, Noise, grow
from specbatch.draft.occurrences import LONG_RUN, MAX_MATCH, Match, TokenHistory
from specbatch.draft.trust import OTHER_OUTPUTS, OWN_TEXT, Reliability
from specbatch.randomness import gumbel_of_few
from specbatch.rows import Row
from specbatch.tree import TokenTree

_CONTEXT = 8
"""Tokens before an output that enter the index with it: the end of the prompt leads to the beginning."""

_REMEMBERED = 4096
"""Rows of which is known how much of their output is in the index: a preempted row comes back."""


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """What a suffix drafter may do.

    Attributes:
        min_match: Shortest match from which it drafts, tokens.
        length_factor: It drafts at most this many tokens deep for each token of the match (α of
            SuffixDecoding): a short match says little about what comes much later.
        index_tokens: Bound of the job-wide index, tokens; about 40 bytes each.
    """

    min_match: int = 2
    length_factor: float = 2.0
    index_tokens: int = 1 << 20


@dataclass(slots=True)
class _Proposal:
    """What was proposed last, until the text shows what it was worth."""

    committed: int
    match: Match
    source: Reliability
    grown: Continuations


@dataclass(slots=True)
class _RowText:
    """A row's text so far."""

    history: TokenHistory
    outputs: int = 0
    proposal: _Proposal | None = None


class SuffixDrafter:
    """See the module.

    Args:
        options: Bounds.
    """

    name = "suffix"
    captured: tuple[int, ...] = ()

    def __init__(self, options: SuffixOptions = SuffixOptions()) -> None:
        self._options = options
        self.begin()

    @property
    def num_bytes(self) -> int:
        """Memory of the index and of the texts of rows in flight."""
        return self._index.num_bytes + sum(text.history.num_bytes for text in self._rows.values())

    def begin(self) -> None:
        """Start with an empty index, and with the assumed hit rates."""
        self._index = TokenHistory(self._options.index_tokens, self._options.min_match)
        self._rows: dict[Row, _RowText] = {}
        self._indexed: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._own = {sampled: Reliability(OWN_TEXT) for sampled in (False, True)}
        self._others = {sampled: Reliability(OTHER_OUTPUTS) for sampled in (False, True)}

    def observe(self, observed: Sequence[Observed]) -> None:
        """Nothing to do: texts are caught up with when they are asked about."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """One tree for each row; the root alone where no match is long enough."""
        return [Draft(self._propose(request)) for request in requests]

    def forget(self, row: Row) -> None:
        """Drop the row's text; what it wrote enters the job-wide index."""
        text = self._rows.pop(row, None)
        if text is not None:
            _settle(text, row)
        name = (row.prompt.row_index, row.prompt.key)
        start, end = self._indexed.pop(name, 0), len(row.output)
        if start < end:
            first = len(row.prompt.token_ids) + start
            context = [row.token(position) for position in range(max(0, first - _CONTEXT), first)]
            self._index.add(context, row.output[start:])
        self._indexed[name] = end
        if len(self._indexed) > _REMEMBERED:
            self._indexed.popitem(last=False)

    def _propose(self, request: DraftRequest) -> TokenTree:
        row = request.row
        text = self._follow(row)
        context = text.history.tail(MAX_MATCH)
        noise, best = _noise(request), None
        for match, history, source in self._matches(row, text.history, context):
            shape = self._shape(request.shape, match)
            grown = grow(context[-1], history.text, match, shape, source.chances, noise)
            if best is None or grown.expected > best.grown.expected:
                best = _Proposal(row.committed, match, source, grown)
        text.proposal = best
        return TokenTree.root(context[-1]) if best is None else best.grown.tree()

    def _matches(
        self, row: Row, own: TokenHistory, context: array[int]
    ) -> Iterator[tuple[Match, TokenHistory, Reliability]]:
        """Matches worth a tree: that in the own text, and that in the index unless it is shorter."""
        sampled = row.prompt.params.temperature > 0.0
        inside = own.find(context)
        if inside is not None:
            yield inside, own, self._own[sampled]
            if inside.length >= LONG_RUN:
                return  # as good as any
        earlier = self._index.find(context)
        if earlier is not None and (inside is None or earlier.length >= inside.length):
            yield earlier, self._index, self._others[sampled]

    def _shape(self, shape: TreeShape, match: Match) -> TreeShape:
        """No deeper than a match of this length is good for."""
        levels = min(shape.levels, math.ceil(self._options.length_factor * match.length))
        return replace(shape, levels=max(1, levels))

    def _follow(self, row: Row) -> _RowText:
        """The row's text, caught up with what was committed."""
        text = self._rows.get(row)
        if text is None:
            prompt = row.prompt
            room = max(len(prompt.token_ids) + prompt.params.max_tokens, row.committed)
            text = self._rows[row] = _RowText(TokenHistory(room, self._options.min_match))
            for token in prompt.token_ids:
                text.history.append(token)
        _settle(text, row)
        for token in row.output[text.outputs :]:
            text.history.append(token)
        text.outputs = len(row.output)
        return text


def _settle(text: _RowText, row: Row) -> None:
    """Learn from what became of the last proposal."""
    proposal, text.proposal = text.proposal, None
    if proposal is None:
        return
    grown, node, length = proposal.grown, 0, proposal.match.length
    children = {key: i for i, key in enumerate(zip(grown.parents, grown.tokens, strict=True))}
    for position in range(proposal.committed, row.committed):
        if not grown.seen[node]:
            return
        child = children.get((node, row.token(position)))
        proposal.source.record(length, grown.seen[node], child is not None)
        if child is None:
            return
        node, length = child, length + 1


def _noise(request: DraftRequest) -> Noise | None:
    """The draws with which the target will decide about the row's candidates."""
    if request.row.prompt.params.temperature == 0.0:
        return None
    stream, first = request.stream, request.row.committed - 1
    return lambda depth, tokens: gumbel_of_few(stream, first + depth, tokens)
