"""One input row: canonical cells → ``RawPrompt``, or a ``RowFault`` that names the column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from specbatch.config import JobConfig, Owner, Tier
from specbatch.errors import RowFault
from specbatch.rows import Demotion, Message, RawPrompt, SamplingParams
from specbatch.slo import Slo, earlier
from specbatch.table import template

Cells = Mapping[str, object]
"""One row of canonical columns as Python values: bytes, numbers, lists; ``None`` where null."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must satisfy, in code and in words."""

    holds: Callable[[float], bool]
    words: str


PARAMETER_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "max_tokens": Rule(lambda value: value >= 1, "an integer of at least 1"),
        "temperature": Rule(lambda value: value >= 0, "a number of at least 0 (0 is greedy)"),
        "top_k": Rule(lambda value: value >= 0, "an integer of at least 0 (0 keeps all)"),
        "top_p": Rule(lambda value: 0 < value <= 1, "a number above 0, at most 1"),
        "min_p": Rule(lambda value: 0 <= value <= 1, "a number from 0 to 1"),
        "repetition_penalty": Rule(lambda value: value > 0, "a number above 0"),
        "seed": Rule(lambda value: 0 <= value < 2**63, "an integer from 0 to 2^63 - 1"),
    }
)
_SHOWN_CHARACTERS = 60
_INTEGERS = frozenset({"max_tokens", "top_k", "seed"})
_ANY = Rule(lambda _value: True, "a finite number")
_POSITIVE = Rule(lambda value: value > 0, "a number above 0")
_NOT_NEGATIVE = Rule(lambda value: value >= 0, "a number of at least 0")
_DRAFT_CAP = Rule(lambda value: value >= 0, "an integer of at least 0 (0 decodes plainly)")


@dataclass(frozen=True, slots=True)
class RowParser:
    """Turns cells into a ``RawPrompt`` under the job's defaults.

    Attributes:
        sampling: Parameters of a row that sets none.
        tiers: By name.
        default_tier: Of rows that name none.
        epoch: Unix time of the run clock's zero, seconds; turns ``deadline`` into run time.
        owners: Limits by owner.
        until: When the whole run is to be over, seconds on the run clock: no deadline is later.
    """

    sampling: SamplingParams
    tiers: Mapping[str, Tier]
    default_tier: str
    epoch: float
    owners: Mapping[str, Owner] = field(default_factory=dict)
    until: float | None = None

    @classmethod
    def of(cls, config: JobConfig, epoch: float) -> RowParser:
        """The parser of a job whose first start was at ``epoch`` (Unix seconds)."""
        end = config.run_deadline(epoch)
        until = None if end is None else end - epoch
        return cls(config.sampling, config.tiers, config.default_tier, epoch, config.owners, until)

    def parse(self, row_index: int, key: str, cells: Cells, demoted: str | None = None) -> RawPrompt:
        """Check and convert one row.

        Args:
            row_index: Its place in the input.
            key: Its key.
            cells: Its canonical columns.
            demoted: Why it gets the default tier, whatever it asks for.

        Raises:
            RowFault: ``null_prompt``, ``empty_prompt``, ``ambiguous_prompt``, ``invalid_messages``,
                ``invalid_utf8``, ``unknown_tier`` or ``invalid_value``.
        """
        asked, owner = self.tier_name(cells), _text("owner", cells)
        reason = demoted if self.allows(owner, asked) else "not_allowed"
        tier = asked if reason is None else self.default_tier
        arrival = _checked("arrival_s", cells, _NOT_NEGATIVE)
        arrival = 0.0 if arrival is None else arrival
        return RawPrompt(
            row_index=row_index,
            key=key,
            id=_text("id", cells),
            tier=tier,
            content=content_of(cells),
            params=self.params(cells),
            slo=self.slo(cells, self.tiers[tier], arrival),
            arrival=arrival,
            owner=owner,
            max_draft_tokens=_draft_cap(cells),
            demotion=None if reason is None or tier == asked else Demotion(asked, reason),
        )

    def allows(self, owner: str | None, tier: str) -> bool:
        """Whether an owner's rows may use a tier; the default tier is open to everybody."""
        limits = None if owner is None else self.owners.get(owner)
        allowed = None if limits is None else limits.tiers
        return allowed is None or tier in allowed or tier == self.default_tier

    def params(self, cells: Cells) -> SamplingParams:
        """The row's sampling parameters over the job's.

        Raises:
            RowFault: ``invalid_value``.
        """
        own: dict[str, object] = {}
        for name, rule in PARAMETER_RULES.items():
            value = _checked(name, cells, rule)
            if value is not None:
                own[name] = _whole(name, cells[name], rule) if name in _INTEGERS else value
        if cells.get("stop") is not None:
            own["stop"] = _stop(cells["stop"])
        return replace(self.sampling, **own) if own else self.sampling  # type: ignore[arg-type]

    def slo(self, cells: Cells, tier: Tier, arrival: float) -> Slo:
        """The row's promises, the tier's where the row has none; the earliest deadline holds.

        Raises:
            RowFault: ``invalid_value``.
        """
        wall = _checked("deadline", cells, _ANY)
        relative = _checked("deadline_s", cells, _ANY)
        own = [
            value for value in (None if wall is None else wall - self.epoch, relative) if value is not None
        ]
        deadline = min(own, default=None if tier.deadline_s is None else arrival + tier.deadline_s)
        tpot = _checked("tpot_slo_ms", cells, _POSITIVE)
        ttft = _checked("ttft_slo_ms", cells, _POSITIVE)
        return Slo(
            deadline=earlier(deadline, self.until),
            tpot_ms=tier.tpot_slo_ms if tpot is None else tpot,
            ttft_ms=tier.ttft_slo_ms if ttft is None else ttft,
            until=self.until,
        )

    def tier_name(self, cells: Cells) -> str:
        """The row's tier.

        Raises:
            RowFault: ``unknown_tier``.
        """
        name = _text("tier", cells)
        if name is None:
            return self.default_tier
        if name not in self.tiers:
            known = ", ".join(self.tiers)
            raise RowFault("unknown_tier", f"column `tier`: {shown(name)} is not a tier; use one of {known}")
        return name


