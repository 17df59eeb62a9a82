"""What the documents promise is true: links, tables, snippets, commands."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from specbatch import cli
from specbatch.errors import ExitCode

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
TOOLS = runpy.run_path(str(ROOT / ".ci" / "readme_block.py"))
COMMANDS = "run|clean|merge|validate|status|report|schema|convert|model|train-draft|profile|bench|doctor"
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "jobs").glob("*.md"), *(ROOT / "sample_data").glob("*.md")]


def table(marker: str) -> list[list[str]]:
    rows: list[list[str]] = TOOLS["table"](README, marker)
    return rows


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def row_fault_codes() -> Iterator[str]:
    """Codes that the program can give to a rejected row: first arguments of ``RowFault(...)``."""
    for path in (ROOT / "specbatch").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="RowFault"), args=[ast.Constant(value=str(code)), *_]):
                    yield code


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text("utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        name, _, fragment = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), target
        if fragment:
            headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
            assert fragment in map(anchor, headings), target


def test_exit_code_table_is_the_enum() -> None:
    documented = {name: int(code) for code, name, _ in table("table: exit codes")}
    assert documented == {code.name: code.value for code in ExitCode}


def test_output_table_is_the_declared_schema() -> None:
    if not (ROOT / "specbatch" / "table" / "schema.py").exists():
        pytest.skip("no output schema yet")
    schema = importlib.import_module("specbatch.table.schema")
    declared = [(field.name, str(field.type)) for field in schema.output_schema(token_ids=True)]
    documented = [(name, kind) for name, kind, _ in table("table: output schema")]
    assert [
        (name, kind.replace("item: ", "").replace("element: ", "")) for name, kind in declared
    ] == documented


def test_schema_command_says_what_the_output_table_says() -> None:
    meaning = importlib.import_module("specbatch.table.meaning").OUTPUT_MEANING
    documented = {name: text.replace("`", "") for name, _, text in table("table: output schema")}
    assert {name: text.split(":")[0] for name, text in documented.items()} == meaning


def test_every_input_column_has_a_meaning_and_stands_in_the_table() -> None:
    kinds = importlib.import_module("specbatch.table.columns").KINDS
    assert list(importlib.import_module("specbatch.table.meaning").INPUT_MEANING) == list(kinds)
    columns = README.partition("## Your table")[2].partition("## What you get")[0]
    assert not [name for name in kinds if f"`{name}`" not in columns]


def test_commands_are_those_of_the_program() -> None:
    commands = importlib.import_module("specbatch.cli.app")._COMMANDS
    assert sorted(commands) == sorted(COMMANDS.split("|"))


def test_every_error_code_of_a_row_is_documented() -> None:
    documented = {code for code, _ in table("table: error codes")}
    assert set(row_fault_codes()) <= documented


def test_awkward_rows_expect_documented_codes() -> None:
    import pyarrow.parquet as pq

    expected = set(pq.read_table(ROOT / "sample_data" / "awkward.parquet")["expect"].to_pylist())
    assert expected - {"answered"} <= {code for code, _ in table("table: error codes")}


def test_python_snippets_run(tmp_path: Path) -> None:
    assert snippets("python")
    for snippet in snippets("python"):
        subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, check=True)
    assert (tmp_path / "reviews.parquet").exists()


def test_toml_snippets_are_job_files(tmp_path: Path) -> None:
    settings = pytest.importorskip("specbatch.settings")
    assert snippets("toml")
    for snippet in snippets("toml"):
        job_file = tmp_path / "job.toml"
        job_file.write_text(snippet, "utf-8")
        config = settings.load_config({}, job_file=job_file, environ={})
        assert config.max_tokens == tomllib.loads(snippet)["max_tokens"]


def options_of(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts
    for child in getattr(command, "commands", {}).values():
        yield from options_of(child)


def all_options() -> Iterator[str]:
    """Flags of every command; each module of the command line that has an ``app`` is one."""
    for module in pkgutil.iter_modules(cli.__path__, "specbatch.cli."):
        app = getattr(importlib.import_module(module.name), "app", None)
        if app is not None:
            yield from options_of(typer.main.get_command(app))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_flags_exist(document: Path) -> None:
    text = document.read_text("utf-8")
    inline = re.findall(r"`((?:specbatch|-)[^`]*)`", text)
    commands = [line for line in text.splitlines() if re.search(rf"\bspecbatch (?:{COMMANDS})\b", line)]
    used = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", "\n".join([*inline, *commands])))
    assert used <= {*all_options(), "--help"}


@pytest.mark.parametrize("marker", ["ci: run", "ci: check"])
def test_ci_commands_can_be_extracted(marker: str) -> None:
    script = [sys.executable, str(ROOT / ".ci" / "readme_block.py"), str(ROOT / "README.md"), marker]
    command = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert command.startswith("python3 -m venv ")
    subprocess.run(["bash", "-n", "-c", command], check=True)


def test_contributing_repeats_the_check_command() -> None:
    assert TOOLS["fenced_block"](README, "ci: check") in (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def test_a_missing_marker_is_an_error() -> None:
    with pytest.raises(ValueError, match="found it 0 times"):
        TOOLS["fenced_block"](README, "no such marker")
    with pytest.raises(ValueError, match="no fenced block"):
        TOOLS["fenced_block"]("<!-- here -->\ntext", "here")
    with pytest.raises(ValueError, match="no table"):
        TOOLS["table"]("<!-- here -->\ntext", "here")
