"""Named facts in a column, for people: what does not fit a line goes on under its own beginning."""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_NAME_WIDTH = 11


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Say so, where the library would end the process with a code of its own."""
        raise BrokenPipeError

    def print(self, *objects: Any, **options: Any) -> None:
        """As the library does; where no terminal draws them, without the blanks that fill up lines."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(re.sub(r" +(?=\n)", "", captured.get()))
        self.file.flush()


class Page:
    """Writes facts as they come.

    Args:
        stream: Default: stdout.
        width: Columns; default: the terminal's, or 80.
    """

    def __init__(self, stream: TextIO | None = None, width: int | None = None) -> None:
        # Names of tiers and owners are the user's, and mean what they say, brackets and colons included.
        self.console: Console = _Console(
            file=stream or sys.stdout, width=width, highlight=False, markup=False, emoji=False
        )

    def fact(self, name: str, text: str) -> None:
        """A name and what there is to say; without a name, more on the one before."""
        row = Table.grid(padding=(0, 1))
        row.add_column(width=_NAME_WIDTH, no_wrap=True)
        row.add_column(overflow="fold")
        row.add_row(Text(name, style="bold"), Text(text))
        self.console.print(row)

    def path(self, name: str, path: str) -> None:
        """A name and a path, which is never broken: people copy it."""
        self.console.print(Text(f"{name:<{_NAME_WIDTH}} ", style="bold"), end="")
        self.console.print(Text(path), soft_wrap=True)

    def blank(self) -> None:
        """An empty line."""
        self.console.print()

    def item(self, text: str) -> None:
        """An entry of a list below a fact."""
        self._indented(text, 2)

    def detail(self, text: str) -> None:
        """More on an item."""
        self._indented(text, 6)

    def _indented(self, text: str, left: int) -> None:
        self.console.print(Padding(Text(text, overflow="fold"), (0, 0, 0, left), expand=False))
