"""From chosen tokens to committed text: where a row ends, and the answer it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specbatch.errors import RowFault
from specbatch.randomness import Purpose, Stream
from specbatch.rows import Answer, FinishReason, Row, Status
from specbatch.text.stream import TextStream
from specbatch.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Voice:
    """What a row needs besides its tokens to go on speaking.

    Attributes:
        stream: The row's randomness.
        text: Incremental text, only for rows with stop strings.
    """

    stream: Stream
    text: TextStream | None

    @classmethod
    def of(cls, row: Row, seed: int, tokenizer: Tokenizer) -> Voice:
        """The row's own seed, where it has one, replaces its key in the randomness address."""
        params = row.prompt.params
        address = row.prompt.key if params.seed is None else f"seed:{params.seed}"
        text = TextStream(tokenizer, params.stop) if params.stop else None
        return cls(Stream.at(seed, address, Purpose.TOKEN), text)


def commit_tokens(
    row: Row, voice: Voice, tokens: Sequence[int], eos_ids: frozenset[int]
) -> FinishReason | None:
    """Append tokens until the row ends; what lies behind its end is dropped.

    An end-of-sequence token or a stop string beats the length limit.

    Args:
        row: Gains at least one token.
        voice: The row's voice.
        tokens: Tokens the target chose, in order.
        eos_ids: End-of-sequence tokens; the one that ends a row is part of its tokens.

    Returns:
        Why the row ended, or ``None`` if it goes on.
    """
    for token in tokens:
        row.output.append(token)
        if token in eos_ids or (voice.text is not None and voice.text.push(token)):
            return FinishReason.STOP
        if len(row.output) >= row.prompt.params.max_tokens:
            return FinishReason.LENGTH
    return None


def finished_answer(row: Row, voice: Voice, reason: FinishReason, tokenizer: Tokenizer, now: float) -> Answer:
    """The answer of a row that ended by itself."""
    text = tokenizer.decode(row.output) if voice.text is None else voice.text.finish()
    status = Status.OK if reason is FinishReason.STOP else Status.TRUNCATED
    account = _account(row, status, now)
    return replace(account, finish_reason=reason, text=text, token_ids=tuple(row.output))


def failed_answer(row: Row, status: Status, fault: RowFault, now: float) -> Answer:
    """The answer of a row that was ended; its tokens are dropped, its costs are kept."""
    return replace(_account(row, status, now), error_code=fault.code, error_message=fault.message)


def _account(row: Row, status: Status, now: float) -> Answer:
    """Who the row is and what it cost."""
    prompt = row.prompt
    return Answer(
        row_index=prompt.row_index,
        key=prompt.key,
        id=prompt.id,
        tier=prompt.tier if prompt.demotion is None else prompt.demotion.asked,
        status=status,
        prompt_tokens=len(prompt.token_ids),
        cached_prompt_tokens=row.cached_prompt_tokens,
        slo=row.promised,
        arrival=prompt.arrival,
        admitted_at=row.admitted_at,
        first_token_at=row.first_token_at,
        finished_at=now,
        num_preemptions=row.num_preemptions,
        recomputed_tokens=row.recomputed_tokens,
        target_passes=row.target_passes,
        prefill_flops=row.prefill_flops,
        verify_flops=row.verify_flops,
        drafts=replace(row.drafts, accept_histogram=list(row.drafts.accept_histogram)),
        served_tier=None if row.standing.tier is None and prompt.demotion is None else row.tier,
        tier_reason=_tier_reason(row),
        miss=row.standing.miss,
        share=replace(row.share) if row.target_passes else None,
    )


def _tier_reason(row: Row) -> str | None:
    """Why a row did not run under the tier that it asked for."""
    if row.standing.tier is not None:
        return "degraded"
    return None if row.prompt.demotion is None else row.prompt.demotion.reason
