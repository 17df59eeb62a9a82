"""Prompts that a draft head is trained on: maths exercises, Python tasks, everyday requests; drawn by seed.

Usage: ``python benchmarks/training_prompts.py OUT.parquet [--rows 8000] [--seed 0]``. Writes the columns
``id`` and ``prompt``. Templates and the lists that fill them are in ``benchmarks/prompts/training.toml``;
none of them is taken from the sets that measure a head (``benchmarks/workloads.py``).

A template's ``{slot}`` is one of: a list (``{food}``; ``{food#2}`` is another value of it, and the same slot
means the same value throughout a prompt), words to choose from (``{big|small}``), a number (``{20-80/5}``:
from 20 to 80 in steps of 5), a person (``{A}`` to ``{D}``; ``{he}``, ``{his}``, ``{him}`` mean A), or
``{passage}``. ``{^slot}`` begins with a capital letter.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TEMPLATES = Path(__file__).resolve().parent / "prompts" / "training.toml"
MAX_ROWS = 12_000
"""More would repeat the same templates too often to teach a head anything."""
TRIES = 40
"""A template that gives no new prompt in so many tries in a row is exhausted."""
SLOT = re.compile(r"\{([^{}]+)\}")
NUMBER = re.compile(r"(\d+)-(\d+)(?:/(\d+))?")
PRONOUNS = {"girls": ("she", "her", "her"), "boys": ("he", "his", "him")}
GENERICS = {"list": "List", "dict": "Dict", "tuple": "Tuple", "set": "Set"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and the template behind it."""

    template: str
    text: str


Maker = Callable[[random.Random], str]


@dataclass(slots=True)
class Filling:
    """Fills the slots of one prompt.

    Attributes:
        content: Of the TOML file.
        chosen: Slot → its value in this prompt.
    """

    rng: random.Random
    content: dict[str, Any]
    chosen: dict[str, str] = field(default_factory=dict)

    def fill(self, text: str) -> str:
        """The text with all its slots filled."""
        return SLOT.sub(lambda match: self._value(match[1]), text)

    def _value(self, slot: str) -> str:
        if "|" in slot:
            return self.rng.choice(slot.split("|"))
        if slot.startswith("^"):
            return capital(self._value(slot[1:]))
        if number := NUMBER.fullmatch(slot):
            low, high, step = (int(part or 1) for part in number.groups())
            drawn = self.rng.randrange(low, high + 1, step)
            return f"{drawn:,}" if drawn >= 10_000 else str(drawn)
        if slot == "passage":
            return self._passage()
        if slot not in self.chosen:
            self.chosen[slot] = self._person(slot) if slot in "ABCD" else self._entry(slot.partition("#")[0])
        return self.chosen[slot]

    def _entry(self, name: str) -> str:
        taken = set(self.chosen.values())
        return self.fill(
            self.rng.choice([value for value in self.content["lists"][name] if value not in taken])
        )

    def _person(self, letter: str) -> str:
        group = self.rng.choice(tuple(PRONOUNS))
        if letter == "A":
            self.chosen |= dict(zip(("he", "his", "him"), PRONOUNS[group], strict=True))
        return self._entry(group)

    def _passage(self) -> str:
        """The first sentence of a passage and some of the others, in their order."""
        first, *others = self.rng.choice(self.content["passages"])
        kept = sorted(self.rng.sample(range(len(others)), self.rng.randint(2, len(others))))
        return self.fill(" ".join([first, *(others[place] for place in kept)]))


