"""Finds marked blocks in a Markdown file, so that commands and tables live in one place: the README.

Usage: ``python readme_block.py FILE MARKER`` prints the fenced block that follows ``<!-- MARKER -->``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def after_marker(markdown: str, marker: str) -> str:
    """The text that follows ``<!-- marker -->``.

    Raises:
        ValueError: The marker is missing or stands there more than once.
    """
    parts = markdown.split(f"<!-- {marker} -->")
    if len(parts) != 2:
        raise ValueError(f"expected the marker '<!-- {marker} -->' once, found it {len(parts) - 1} times")
    return parts[1].lstrip("\n")


def fenced_block(markdown: str, marker: str) -> str:
    """The content of the fenced block right after a marker.

    Raises:
        ValueError: No such marker, or no fenced block right after it.
    """
    match = re.match(r"```\w*\n(.*?)\n```(?:\n|$)", after_marker(markdown, marker), re.DOTALL)
    if match is None:
        raise ValueError(f"no fenced block right after '<!-- {marker} -->'")
    return match.group(1)


def table(markdown: str, marker: str) -> list[list[str]]:
    """The body cells of the table right after a marker, backticks removed.

    Raises:
        ValueError: No such marker, or no table right after it.
    """
    lines = after_marker(markdown, marker).splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("|")), len(lines))
    if end < 3:
        raise ValueError(f"no table right after '<!-- {marker} -->'")
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:end]]


if __name__ == "__main__":
    sys.stdout.write(fenced_block(Path(sys.argv[1]).read_text("utf-8"), sys.argv[2]) + "\n")
