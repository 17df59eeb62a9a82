"""A disk that is full or may not be written: exit code 4, one line, earlier results untouched, resumable."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import ExitCode, StorageError
from specbatch.table import atomic
from specbatch.table.spool import Spool

from .fake_engine import FakeEngine, World
from .jobs import manifest, results, run, save_job

PROMPTS = [f"prompt {row}" for row in range(12)]


@contextmanager
def full_at(monkeypatch: pytest.MonkeyPatch, matches: Callable[[Path], bool]) -> Iterator[None]:
    """Every sync of a matching file fails as on a full disk."""
    sync = atomic._sync

    def full(path: Path) -> None:
        if matches(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_sync", full)
        yield


def test_a_run_directory_that_is_deleted_under_the_run_is_one_clear_line(tmp_path: Path) -> None:
    config = save_job(tmp_path, {"prompt": PROMPTS}, flush_rows=2)
    world = World(FakeEngine(before_row=lambda row: shutil.rmtree(tmp_path / "out") if row == 5 else None))
    with pytest.raises(StorageError, match=r"out.*No such file"):
        run(config, world)
    assert run(config).exit_code == ExitCode.OK


@pytest.mark.parametrize("columns", [{}, {"mine": list(range(12))}])
def test_an_input_replaced_under_the_run_is_noticed_and_nothing_is_mixed(
    tmp_path: Path, columns: dict[str, object]
) -> None:
    config = save_job(tmp_path, {"prompt": PROMPTS, **columns}, flush_rows=2)

    def replace(row: int) -> None:
        if row == 5:
            pq.write_table(pa.table({"prompt": PROMPTS[::-1], **columns}), tmp_path / "in.parquet")

    with pytest.raises(StorageError, match=r"in\.parquet was changed while the job ran") as caught:
        run(config, World(FakeEngine(before_row=replace)))
    assert caught.value.exit_code == ExitCode.ENGINE
    assert not (tmp_path / "out" / "results.parquet").exists()
    again = World()
    assert run(config, again).exit_code == ExitCode.OK
    assert again.engine.served == [], "the same rows in another order need no engine"


def fnmatches(pattern: str, path: Path) -> bool:
    return path.match(pattern)


@pytest.mark.parametrize(
    ("pattern", "named", "safe"),
    [
        (".part-*", "part-000001.parquet", 0),
        (".part-000003*", "part-000003.parquet", 4),
        (".results*", "results.parquet", 12),
        (".summary*", "summary.json", 12),
        (".run.json*", "run.json", 0),
    ],
)
def test_a_full_disk_ends_the_run_in_one_line_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, named: str, safe: int
) -> None:
    config = save_job(tmp_path, {"prompt": PROMPTS}, flush_rows=2)
    with full_at(monkeypatch, partial(fnmatches, pattern)), pytest.raises(StorageError) as caught:
        run(config)
    assert caught.value.exit_code == ExitCode.ENGINE
    assert f"{named}: cannot be written: No space left on device" in caught.value.what
    assert "run the same command" in caught.value.hint
    assert not list(tmp_path.rglob("*.tmp"))
    world = World()
    assert run(config, world).exit_code == ExitCode.OK
    assert len(world.engine.served) == 12 - safe
    assert len(results(config)) == 12


def test_when_nothing_at_all_can_be_written_any_more_the_first_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = save_job(tmp_path, {"prompt": PROMPTS}, flush_rows=2)
    started: list[Path] = []

    def full(path: Path) -> bool:
        started.append(path)
        return any(".part-000002" in path.name for path in started)

    with (
        full_at(monkeypatch, full),
        pytest.raises(StorageError, match=r"part-000002\.parquet: cannot be written"),
    ):
        run(config)
    assert manifest(config)["attempts"][0]["rows"] == 2
    assert run(config).exit_code == ExitCode.OK


@pytest.mark.parametrize("room", [True, False])
def test_the_next_attempt_says_that_the_disk_was_full_as_far_as_that_could_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    config = save_job(tmp_path, {"prompt": PROMPTS}, flush_rows=2)
    reserve = tmp_path / "out" / ".reserve.tmp"

    def full(path: Path) -> bool:
        is_full = (tmp_path / "out" / "parts" / "part-000002.parquet").exists()
        return is_full and not (room and path.name == ".run.json.tmp" and not reserve.exists())

    with full_at(monkeypatch, full), pytest.raises(StorageError):
        run(config)
    assert not reserve.exists()
    world = World()
    run(config, world)
    (told,) = [line for line in world.reporter.said if line.startswith("the last attempt")]
    if not room:
        assert told.startswith("the last attempt ended without saying why (killed, ")
        return
    assert "ended with exit code 4 (" in told
    assert "cannot be written: No space left on device); " in told
    first = manifest(config)["attempts"][0]
    assert first["computed_tokens"] > first["committed_tokens"] > 0
    assert f"; {first['computed_tokens'] - first['committed_tokens']} tokens of its work are lost" in told


def test_a_disk_without_room_for_the_end_of_an_attempt_has_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = save_job(tmp_path, {"prompt": PROMPTS})
    with (
        full_at(monkeypatch, lambda path: ".reserve" in path.name),
        pytest.raises(StorageError, match="No space left"),
    ):
        run(config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [".reserve.tmp", "..reserve.tmp.tmp"])
def test_a_run_that_was_killed_while_it_took_that_room_is_begun_anew(tmp_path: Path, name: str) -> None:
    config = save_job(tmp_path, {"prompt": PROMPTS})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(bytes(20_000))
    assert run(config).exit_code == ExitCode.OK
    assert not list(tmp_path.rglob("*.tmp"))


def test_earlier_results_survive_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = save_job(tmp_path, {"prompt": PROMPTS})
    run(config)
    before = (tmp_path / "out" / "results.parquet").read_bytes()
    more = save_job(tmp_path, {"prompt": [*PROMPTS, "new"]})
    for pattern in (".part-*", ".results*"):
        with full_at(monkeypatch, partial(fnmatches, pattern)), pytest.raises(StorageError):
            run(more)
        assert (tmp_path / "out" / "results.parquet").read_bytes() == before
    run(more)
    assert len(results(more)) == 13


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, 512 KiB; only root can have one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def incompressible(count: int, size: int) -> list[str]:
    return [os.urandom(size // 2).hex() for _ in range(count)]


@pytest.mark.parametrize("phase", ["index", "decode", "finalise"])
def test_a_disk_that_really_is_full(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    config = save_job(tmp_path, {"prompt": incompressible(40, 10_000)}, flush_rows=4)
    config = JobConfig.model_validate({**config.model_dump(), "out": small_disk / "out"})
    filler = small_disk / "filler"

    def fill(row: int) -> None:
        if phase == "decode" and row == 20:
            filler.write_bytes(bytes(small_disk_free(small_disk) - 8192))

    if phase == "index":
        monkeypatch.setattr(Spool.__init__, "__defaults__", (1000,))
        filler.write_bytes(bytes(400_000))
    if phase == "finalise":
        # Small enough for the parts, which hold the texts once, and not for parts, buckets and results.
        monkeypatch.setattr("specbatch.table.finalise._IN_MEMORY_BYTES", 1000)
    with pytest.raises(StorageError) as caught:
        run(config, World(FakeEngine(before_row=fill)))
    assert caught.value.exit_code == ExitCode.ENGINE
    assert "No space left on device" in caught.value.what
    assert "\n" not in caught.value.what
    assert not (small_disk / "out" / "results.parquet").exists()
    kept = sum(pq.read_metadata(path).num_rows for path in (small_disk / "out").glob("parts/part-*"))
    filler.unlink(missing_ok=True)
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    world = World()
    assert run(config, world).exit_code == ExitCode.OK
    assert len(world.engine.served) == 40 - kept
    (told,) = [line for line in world.reporter.said if line.startswith("the last attempt")]
    assert "ended with exit code 4 (" in told
    assert "No space left on device" in told
    assert {"index": kept == 0, "decode": 16 <= kept < 40, "finalise": kept == 40}[phase], kept


def small_disk_free(place: Path) -> int:
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


@pytest.mark.parametrize("out", ["/proc/nowhere/out", "{file}/out"])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, out: str) -> None:
    config = save_job(tmp_path, {"prompt": ["a"]})
    place = Path(out.format(file=config.input[0]))
    with pytest.raises(StorageError) as caught:
        run(config.model_copy(update={"out": place}))
    assert caught.value.exit_code == ExitCode.ENGINE
    assert "cannot create the run directory" in caught.value.what
    assert "choose another --out" in caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_one_line(tmp_path: Path) -> None:
    config = save_job(tmp_path, {"prompt": ["a"]})
    (tmp_path / "out").mkdir(mode=0o500)
    with pytest.raises(StorageError, match="Permission denied"):
        run(config)


def test_a_table_without_rows_is_a_job_that_is_done(tmp_path: Path) -> None:
    config = save_job(tmp_path, {"prompt": pa.array([], pa.string()), "n": pa.array([], pa.int8())})
    world = World()
    outcome = run(config, world)
    assert (outcome.exit_code, outcome.ran, world.opened) == (ExitCode.OK, True, 0)
    schema = pq.read_schema(tmp_path / "out" / "results.parquet")
    assert schema.names[0] == "row_index"
    assert schema.field("n").type == pa.int8()
    assert outcome.summary["rows"]["total"] == 0
    assert run(config).ran is False
