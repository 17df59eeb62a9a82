"""The nouns that travel: ``RawPrompt`` → ``Prompt`` → ``Row`` (the only mutable one) → ``Answer``.

All times are seconds on the run clock: zero is the first start of the run, later attempts continue it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from specbatch.account import DeviceShare, DraftAccount
from specbatch.slo import Slo


class Status(StrEnum):
    """How a row ended. ``OK`` and ``TRUNCATED`` carry text; the others carry an error."""

    OK = "ok"
    TRUNCATED = "truncated"
    REJECTED = "rejected"
    ERROR = "error"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class FinishReason(StrEnum):
    """Why generation ended: ``stop`` is an end-of-sequence token or a stop string."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Everything per row that shapes the text.

    Attributes:
        temperature: 0 is greedy (ties: lowest token id).
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of most likely tokens whose mass reaches this.
        min_p: Drop tokens whose probability is below this times the largest.
        repetition_penalty: Divides positive, multiplies negative logits of tokens already in the
            prompt or the output (CTRL, Keskar et al. 2019, section 4.1).
        max_tokens: Upper bound on output tokens, at least 1.
        stop: Strings that end the text; the match itself is not part of the output.
        seed: Replaces the row key in the randomness address (``None``: the row key is used).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int | None = None


Message = Mapping[str, object]
"""One chat turn as plain Python values: at least ``role`` and ``content``."""


@dataclass(frozen=True, slots=True)
class Demotion:
    """Why a row runs under the default tier: ``not_allowed`` or ``over_quota`` for its owner."""

    asked: str
    reason: str