def capital(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def sentence_maker(content: dict[str, Any], template: str) -> Maker:
    """Prompts of a template of prose; ``a`` becomes ``an`` where a vowel follows."""

    def make(rng: random.Random) -> str:
        text = Filling(rng, content).fill(template)
        return capital(re.sub(r"\b([Aa]) (?=(?!one\b|once\b|eu)[aeioAEIO])", r"\1n ", text))

    return make


def stub_maker(content: dict[str, Any], function: dict[str, Any]) -> Maker:
    """Prompts that ask to complete a function: imports, signature, docstring with examples."""

    def make(rng: random.Random) -> str:
        filling = Filling(rng, content)
        name = rng.choice(function["names"])
        signature = f"def {name}{filling.fill(function['signature'])}:"
        imports = list(function.get("imports", []))
        if rng.random() < 0.5:
            used = [new for old, new in GENERICS.items() if f"{old}[" in signature]
            signature = re.sub(
                r"\b(list|dict|tuple|set)\[", lambda match: f"{GENERICS[match[1]]}[", signature
            )
            imports += [f"from typing import {', '.join(sorted(used))}"] if used else []
        head = "".join(f"{line}\n" for line in imports) + ("\n\n" if imports else "")
        docstring = _docstring(
            rng, filling.fill(rng.choice(function["docs"])), _examples(rng, name, function)
        )
        opening = filling.fill(rng.choice(content["stub_openings"]))
        return f"{opening}{head}{signature}\n{docstring}"

    return make


def request_maker(content: dict[str, Any], function: dict[str, Any]) -> Maker:
    """Prompts that ask for a function in words."""

    def make(rng: random.Random) -> str:
        filling = Filling(rng, content)
        name = rng.choice(function["names"])
        doc = filling.fill(rng.choice(function["docs"]))
        arguments, value = rng.choice(function["examples"])
        filling.chosen |= {
            "name": name,
            "signature": f"{name}{filling.fill(function['signature'])}",
            "task": doc[:1].lower() + doc[1:].rstrip("."),
            "call": f"{name}({arguments})",
            "value": value,
        }
        return filling.fill(rng.choice(content["function_requests"]))

    return make


def _examples(rng: random.Random, name: str, function: dict[str, Any]) -> list[str]:
    pattern = rng.choice((">>> {0}\n{1}", ">>> {0}\n{1}", "{0} == {1}", "{0} ➞ {1}", "{0} returns {1}"))
    chosen = rng.sample(function["examples"], rng.randint(1, 2))
    return [pattern.format(f"{name}({arguments})", value) for arguments, value in chosen]


def _docstring(rng: random.Random, doc: str, examples: Sequence[str]) -> str:
    start, gap = rng.choice(('"""', '""" ', '"""\n')), rng.choice(("\n", "\n\n", "\n\nExamples:\n"))
    lines = f"{start}{doc}{gap}".split("\n")[:-1] + [
        line for example in examples for line in example.split("\n")
    ]
    return "".join(f"    {line}\n" if line else "\n" for line in [*lines, '"""'])


def makers(content: dict[str, Any]) -> list[tuple[int, dict[str, Maker]]]:
    """Shares of the rows (in parts of a whole) and the templates they are drawn from."""

    def prose(group: str) -> dict[str, Maker]:
        return {
            f"{group}/{place}": sentence_maker(content, text) for place, text in enumerate(content[group])
        }

    functions = {function["names"][0]: function for function in content["functions"]}
    stubs = {f"stub/{name}": stub_maker(content, function) for name, function in functions.items()}
    requests = {f"request/{name}": request_maker(content, function) for name, function in functions.items()}
    return [(20, prose("maths")), (11, stubs), (5, requests), (4, prose("coding")), (40, prose("everyday"))]


def draw(rng: random.Random, templates: dict[str, Maker], seen: set[str]) -> Iterator[Prompt]:
    """New prompts, template after template in random order; ends when every template is exhausted."""
    names = list(templates)
    rng.shuffle(names)
    exhausted: set[str] = set()
    for name in cycle(names):
        if len(exhausted) == len(names):
            return
        if name in exhausted:
            continue
        fresh = (text for text in (templates[name](rng) for _ in range(TRIES)) if text not in seen)
        text = next(fresh, None)
        if text is None:
            exhausted.add(name)
        else:
            seen.add(text)
            yield Prompt(name, text)


def generate(rows: int, seed: int) -> list[Prompt]:
    """Distinct prompts in random order, the same for the same seed.

    Args:
        rows: From 1 to :data:`MAX_ROWS`.
        seed: Of all random choices.

    Raises:
        ValueError: For a number of rows that the templates cannot give.
    """
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(
            f"--rows is {rows}; the templates give from 1 to {MAX_ROWS} prompts. Choose within that."
        )
    rng = random.Random(seed)  # noqa: S311 - no secret
    groups = makers(tomllib.loads(TEMPLATES.read_text("utf-8")))
    seen: set[str] = set()
    streams = [draw(rng, templates, seen) for _, templates in groups]
    shares = [share for share, _ in groups]
    prompts: list[Prompt] = []
    while len(prompts) < rows:
        prompts.append(next(rng.choices(streams, shares)[0]))
    return prompts


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path, metavar="OUT.parquet")
    parser.add_argument("--rows", type=int, default=8000, help=f"from 1 to {MAX_ROWS}")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        prompts = generate(options.rows, options.seed)
    except ValueError as error:
        parser.error(str(error))
    ids = [f"train/{options.seed}/{place}" for place in range(len(prompts))]
    pq.write_table(pa.table({"id": ids, "prompt": [prompt.text for prompt in prompts]}), options.out)
    print(f"{len(prompts)} prompts in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
