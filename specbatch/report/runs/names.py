"""Run directories told apart in few letters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len

_SHORTEST = 8


def split_shared(directories: Sequence[str]) -> tuple[str, list[str]]:
    """The folder that all directories are in, and what each is called in there.

    Args:
        directories: As they were given.

    Returns:
        The folder, empty where they share none, and the names in the same order.
    """
    parts = [Path(directory).parts for directory in directories]
    shared = 0
    for level in zip(*(each[:-1] for each in parts), strict=False):
        if len(set(level)) > 1:
            break
        shared += 1
    folder = str(Path(*parts[0][:shared])) if shared else ""
    return folder, [str(Path(*each[shared:])) for each in parts]


def shortened(names: Sequence[str], room: int, *, ellipsis: str = "…") -> list[str]:
    """Names that fit, and are still told apart; as they are where both cannot be had.

    Nights differ in their last letters, so the middle goes, and of the end more is kept than of the
    beginning.

    Args:
        names: Of the directories.
        room: Columns of a terminal for each.
        ellipsis: Stands for what is left out.
    """
    short = [_shortened(name, max(room, _SHORTEST), ellipsis) for name in names]
    return short if len(set(short)) == len(set(names)) else list(names)


def _shortened(name: str, room: int, ellipsis: str) -> str:
    if cell_len(name) <= room:
        return name
    left = room - cell_len(ellipsis)
    head, tail = name[: left // 4], ""
    for letter in reversed(name[len(head) :]):
        if cell_len(head + letter + tail) > left:
            break
        tail = letter + tail
    return f"{head}{ellipsis}{tail}"
