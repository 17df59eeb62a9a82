"""Retention: what goes, what stays whatever is asked, and that nothing else is touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from specbatch.errors import UsageError
from specbatch.job.clean import leftovers, old_runs, remove
from specbatch.table.rundir import locked
from tests.cli.console import called

from .fake_engine import World
from .jobs import Crash, crash_at, run, save_job

DAY = 86400.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five nights, night 2 and 4 not finished, and things that are no runs."""
    tmp_path = tmp_path_factory.mktemp("clean")
    nights = tmp_path / "nights"
    for number in range(5):
        world = crash_at(1) if number in (2, 4) else World()
        world.wall = lambda number=number: 1.75e9 + number * DAY  # type: ignore[misc]
        config = save_job(tmp_path, {"prompt": ["a", "b"]}, out=nights / f"n{number}", flush_rows=1)
        if number in (2, 4):
            with pytest.raises(Crash):
                run(config, world)
        else:
            run(config, world)
    (nights / "thesis").mkdir()
    (nights / "thesis" / "chapter.txt").write_text("precious")
    (nights / "notes.txt").write_text("mine")
    (nights / "latest").symlink_to("n0")
    (nights / "damaged").mkdir()
    (nights / "damaged" / "run.json").write_text("{")
    return nights


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return Path(shutil.copytree(made, tmp_path / "nights", symlinks=True))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def going(folder: Path, keep: int, *, unfinished: bool = False) -> list[str]:
    return [run.path.name for run in old_runs(folder, keep, unfinished=unfinished) if not run.kept]


def test_the_oldest_finished_runs_go_and_unfinished_ones_only_when_asked(folder: Path) -> None:
    assert going(folder, 2) == ["n0"]
    assert going(folder, 1) == ["n0", "n1"]
    assert going(folder, 0) == ["n0", "n1", "n3"]
    assert going(folder, 3) == going(folder, 99) == []
    assert going(folder, 1, unfinished=True) == ["n0", "n1", "n2"], "n4 is newer than a run that stays"
    assert going(folder, 0, unfinished=True) == ["n0", "n1", "n2", "n3", "n4"]
    assert going(folder, 99, unfinished=True) == []


def test_what_runs_or_holds_other_files_or_is_no_run_stays_with_its_reason(folder: Path) -> None:
    (folder / "n1" / "report.html").write_text("<p>mine</p>")
    with locked(folder / "n0"):
        kept = {run.path.name: run.kept for run in old_runs(folder, 0, unfinished=True) if run.kept}
    assert kept["n0"].startswith("running, process ")
    assert kept["n1"] == (
        "holds report.html, which no run wrote; move it away, or remove the whole directory yourself: "
        f"rm -r {folder}/n1"
    )
    assert kept["thesis"] == "no run directory"
    assert kept["latest"] == "a link; remove it by hand"
    assert kept["damaged"] == "its run.json cannot be read"


@pytest.mark.parametrize("place", ["parts", "decisions", "parts/part-000009.parquet"])
def test_files_of_others_among_the_parts_keep_a_run_too(folder: Path, place: str) -> None:
    (folder / "n1" / place).mkdir(parents=True, exist_ok=True)
    (folder / "n1" / place / "mine.txt").write_text("precious")
    (folder / "n1" / "parts" / ".part-000002.parquet.tmp").write_text("of a run that was killed")
    told = called("clean", "--keep", "1", str(folder), "--yes")
    assert f"kept {folder / 'n1'}: holds {place}" in told.stdout
    assert (folder / "n1" / place / "mine.txt").read_text() == "precious"
    assert not (folder / "n0").exists()


def test_a_run_that_is_not_finished_and_holds_other_files_is_not_promised_to_go(folder: Path) -> None:
    (folder / "n2" / "notes.txt").write_text("mine")
    for unfinished, holds in ((False, "not finished, and holds notes.txt"), (True, "holds notes.txt")):
        kept = {run.path.name: run.kept for run in old_runs(folder, 1, unfinished=unfinished)}
        assert kept["n2"].startswith(f"{holds}, which no run wrote; move it away, or remove the whole")


def test_only_what_was_announced_is_removed(folder: Path) -> None:
    before = names(folder)
    ended = list(remove(old_runs(folder, 1, unfinished=False)))
    assert [run.path.name for run in ended] == ["n0", "n1"]
    assert all(run.size > 0 for run in ended)
    assert before - names(folder) == {"n0", "n1"}
    assert (folder / "thesis" / "chapter.txt").read_text() == "precious"


def test_a_run_that_began_after_the_look_stays(folder: Path) -> None:
    doomed = old_runs(folder, 2, unfinished=False)
    with locked(folder / "n0"):
        (ended,) = remove(doomed)
    assert ended.kept == "in use since a moment ago"
    assert (folder / "n0" / "results.parquet").exists()


def test_a_removal_that_is_killed_leaves_no_half_run_and_the_next_one_finishes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(path: Path) -> None:
        (path / "results.parquet").unlink()
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(Crash):
            list(remove(old_runs(folder, 2, unfinished=False)))
    assert "n0" not in names(folder)
    assert [run.path.name for run in leftovers(folder)] == [".n0.removed"]
    assert ".n0.removed" not in [run.path.name for run in old_runs(folder, 2, unfinished=False)]
    list(remove(leftovers(folder)))
    assert leftovers(folder) == []


def test_what_only_has_the_name_of_a_removed_run_stays(folder: Path) -> None:
    mine = folder / ".thesis.removed"
    mine.mkdir()
    (mine / "chapter.txt").write_text("precious")
    (left,) = leftovers(folder)
    assert left.kept.startswith("holds chapter.txt, which no run wrote; move it away")
    assert list(remove([left])) == []
    assert (mine / "chapter.txt").read_text() == "precious"


def test_folders_that_cannot_be_meant_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        old_runs(folder / "none", 1, unfinished=False)
    with pytest.raises(UsageError, match="is a run directory itself"):
        old_runs(folder / "n3", 1, unfinished=False)


def test_the_command_tells_first_and_removes_with_yes(folder: Path) -> None:
    before = names(folder)
    told = called("clean", "--keep", "1", str(folder))
    assert told.returncode == 0
    assert f"would remove {folder / 'n0'} (" in told.stdout
    assert f"kept {folder / 'n2'}: not finished; --unfinished removes it, too" in told.stdout
    assert "2 runs to remove, 6 kept; --yes frees " in told.stdout
    assert names(folder) == before
    found = json.loads(called("clean", "--keep", "1", str(folder), "--yes", "--json").stdout)
    assert [Path(run["path"]).name for run in found["removed"]] == ["n0", "n1"]
    assert found["bytes"] > 0
    again = called("clean", "--keep", "1", str(folder), "--yes")
    assert again.stdout.endswith("0 runs removed, 5 kept; freed 0 B\n")


def test_a_folder_that_is_named_twice_is_cleaned_once(folder: Path) -> None:
    done = called("clean", str(folder), f"{folder}/../nights", "--keep", "2", "--yes")
    assert (done.returncode, done.stdout.count("removed /")) == (0, 1), done.stderr + done.stdout
    assert "n0" not in names(folder)
