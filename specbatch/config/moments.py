"""Times of day with their zone: when the whole run is to be over."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_TEXT = re.compile(r"(?:(\d{4}-\d\d-\d\d)[ T])?(\d\d?:\d\d(?::\d\d)?)\s*(\S+)?")
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")
_FIRST_YEAR, _LAST_YEAR = 1970, 9998
_EXAMPLES = "write 06:00 Europe/Berlin, 06:00 UTC or 2026-12-01 06:00 +01:00"


@dataclass(frozen=True, slots=True)
class Moment:
    """A time of day in a zone, on one date or on every date.

    Each date has exactly one such moment: the first at which the zone's clock shows this time or has
    passed it. Where the clock is put forward over the time, that is the moment of the change; where it
    is put back and shows the time twice, the first of the two.

    Attributes:
        clock: Time of day.
        zone: What it means.
        day: The date; ``None`` is whichever comes next.
    """

    clock: time
    zone: tzinfo
    day: date | None = None

    @classmethod
    def parse(cls, text: str, zone: str | None = None) -> Moment:
        """Read ``[YYYY-MM-DD] HH:MM[:SS] [ZONE]``.

        Args:
            text: As written; a zone in it comes first.
            zone: Of a text without one.

        Raises:
            ValueError: It is no time, or nobody says in which zone.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"expected a time of day and its zone: {_EXAMPLES}")
        day, clock, own = match.groups()
        named = own or zone
        if named is None:
            raise ValueError(f"say in which time zone (or set tz): {_EXAMPLES}")
        try:
            clock_time = time.fromisoformat(clock.rjust(8 if clock.count(":") > 1 else 5, "0"))
            found = cls(clock_time, zone_of(named), None if day is None else date.fromisoformat(day))
        except ValueError as error:
            raise ValueError(f"{error}; {_EXAMPLES}") from None
        if found.day is not None and not _FIRST_YEAR <= found.day.year <= _LAST_YEAR:
            raise ValueError(f"expected a year from {_FIRST_YEAR} to {_LAST_YEAR}")
        return found

    def after(self, start: float) -> float:
        """The moment on its date, or else the first one later than ``start``; Unix seconds both."""
        if self.day is not None:
            return self._on(self.day)
        # Clocks that jump may already be at another date than their zone's usual offset says.
        today = datetime.fromtimestamp(start, self.zone).date()
        days = (today + timedelta(days=number) for number in range(-1, 4))
        return next(moment for moment in map(self._on, days) if moment > start)

    def spelled(self, start: float) -> str:
        """The moment as ``2026-12-01 06:00:00 CET``, in its own zone."""
        return f"{datetime.fromtimestamp(self.after(start), self.zone):%Y-%m-%d %H:%M:%S %Z}"

    def _on(self, day: date) -> float:
        wall = datetime.combine(day, self.clock, self.zone)
        first, second = (wall.replace(fold=fold).astimezone(UTC).timestamp() for fold in (0, 1))
        if second >= first:
            return first
        # The clock never shows this time: the offset changes between the two readings of it.
        before, after = second, first
        while after - before > 0.5:
            middle = (before + after) / 2
            shows = datetime.fromtimestamp(middle, self.zone).replace(tzinfo=None)
            before, after = (middle, after) if shows < wall.replace(tzinfo=None) else (before, middle)
        return float(round(after))


def zone_of(name: str) -> tzinfo:
    """A zone by name (``Europe/Berlin``, ``UTC``, ``Z``) or offset (``+01:00``).

    Raises:
        ValueError: There is no such zone.
    """
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        sign, hours, minutes = offset.groups()
        distance = timedelta(hours=int(hours), minutes=int(minutes))
        return timezone(-distance if sign == "-" else distance)
    try:
        return UTC if name in ("Z", "UTC") else ZoneInfo(name)  # UTC needs no data of the system
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"'{name}' is not a time zone") from None


def date_of(seconds: float, zone: str | None) -> date:
    """The date at a Unix time, in a zone or in the machine's own (``None``).

    Raises:
        ValueError: There is no such zone.
    """
    return datetime.fromtimestamp(seconds, None if zone is None else zone_of(zone)).date()
