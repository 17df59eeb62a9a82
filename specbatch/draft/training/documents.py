"""Documents: what a head is trained on, and how the target writes them, token by token."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from specbatch.draft.training.opening import Opening
from specbatch.randomness import Purpose, Stream
from specbatch.rows import SamplingParams

_SHORTEST_MESSAGE = 3
_LOOP_TOKENS = 48
_LONGEST_PERIOD = 32
_CHECK_EVERY = 8


class Mark(IntEnum):
    """Who wrote a token."""

    TEMPLATE = 0
    USER = 1
    ANSWER = 2


class Fate(StrEnum):
    """What became of a document."""

    KEPT = "kept"
    EMPTY = "empty"
    LOOPS = "loops"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Style:
    """How the target writes.

    Attributes:
        user: For the user's words; ``max_tokens`` cuts them.
        answers: Taken in turn by the documents.
        end_ids: Tokens that end a turn.
    """

    user: SamplingParams
    answers: tuple[SamplingParams, ...]
    end_ids: frozenset[int]


@dataclass(slots=True, eq=False)
class Document:
    """A document in the making. Given documents have all their tokens from the start.

    Attributes:
        index: Address of its randomness and its place in the data.
        stream: Its randomness.
        tokens: Token ids so far.
        marks: Who wrote them.
        computed: Leading tokens that went through the target.
        params: How the next token is sampled; ``None`` when there is none to come.
        fate: Whether it is any use.
    """

    index: int
    stream: Stream
    tokens: list[int]
    marks: list[Mark]
    computed: int = 0
    params: SamplingParams | None = None
    fate: Fate = Fate.KEPT

    @property
    def pending(self) -> int:
        """Tokens that have not gone through the target."""
        return len(self.tokens) - self.computed

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.fate is not Fate.KEPT or (self.params is None and not self.pending)

    def take(self, token: int) -> None:
        """Append the token that was sampled with ``params``.

        Raises:
            NotImplementedError: A given document samples none.
        """
        raise NotImplementedError("a given document has all its tokens")


@dataclass(slots=True, eq=False)
class Conversation(Document):
    """A document that the target writes: the user's words first, then the answer to them."""

    opening: Opening = field(default_factory=lambda: Opening((), ()))
    answer: SamplingParams = field(default_factory=SamplingParams)
    end_ids: frozenset[int] = frozenset()
    turn: Mark = Mark.USER
    written: int = 0

    def take(self, token: int) -> None:
        """Append a sampled token; move on to the next turn where it ends one."""
        assert self.params is not None
        if self.turn is Mark.USER:
            self._take_user(token)
            return
        self._append(token)
        if token in self.end_ids or self.written >= self.params.max_tokens or self._loops():
            self.params = None

    def _take_user(self, token: int) -> None:
        assert self.params is not None
        ended = token in self.end_ids
        if not ended:
            self._append(token)
            ended = self.written >= self.params.max_tokens
        if self._loops():
            self.fate = Fate.LOOPS
        elif ended and self.written < _SHORTEST_MESSAGE:
            self.fate = Fate.EMPTY
        elif ended:
            self.tokens.extend(self.opening.after)
            self.marks.extend([Mark.TEMPLATE] * len(self.opening.after))
            self.turn, self.written, self.params = Mark.ANSWER, 0, self.answer

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        self.marks.append(self.turn)
        self.written += 1

    def _loops(self) -> bool:
        """Whether the turn has gone round in circles for a while; looked at now and then."""
        if self.written < _LOOP_TOKENS or self.written % _CHECK_EVERY:
            return False
        return repeats(self.tokens[-min(self.written, 3 * _LONGEST_PERIOD) :])


def repeats(tokens: list[int]) -> bool:
    """Whether a list ends in the third round of something, and in at least ``48`` tokens of it."""
    for period in range(1, _LONGEST_PERIOD + 1):
        span = max(_LOOP_TOKENS, 3 * period)
        tail = tokens[-span:]
        if len(tail) == span and tail[period:] == tail[:-period]:
            return True
    return False


def new_conversation(index: int, seed: int, style: Style, openings: tuple[Opening, ...]) -> Conversation:
    """Document number ``index`` of a seed: three of four begin with the first opening, answers take turns."""
    opening = openings[-1] if index // len(style.answers) % 4 == 3 else openings[0]
    return Conversation(
        index=index,
        stream=document_stream(seed, index),
        tokens=list(opening.before),
        marks=[Mark.TEMPLATE] * len(opening.before),
        params=style.user,
        opening=opening,
        answer=style.answers[index % len(style.answers)],
        end_ids=style.end_ids | {opening.after[0]},
    )


def given_document(index: int, prompt: list[int], answer: list[int]) -> Document:
    """A document that exists already: a row of a past run."""
    marks = [Mark.USER] * len(prompt) + [Mark.ANSWER] * len(answer)
    return Document(index, document_stream(0, index), [*prompt, *answer], marks)


def document_stream(seed: int, index: int) -> Stream:
    """Randomness of one document."""
    return Stream.at(seed, f"train-draft/{index}", Purpose.TOKEN)
