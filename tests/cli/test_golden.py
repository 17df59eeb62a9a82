"""What people read: help, errors and logs, kept as files in ``tests/golden``."""

from __future__ import annotations

import io
import re
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from specbatch.cli import main
from specbatch.cli.app import _COMMANDS, app
from specbatch.errors import SpecbatchError
from specbatch.progress import JsonReporter, PlainReporter, Rate, Snapshot, Tally
from tests.golden_files import check

MODEL_COMMANDS = ("list", "pull", "info", "export")
# Typer and rich decide where things stand; with others than these, only the content is checked.
LAID_OUT_AS_KEPT = version("typer").startswith("0.29.") and version("rich").startswith("15.")
HELP = [(), *((name,) for name in _COMMANDS), *(("model", name) for name in MODEL_COMMANDS)]


def invoke(*args: str, width: int = 80) -> str:
    """Standard output and error of a command that ends well or with a usage error."""
    environ = {"COLUMNS": str(width), "TERM": "dumb", "NO_COLOR": "1"}
    result = CliRunner(env=environ).invoke(app, list(args), prog_name="specbatch")
    assert result.exception is None or isinstance(result.exception, SystemExit | SpecbatchError)
    return result.output


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", HELP, ids=lambda command: "-".join(command) or "specbatch")
def test_help(command: tuple[str, ...], width: int) -> None:
    text = invoke(*command, "--help", width=width)
    if LAID_OUT_AS_KEPT:
        check(f"help-{'-'.join(command) or 'specbatch'}-{width}", text)
    assert max(map(len, text.splitlines())) <= width
    assert f"Example: specbatch {' '.join(command)}".rstrip() in " ".join(text.split()) or command == (
        "model",
    )
    assert not re.search(r"--[a-z-]+ +(?:N|TEXT) +\.", text), "a flag without description"


def test_schema() -> None:
    for width in (80, 120):
        check(f"schema-{width}", invoke("schema", width=width))


ERRORS = {
    "no-such-file": ("run", "none.parquet"),
    "no-prompt-column": ("run", "other.parquet"),
    "text-in-double-quotes": ("run", "t.parquet", "--where", 'prompt = "x"'),
    "columns-the-wrong-way-round": ("run", "map.toml"),
    "wrong-type": ("run", "number.parquet"),
    "naive-timestamps": ("validate", "naive.parquet"),
    "not-parquet": ("run", "job.toml"),
    "misspelt-setting": ("run", "bad.toml"),
    "misspelt-flag": ("run", "t.parquet", "--max-token", "3"),
    "misspelt-command": ("rum",),
    "unknown-command": ("plan",),
    "bad-value": ("run", "t.parquet", "--temperature", "hot"),
    "unknown-model": ("run", "t.parquet", "--model", "smollm3"),
    "unknown-policy": ("run", "t.parquet", "--policy", "turbo"),
    "no-run-directory-name": ("run", "t.parquet", "t.parquet"),
    "directory-of-something-else": ("run", "t.parquet", "--out", "busy"),
    "status-of-nothing": ("status", "none.out"),
    "status-of-something-else": ("status", "."),
    "convert-what": ("convert", "t.parquet", "u.parquet"),
    "convert-bad-lines": ("convert", "batch.jsonl", "u.parquet"),
    "convert-no-results": ("convert", "t.parquet", "u.jsonl"),
    "profile-picture": ("profile", "--plot", "profile.png"),
}
BATCH = """\
{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}}
not json
{"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": "Say yes."}}
"""


def test_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"prompt": ["x"]}), "t.parquet")
    pq.write_table(pa.table({"body": ["x"]}), "other.parquet")
    moments = pa.array([0], pa.timestamp("s"))
    pq.write_table(pa.table({"prompt": ["x"], "deadline": moments}), "naive.parquet")
    pq.write_table(pa.table({"prompt": [1]}), "number.parquet")
    Path("map.toml").write_text("input = 'other.parquet'\n[columns]\nbody = 'prompt'\n")
    Path("job.toml").write_text("input = 'broken.parquet'\n")
    Path("broken.parquet").write_text("no")
    Path("bad.toml").write_text("input = 't.parquet'\nmax_token = 3\n")
    Path("batch.jsonl").write_text(BATCH)
    Path("busy").mkdir()
    Path("busy/notes.txt").write_text("mine")
    environ = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    shown: list[str] = []
    for name, args in ERRORS.items():
        result = CliRunner(env=environ).invoke(app, list(args), prog_name="specbatch")
        code = result.exit_code
        text = result.output
        if isinstance(result.exception, SpecbatchError):
            code = main._tell(result.exception)
            text += capsys.readouterr().err
        assert code == 2, name
        assert "Traceback" not in text
        shown.append(f"# {name}\n$ specbatch {' '.join(args)}\n{text}(exit code {code})\n")
    if LAID_OUT_AS_KEPT:
        check("errors", "\n".join(shown))


@pytest.mark.parametrize("kind", [PlainReporter, JsonReporter])
def test_log(kind: type[PlainReporter | JsonReporter], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    stream = io.StringIO()
    reporter = kind(stream, heartbeat_s=1e6)
    monkeypatch.setattr("specbatch.progress.log.Rate", lambda tally: Rate(tally, lambda: now[0]))
    tally = Tally(total=20, done=4)
    reporter.phase("reading input")
    reporter.message("continuing: 4 of 20 rows are finished")
    reporter.begin(tally)
    for done in (5, 12, 20):
        now[0] += 30
        tally.done, tally.failed, tally.slo_met, tally.slo_missed = done, done // 6, done // 2, 1
        reporter.tick(Snapshot("running", 8, 20 - done, 40 * done))
    reporter.phase("writing results")
    reporter.close()
    text = re.sub(r"^\d\d:\d\d:\d\d", "07:00:00", stream.getvalue(), flags=re.MULTILINE)
    text = re.sub(r'"time": "[^"]+"', '"time": "2026-07-01T07:00:00.000+00:00"', text)
    assert "\r" not in text
    check(f"log-{kind.__name__.removesuffix('Reporter').lower()}", text)
