"""The kinds of values that settings may have: how they are parsed and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POLICY = re.compile(r"off|priority|off\+deferral|eagle|fixed(:[1-9][0-9]{0,3})?|dspark|adaserve|auto")
POLICIES = "off, priority, off+deferral, fixed, fixed:N, eagle, dspark, adaserve, auto"
WEIGHS_COSTS = ("auto", "adaserve", "dspark")
"""Policies that decide by what steps cost, and can go for joules as well as for seconds."""

_PERCENT = re.compile(r"\d+(?:\.\d+)?\s*%")


def parse_bytes(text: str) -> int:
    """Turn ``"2GiB"``, ``"512 MB"`` or ``"4096"`` into a number of bytes, at least one.

    Raises:
        ValueError: The text is not a size.
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a size such as 2GiB, 512MB or auto")
    number, unit, binary = match.groups()
    base = 1024 if binary else 1000
    size = float(number) * base ** " kmgt".index(unit.lower() or " ")
    if not 1 <= size < 2**63:
        raise ValueError("expected at least one byte, and fewer than 2^63")
    return int(size)


def parse_memory(value: object) -> object:
    """Sizes from text; ``auto`` stays what it is."""
    if isinstance(value, bool) or (isinstance(value, int) and value < 1):
        raise ValueError("expected a size such as 2GiB, 512MB or auto")
    return parse_bytes(value) if isinstance(value, str) and value != "auto" else value


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


def as_tuple(value: object) -> object:
    """One string is a list of one."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def parse_failures(value: object) -> object:
    """Accept a count or a percentage; digits in a string (environment, flag) are a count."""
    if isinstance(value, bool):
        raise ValueError("expected a number of rows or a percentage such as 5%")
    if not isinstance(value, str):
        return value
    if value.strip().isdigit():
        return int(value)
    if not _PERCENT.fullmatch(value.strip()):
        raise ValueError("expected a number of rows or a percentage such as 5%")
    return value.strip()


def unwritable(text: str) -> str | None:
    """What keeps a text from being written or passed on; ``None`` for good ones."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"is not valid Unicode: {text!a}"
    return None


Integer = Annotated[int, BeforeValidator(_no_bool)]
Positive = Annotated[Integer, Field(ge=1)]
Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Strings = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
Overload = Literal["late", "degrade", "reject"]


class Tier(BaseModel):
    """A named latency class. Its SLOs hold for rows that do not bring their own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    priority: Annotated[Integer, Field(ge=0, le=1000, description="lower is more urgent")]
    deadline_s: Annotated[Number, Field(gt=0, description="seconds after the row's arrival")] | None = None
    tpot_slo_ms: Annotated[Number, Field(gt=0, description="milliseconds per output token")] | None = None
    ttft_slo_ms: Annotated[Number, Field(gt=0, description="milliseconds to the first token")] | None = None
    on_overload: Annotated[
        Overload, Field(description="what becomes of a row whose promises cannot be kept")
    ] = "late"
    min_progress: (
        Annotated[Positive, Field(description="once begun, a row advances in one of so many steps")] | None
    ) = None
    max_wait: (
        Annotated[Number, Field(gt=0, description="a row that has waited so many seconds goes next")] | None
    ) = None
    share: (
        Annotated[Number, Field(gt=0, le=1, description="part of the computed tokens that is guaranteed")]
        | None
    ) = None


class Owner(BaseModel):
    """Limits of one owner; the default tier is open to everybody."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tiers: (
        Annotated[Strings, Field(description="tiers that the owner's rows may use; default: all")] | None
    ) = None
    quota: Annotated[Positive, Field(description="computed tokens per run, then the default tier")] | None = (
        None
    )


def check_owners(owners: Mapping[str, Owner], tiers: Mapping[str, Tier]) -> None:
    """Refuse tiers that nobody has heard of.

    Raises:
        ValueError: Names the owner and the tier.
    """
    for name, owner in owners.items():
        for tier in owner.tiers or ():
            if tier not in tiers:
                raise ValueError(f"owners.{name}: tier '{tier}' is not one of {', '.join(tiers)}")


def check_shares(tiers: Mapping[str, Tier]) -> None:
    """Refuse to promise more than there is.

    Raises:
        ValueError: The shares add up to more than one.
    """
    shares = {name: tier.share for name, tier in tiers.items() if tier.share is not None}
    if sum(shares.values()) > 1.0 + 1e-9:
        listed = ", ".join(f"{name} {share:g}" for name, share in shares.items())
        raise ValueError(f"the shares of the tiers add up to more than 1 ({listed})")


def builtin_tiers() -> dict[str, Tier]:
    """Tiers every job has. They order rows and promise nothing: SLOs come from the job or the row."""
    return {"interactive": Tier(priority=0), "standard": Tier(priority=10), "batch": Tier(priority=20)}


def with_builtin_tiers(value: object) -> object:
    """The job's own tiers beside those that every job has."""
    return {**builtin_tiers(), **value} if isinstance(value, Mapping) else value


def check_policy(value: str) -> str:
    """Refuse what is no policy.

    Raises:
        ValueError: Names those that are.
    """
    if not _POLICY.fullmatch(value):
        raise ValueError(f"available: {POLICIES}")
    return value
