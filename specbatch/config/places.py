"""Where a run's rows come from and go: the shard it answers, and the pattern of its directory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

DATE, SHARD = "{date}", "{shard}"
_PLACEHOLDER = re.compile(r"\{\w*\}")
_SHARD = re.compile(r"([1-9]\d{0,8})\s*/\s*([1-9]\d{0,8})")


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several equal parts of a job.

    Attributes:
        number: From 1.
        count: How many there are.
    """

    number: int
    count: int

    @classmethod
    def of(cls, text: str | None) -> Shard | None:
        """Read ``i/n``; ``None`` is the whole job.

        Raises:
            ValueError: It is no part of anything.
        """
        if text is None:
            return None
        match = _SHARD.fullmatch(text.strip())
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError("expected i/n with i from 1 to n, e.g. 2/3")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def file_name(self) -> str:
        """``2-of-3``, where a slash cannot be."""
        return f"{self.number}-of-{self.count}"


def spelled_shard(text: str) -> str:
    """A shard in its one spelling.

    Raises:
        ValueError: It is no part of anything.
    """
    return str(Shard.of(text))


def check_out(out: Path | None, shard: Shard | None) -> None:
    """Refuse placeholders that mean nothing.

    Raises:
        ValueError: Names the one.
    """
    known = {DATE, SHARD}
    for name in _PLACEHOLDER.findall("" if out is None else str(out)):
        if name not in known:
            raise ValueError(f"out: there is no {name}; a run directory may have {DATE} and {SHARD} in it")
    if out is not None and SHARD in str(out) and shard is None:
        raise ValueError(f"out has {SHARD} in it, but no shard is given; say which with --shard i/n")


def filled_in(out: Path, day: date | None, shard: Shard | None) -> Path:
    """A pattern with its placeholders replaced; a ``day`` of ``None`` leaves that one."""
    text = str(out)
    if shard is not None:
        text = text.replace(SHARD, shard.file_name)
    return Path(text if day is None else text.replace(DATE, day.isoformat()))