def content_of(cells: Cells) -> str | tuple[Message, ...]:
    """The prompt string or the conversation.

    Raises:
        RowFault: Both or neither given, empty, malformed, or a template that could not be filled in.
    """
    fault = _text(template.FAULT, cells)
    if fault is not None:
        raise RowFault("template_error", fault)
    prompt, messages = cells.get("prompt"), cells.get("messages")
    if prompt is not None and messages is not None:
        raise RowFault("ambiguous_prompt", "columns `prompt` and `messages` are both set; leave one null")
    if messages is not None:
        return _conversation(messages)
    text = _text("prompt", cells)
    if text is None:
        raise RowFault("null_prompt", "column `prompt` is null; give every row a prompt")
    if not text:
        raise RowFault("empty_prompt", "column `prompt` is empty; give every row a prompt")
    return text


def shown(value: object) -> str:
    """A cell in quotes for a message, cut where it would fill the screen."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return f"'{text}'" if len(text) <= _SHOWN_CHARACTERS else f"'{text[:_SHOWN_CHARACTERS]}...'"


def plain(value: object) -> object:
    """Nested Parquet values as a chat template expects them.

    Maps arrive as lists of pairs and become dictionaries. A struct shows every field of its column,
    null where a turn has none (``tool_calls`` of a user turn): such fields are dropped, because
    templates ask whether they are present. ``content`` stays, null or not.
    """
    if isinstance(value, Mapping):
        items = value.items()
        return {str(key): plain(item) for key, item in items if item is not None or key == "content"}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):
            return plain(dict(value))
        return [plain(item) for item in value]
    return value


def _conversation(messages: object) -> tuple[Message, ...]:
    turns = messages if isinstance(messages, list) else []
    if not turns:
        raise RowFault("empty_prompt", "column `messages` has no turn; give every row at least one")
    result: list[Message] = []
    for number, raw in enumerate(turns, 1):
        turn = plain(raw)
        if not isinstance(turn, Mapping) or not isinstance(turn.get("role"), str):
            raise RowFault(
                "invalid_messages", f"column `messages`, turn {number}: no `role`; name who speaks"
            )
        result.append({str(key): value for key, value in turn.items()})
    return tuple(result)


def _text(name: str, cells: Cells) -> str | None:
    value = cells.get(name)
    if not isinstance(value, bytes):
        return None
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise RowFault(
            "invalid_utf8", f"column `{name}` is not UTF-8 at byte {error.start}; re-encode it"
        ) from None


def _checked(name: str, cells: Cells, rule: Rule) -> float | None:
    value = cells.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value) or not rule.holds(value):
        raise _invalid(name, value, rule)
    return value


def _draft_cap(cells: Cells) -> int | None:
    """The row's cap on drafted tokens; none of the parameters that shape the text."""
    cap = _checked("max_draft_tokens", cells, _DRAFT_CAP)
    return None if cap is None else _whole("max_draft_tokens", cap, _DRAFT_CAP)


def _whole(name: str, value: object, rule: Rule) -> int:
    """An integer that may have come as a float (tables with nulls often store them so)."""
    if isinstance(value, float) and not value.is_integer():
        raise _invalid(name, value, rule)
    assert isinstance(value, int | float)
    return int(value)


def _stop(value: object) -> tuple[str, ...]:
    strings = tuple(value) if isinstance(value, list) else (None,)  # what could not be decoded is no list
    if not all(isinstance(item, str) and item for item in strings):
        raise RowFault("invalid_value", "column `stop` holds an empty or null string; remove it")
    return strings


def _invalid(name: str, value: object, rule: Rule) -> RowFault:
    return RowFault("invalid_value", f"column `{name}` is {value}; use {rule.words}")
