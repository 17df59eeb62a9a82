"""Numbers as people read them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def count(number: int) -> str:
    """``1234567`` → ``1,234,567``."""
    return f"{number:,}"


def size(number: float) -> str:
    """Bytes with a binary unit: ``1536`` → ``1.5 KiB``."""
    for unit in _UNITS[:-1]:
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" or abs(number) >= 100 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} {_UNITS[-1]}"


def significant(value: float) -> str:
    """Three digits, without an exponent: ``0.0123`` → ``0.01``, ``12.34`` → ``12.3``."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def seconds(value: float) -> str:
    """A promised time, in milliseconds where seconds had no digits left: ``1.2`` → ``1.20 s``."""
    return f"{significant(value)} s" if abs(value) >= 0.1 else f"{significant(1e3 * value)} ms"
