"""What somebody may have meant who misspelt the name of a command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer.core

_LETTERS_PER_SLIP = 3
_BEGINNING = 3


class SpellingGroup(typer.core.TyperGroup):
    """A group of commands that says which one may have been meant, or else which there are."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command for the first argument.

        Raises:
            click.UsageError: There is none of this name.
        """
        if not (args[0].startswith("-") or ctx.resilient_parsing or self.get_command(ctx, args[0])):
            ctx.fail(f"No such command {args[0]!r}. {_advice(args[0], list(self.commands))}")
        return super().resolve_command(ctx, args)


def _advice(typed: str, known: Sequence[str]) -> str:
    close = meant(typed, known)
    return f"Did you mean {', '.join(map(repr, close))}?" if close else f"Commands: {', '.join(known)}"


def meant(typed: str, known: Sequence[str]) -> list[str]:
    """Names that are close: the rest of a beginning, or a slip for every three letters, the closest first.

    A slip is a letter that is missing, too much or another one, or two that changed places.
    ``difflib`` counts letters in common, and takes ``plan`` for ``clean``.

    Args:
        typed: What is no name.
        known: All names.
    """
    if len(typed) >= _BEGINNING:
        begun = [name for name in known if name.startswith(typed)]
        if begun:
            return begun
    allowed = max(1, len(typed) // _LETTERS_PER_SLIP)
    slips = {name: _slips(typed, name) for name in known}
    fewest = min(slips.values(), default=0)
    return [name for name in known if slips[name] == fewest <= allowed]


def _slips(typed: str, name: str) -> int:
    """Optimal string alignment distance (Damerau 1964, CACM 7:171-176)."""
    before: list[int] = []
    last = list(range(len(name) + 1))
    for row, letter in enumerate(typed, start=1):
        line = [row]
        for place, other in enumerate(name, start=1):
            cost = min(last[place] + 1, line[place - 1] + 1, last[place - 1] + (letter != other))
            if row > 1 and place > 1 and typed[row - 2] == other and name[place - 2] == letter:
                cost = min(cost, before[place - 2] + 1)
            line.append(cost)
        before, last = last, line
    return last[-1]
