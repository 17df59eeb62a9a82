"""Outputs kept as files: ``UPDATE_GOLDEN=1 python -m pytest tests`` writes them; read the difference."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "golden"


def check(name: str, text: str) -> None:
    """Compare with ``tests/golden/<name>.txt``, blanks at the ends of lines aside."""
    found = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, "utf-8")
    assert path.read_text("utf-8") == found, f"{path.name} differs; UPDATE_GOLDEN=1 writes it again"
