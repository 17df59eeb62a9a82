"""Prompts of the speculation benchmarks: our own sets, and public ones where somebody put them."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
PUBLIC = HERE.parent.parent / "shared" / "data"
"""Copies of public prompt sets, where somebody has put them beside the project."""


def heldout() -> list[str]:
    """Everyday requests that no shipped head was trained on."""
    prompts: list[str] = _toml("heldout")["prompts"]
    return prompts


def rewriting() -> list[str]:
    """Requests whose answers repeat much of the prompt."""
    content = _toml("rewriting")
    return [f"{task}\n\n{text}" for text, task in product(content["texts"], content["instructions"])]


def public(name: str) -> list[str]:
    """Prompts of ``humaneval`` or ``gsm8k``; empty where the file is not there."""
    path = PUBLIC / f"{name}.parquet"
    return pq.read_table(path, columns=["prompt"])["prompt"].to_pylist() if path.exists() else []


SETS: dict[str, Callable[[], list[str]]] = {
    "heldout": heldout,
    "rewriting": rewriting,
    "humaneval": lambda: public("humaneval"),
    "gsm8k": lambda: public("gsm8k"),
}
"""Name → prompts."""


def those_there(names: Sequence[str]) -> dict[str, list[str]]:
    """Name → prompts of the sets that are there; stderr tells of the others, and where they were sought."""
    found = {name: SETS[name]() for name in names}
    for name in [name for name, prompts in found.items() if not prompts]:
        print(f"skipped {name}: there is no {PUBLIC / f'{name}.parquet'}", file=sys.stderr)
    return {name: prompts for name, prompts in found.items() if prompts}


def _toml(name: str) -> dict[str, list[str]]:
    with (HERE / "prompts" / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)
