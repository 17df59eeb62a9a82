"""The command line: help, errors, exit codes, streams."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch import __version__
from specbatch.cli.app import _COMMANDS
from specbatch.cli.run import PANELS
from specbatch.config import JobConfig
from tests.cli.console import called, started
from tests.tiny_models import write_tiny_model


def test_version() -> None:
    for run in (called, started):
        result = run("--version")
        assert (result.returncode, result.stdout) == (0, f"specbatch {__version__}\n")


def test_help_lists_the_commands_and_an_example() -> None:
    result = called("--help")
    assert result.returncode == 0
    for text in ("run ", "model ", "Answer every row of a table", "Example: specbatch run jobs.parquet"):
        assert text in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_run_help_shows_every_flag_whole_and_an_example() -> None:
    result = called("run", "--help")
    for names in PANELS.values():
        for name in names:
            assert f"--{name.replace('_', '-')} " in result.stdout, name
    assert "Example: specbatch run" in result.stdout
    assert "(default: 256)" in " ".join(result.stdout.replace("│", " ").split())


def test_every_plain_setting_has_a_flag() -> None:
    flags = {name for names in PANELS.values() for name in names}
    assert set(JobConfig.model_fields) - flags == {"input", "columns", "tiers", "owners"}


def test_help_and_a_refused_command_import_nothing_heavy() -> None:
    script = (
        "import sys\nfrom specbatch.cli.app import app\n"
        "try:\n    app(sys.argv[1:])\nexcept BaseException:\n    pass\n"
        "heavy = ('torch', 'transformers', 'pyarrow', 'pydantic', 'numpy')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, "--help"], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["none.parquet"], "error: none.parquet: no such file", "hint: check the path"),
        (
            ["t.parquet", "--max-tokens", "x"],
            "error: --max-tokens = 'x': input should be a valid integer",
            "",
        ),
        (["t.parquet", "--policy", "turbo"], "error: --policy = 'turbo': available: off", ""),
        (["bad.toml"], "error: bad.toml: unknown setting `max_token`", "hint: did you mean `max_tokens`?"),
        (
            ["bad.toml", "bad.toml"],
            "error: several job files: bad.toml, bad.toml",
            "hint: run them one after",
        ),
        (["t.parquet", "--model", "smollm3"], "error: there is no model 'smollm3'", "hint: "),
        (
            ["other.parquet"],
            "error: other.parquet: no column `prompt` or `messages`",
            "hint: say where the prompt is: --prompt-column text",
        ),
        (["t.parquet", "--out", "bad.toml"], "error: bad.toml is a file", "hint: choose another --out"),
    ],
)
def test_errors_are_one_line_and_a_hint_on_stderr(
    tmp_path: Path, args: list[str], error: str, hint: str
) -> None:
    (tmp_path / "bad.toml").write_text("input = 't.parquet'\nmax_token = 3\n")
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "t.parquet")
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "other.parquet")
    result = called("run", *args, cwd=tmp_path)
    lines = [line for line in result.stderr.splitlines() if line.startswith(("error", "  hint"))]
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert lines[0].startswith(error)
    assert hint in "".join(lines[1:])
    assert len(lines) <= 2
    assert not list(tmp_path.glob("*.out"))


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("rum", "Did you mean 'run'?"),
        ("valdiate", "Did you mean 'validate'?"),
        ("bnech", "Did you mean 'bench'?"),
        ("stat", "Did you mean 'status'?"),
        ("train", "Did you mean 'train-draft'?"),
        ("models", "Did you mean 'model'?"),
        ("plan", f"Commands: {', '.join(_COMMANDS)}"),
        ("resume", f"Commands: {', '.join(_COMMANDS)}"),
        ("model pop", "Commands: list, pull, info, export"),
        ("model exprot", "Did you mean 'export'?"),
    ],
)
def test_only_close_commands_are_suggested(typed: str, told: str) -> None:
    done = called(*typed.split(), COLUMNS="400")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"No such command {typed.rsplit(maxsplit=1)[-1]!r}. {told} " in done.stderr


def test_a_torch_that_breaks_while_it_is_imported_is_no_fault_of_the_model(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model", "llama")
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "t.parquet")
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    script = (
        f"import sys\nsys.path.insert(0, {str(broken.parent)!r})\n"
        "from specbatch.cli.main import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "run", "t.parquet", "--model", "model"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert "error: torch cannot be loaded: operator torchvision::nms does not exist\n" in done.stderr
    assert "see specbatch doctor" in done.stderr


def test_libraries_that_cannot_be_loaded_are_one_line_and_no_usage_error(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "llama")
    for broken, error in (
        ("specbatch.cli.app", "error: out of memory, or the installation is damaged: "),
        ("specbatch.engine.open", "error: torch cannot be loaded: import of specbatch.engine.open halted"),
    ):
        script = (
            "import sys\nfrom pathlib import Path\nfrom specbatch.cli.main import main\n"
            f"sys.modules['{broken}'] = None\n"
            "from specbatch.models.files import ModelFiles\n"
            "import specbatch.models.resolve as resolve\n"
            f"files = ModelFiles('m', Path({str(tmp_path)!r}), (), 'gguf', 'd', 's', 'q4_1')\n"
            "resolve.resolve_model = lambda *_, **__: files\n"
            "main()\n"
        )
        pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "t.parquet")
        result = subprocess.run(
            [sys.executable, "-c", script, "run", "t.parquet"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 4
        assert error in result.stderr
        assert "ulimit -v" in result.stderr
        assert "Traceback" not in result.stderr


def test_an_unknown_command_or_flag_is_a_usage_error_with_a_suggestion() -> None:
    assert "Did you mean 'run'" in called("rum").stderr
    result = called("run", "x.parquet", "--max-token", "3")
    assert result.returncode == 2
    assert "--max-tokens" in result.stderr


@pytest.mark.model
def test_a_job_with_the_default_model_from_flags_to_summary(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["Say yes.", None, "Name a colour."], "tier": ["batch"] * 3, "n": [1, 2, 3]})
    pq.write_table(table, tmp_path / "t.parquet")
    flags = ("--max-tokens", "4", "--threads", "1", "--max-failures", "1", "--json")
    first = called("run", "t.parquet", *flags, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    summary = json.loads(first.stdout)
    assert (summary["schema_version"], summary["exit_code"], summary["run_directory"]) == (4, 0, "t.out")
    assert summary["rows"]["by_status"]["rejected"] == 1
    assert "\r" not in first.stderr
    rows = pq.read_table(tmp_path / "t.out" / "results.parquet").to_pylist()
    assert [row["n"] for row in rows] == [1, 2, 3]
    assert [row["error_code"] for row in rows] == [None, "null_prompt", None]
    assert all(0 < row["output_tokens"] <= 4 for row in (rows[0], rows[2]))
    again = started("run", "t.parquet", *flags, cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1")
    assert "nothing to do" in again.stderr
    assert again.stdout == first.stdout
    assert not [
        line for line in again.stderr.splitlines() if line.split()[-1:] in (["torch"], ["tokenizers"])
    ]
    refused = called("run", "t.parquet", "--max-tokens", "5", cwd=tmp_path)
    assert refused.returncode == 2
    assert "max_tokens: 4 there, 5 now" in refused.stderr