@dataclass(slots=True)
class Standing:
    """What became of a row's promises in the engine.

    Attributes:
        tier: Whose promises it runs under since its own could not be kept; ``None``: as it came.
        promised: What was promised before that.
        lost: Promises that cannot be kept and count no more, by their names in :class:`Slo`.
        miss: Why: ``hopeless`` (not even alone from the beginning), ``overload`` (not beside the rows before
            it), ``waited`` (time ran out before it began) or ``slow`` (time ran out while it was written).
    """

    tier: str | None = None
    promised: Slo | None = None
    lost: frozenset[str] = frozenset()
    miss: str | None = None


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """One input row as read from the table, before chat template and tokenizer.

    Attributes:
        content: The prompt string, or the conversation as plain Python values.
        max_draft_tokens: See :class:`Prompt`; it changes no text, and so is none of the ``params``.
    """

    row_index: int
    key: str
    id: str | None
    tier: str
    content: str | tuple[Message, ...]
    params: SamplingParams
    slo: Slo = field(default_factory=Slo)
    arrival: float = 0.0
    owner: str | None = None
    max_draft_tokens: int | None = None
    demotion: Demotion | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One input row, tokenised and ready to be scheduled.

    Attributes:
        row_index: Position in the input; orders the output and nothing else.
        key: Resume key and randomness address: 32 hex digits over prompt, parameters, occurrence.
        token_ids: Prompt tokens, at least one.
        arrival: Before this time the row does not exist.
        max_draft_tokens: Most tokens drafted for it in one step; ``None`` leaves it to the policy.
        demotion: Set where ``tier`` is not the one that the row asked for.
    """

    row_index: int
    key: str
    id: str | None
    tier: str
    token_ids: tuple[int, ...]
    params: SamplingParams
    slo: Slo = field(default_factory=Slo)
    arrival: float = 0.0
    owner: str | None = None
    max_draft_tokens: int | None = None
    demotion: Demotion | None = None


@dataclass(slots=True, eq=False)
class Row:
    """A prompt inside the engine. Only committed tokens ever enter it.

    Attributes:
        pages: Page numbers that hold this row's keys and values, in logical order.
        cached: How many leading tokens of prompt + output have keys and values stored.
        high_water: Most tokens ever cached; computing below it is recomputation.
    """

    prompt: Prompt
    output: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    cached: int = 0
    cached_prompt_tokens: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    target_passes: int = 0
    prefill_flops: float = 0.0
    verify_flops: float = 0.0
    high_water: int = 0
    drafts: DraftAccount = field(default_factory=DraftAccount)
    standing: Standing = field(default_factory=Standing)
    share: DeviceShare = field(default_factory=DeviceShare)

    @property
    def tier(self) -> str:
        """The tier whose promises it runs under."""
        return self.standing.tier or self.prompt.tier

    @property
    def promised(self) -> Slo:
        """What its answer is held to, whatever it runs under since."""
        return self.standing.promised or self.prompt.slo

    @property
    def committed(self) -> int:
        """Number of committed tokens, prompt included."""
        return len(self.prompt.token_ids) + len(self.output)

    def token(self, position: int) -> int:
        """Committed token at a logical position (0 is the first prompt token)."""
        prompt = self.prompt.token_ids
        return prompt[position] if position < len(prompt) else self.output[position - len(prompt)]

    def tokens(self, first: int, end: int) -> list[int]:
        """Committed tokens at positions ``first`` … ``end - 1``."""
        split = len(self.prompt.token_ids)
        return [*self.prompt.token_ids[first:end], *self.output[max(0, first - split) : max(0, end - split)]]

    def check(self) -> None:
        """Assert that every output token has exactly one cause."""
        drafts = self.drafts
        drafts.check()
        caused = drafts.accepted + drafts.verifications + bool(self.output) - drafts.trimmed
        assert len(self.output) == caused, "an output token is unaccounted for"


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of one row, with its latency and its compute. Becomes one output row.

    Attributes:
        tier: The one that the row asked for; ``None`` where the job has no such tier.
    """

    row_index: int
    key: str
    id: str | None
    tier: str | None
    status: Status
    error_code: str | None = None
    error_message: str | None = None
    finish_reason: FinishReason | None = None
    text: str | None = None
    token_ids: tuple[int, ...] = ()
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    slo: Slo = field(default_factory=Slo)
    arrival: float = 0.0
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float = 0.0
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    target_passes: int = 0
    prefill_flops: float = 0.0
    verify_flops: float = 0.0
    drafts: DraftAccount = field(default_factory=DraftAccount)
    served_tier: str | None = None
    tier_reason: str | None = None
    miss: str | None = None
    share: DeviceShare | None = None

    @property
    def output_tokens(self) -> int:
        """Number of output tokens, a final end-of-sequence token included."""
        return len(self.token_ids)

    @property
    def queued_s(self) -> float | None:
        """Seconds between arrival and admission."""
        return None if self.admitted_at is None else self.admitted_at - self.arrival

    @property
    def ttft_s(self) -> float | None:
        """Seconds between arrival and the first output token."""
        return None if self.first_token_at is None else self.first_token_at - self.arrival

    @property
    def tpot_ms(self) -> float | None:
        """Mean milliseconds per output token after the first; null below two tokens."""
        if self.first_token_at is None or self.output_tokens < 2:
            return None
        return 1e3 * (self.finished_at - self.first_token_at) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """Seconds between arrival and the last token; null for rows that never ran."""
        return None if self.first_token_at is None else self.finished_at - self.arrival

    @property
    def succeeded(self) -> bool:
        """Whether the row has text."""
        return self.status in (Status.OK, Status.TRUNCATED)

    @property
    def deadline_met(self) -> bool | None:
        """Whether the row finished by its deadline; null without one."""
        if self.slo.deadline is None:
            return None
        return self.succeeded and self.finished_at <= self.slo.deadline

    @property
    def slo_met(self) -> bool | None:
        """Whether every promise was kept; null when none was made."""
        checks: list[bool] = []
        if self.slo.deadline is not None:
            checks.append(self.finished_at <= self.slo.deadline)
        if self.slo.tpot_ms is not None:
            checks.append(self.tpot_ms is None or self.tpot_ms <= self.slo.tpot_ms)
        if self.slo.ttft_ms is not None:
            checks.append(self.ttft_s is not None and 1e3 * self.ttft_s <= self.slo.ttft_ms)
        return (self.succeeded and all(checks)) if checks else None

    @property
    def miss_reason(self) -> str | None:
        """Why a promise was not kept: as in :class:`Standing`, ``failed`` or ``slow``; null if none was."""
        if self.slo_met is not False:
            return None
        return self.miss or ("slow" if self.succeeded else "failed")
