"""Profiles: measured on a clock of the tests' own, kept, found again, and refused with a reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest

from specbatch.draft.base import TreeShape
from specbatch.engine.profile_grid import FULL, SHORT, Grid
from specbatch.engine.profile_store import find_profile, save_profile
from specbatch.engine.profiles import ensure_profile
from specbatch.engine.profiling import Watch, measure_costs
from specbatch.errors import EngineError, StorageError
from specbatch.hardware.cost import CostTable
from specbatch.hardware.measure import Effort
from tests.engine.clocked import Clock, ClockedDrafter, ClockedExecutor, clocked
from tests.engine.table_model import CONFIG, VOCAB
from tests.hardware.costs import HERE, draft_s, pass_s, table

GRID = replace(SHORT, contexts=(64, 128), effort=Effort(1e6, 2))
FULL_GRID = replace(FULL, contexts=(64, 128), checks=((4, 4, 100), (8, 2, 64)), effort=Effort(1e6, 2))


def measured(grid: Grid = GRID, draft: bool = True) -> tuple[CostTable, ClockedExecutor, ClockedDrafter]:
    clock = Clock()
    executor, drafter = ClockedExecutor(clock), ClockedDrafter(clock)
    subject = clocked(clock, executor, drafter if draft else None)
    return measure_costs(subject, grid, Watch(clock=clock)), executor, drafter


@pytest.mark.parametrize("grid", [GRID, FULL_GRID], ids=["short", "full"])
def test_the_table_says_what_passes_and_drafts_took(grid: Grid) -> None:
    found, _, _ = measured(grid)
    for tokens, rows, context in [(1, 1, 64), (64, 64, 128), (24, 6, 100), (100, 20, 90)]:
        assert found.verify_s(tokens, context, rows) == pytest.approx(pass_s(tokens, rows, context))
    for rows, width, levels in [(1, 1, 1), (16, 4, 3), (10, 3, 7), (64, 4, 2)]:
        assert found.draft_tree_s(rows, width, levels) == pytest.approx(draft_s(rows, width, levels))
    assert found.prefill_s(100) == pytest.approx(pass_s(100, 1, 0))
    assert found.effort == grid.name
    assert {point.repeats for point in found.verify} == {2}


def test_checks_are_kept_apart_from_what_the_table_is_made_of() -> None:
    found, _, _ = measured(FULL_GRID)
    assert [(point.tokens, point.rows, point.context) for point in found.checks] == [
        (16, 4, 100),
        (16, 8, 64),
    ]
    error = found.check_error
    assert error is not None
    assert error.p90 == pytest.approx(0.0, abs=1e-9)


def test_memory_counts_keys_values_logits_features_and_the_drafters_part() -> None:
    found, _, _ = measured()
    assert found.bytes_per_token == 1000 + 40
    assert found.bytes_per_node == 1000 + 40 + 4 * (VOCAB + 2 * CONFIG.hidden_size)


def test_the_drafter_forgets_the_rows_afterwards() -> None:
    _, _, drafter = measured()
    assert not drafter.known


def test_without_a_drafter_nothing_is_drafted() -> None:
    found, _, _ = measured(draft=False)
    assert found.draft == ()
    assert found.bytes_per_token == 1000


def test_trees_are_no_larger_than_the_drafter_was_built_for() -> None:
    clock = Clock()
    subject = clocked(clock, ClockedExecutor(clock), ClockedDrafter(clock), TreeShape(2, 1, 2))
    found = measure_costs(subject, GRID, Watch(clock=clock))
    assert {(point.width, point.levels) for point in found.draft} == {(1, 1), (1, 2)}


def test_rows_that_memory_does_not_hold_are_left_out() -> None:
    clock = Clock()
    executor = ClockedExecutor(clock, num_pages=101)
    found = measure_costs(clocked(clock, executor, None), GRID, Watch(clock=clock))
    assert executor.written == set(range(1, 1 + 16 * 5))  # 65 tokens each
    assert max(point.rows for point in found.verify if point.context == 64) == 16
    assert max(point.rows for point in found.verify if point.context == 128) == 8
    assert found.verify_s(60, 300) == pytest.approx(pass_s(60, 60, 300), rel=0.03)


def test_no_more_memory_is_touched_than_allowed() -> None:
    clock = Clock()
    executor = ClockedExecutor(clock)
    measure_costs(clocked(clock, executor, None), replace(GRID, kv_bytes=50 * 16_000), Watch(clock=clock))
    assert max(executor.written) <= 50


def test_contexts_beyond_the_models_are_left_out() -> None:
    found, executor, _ = measured(replace(GRID, contexts=(64, 250, 2048)))
    assert {point.context for point in found.verify} == {64, 250}
    assert max(context + tokens // rows for tokens, rows, context in executor.passes) <= CONFIG.max_context


def test_a_slow_machine_gets_a_coarse_table_within_its_time() -> None:
    clock = Clock()
    executor = ClockedExecutor(clock, slowness=100.0)
    subject = clocked(clock, executor, None)
    found = measure_costs(subject, replace(GRID, effort=Effort(20.0, 5)), Watch(clock=clock))
    assert clock.now <= 20.0
    assert found.verify_s(16, 64, 1) == pytest.approx(100.0 * pass_s(16, 1, 64), rel=0.05)


def test_too_little_time_is_an_error_that_says_so() -> None:
    clock = Clock()
    subject = clocked(clock, ClockedExecutor(clock, slowness=1000.0), None)
    with pytest.raises(EngineError, match=r"too little could be measured in 2 s") as caught:
        measure_costs(subject, replace(GRID, effort=Effort(2.0, 3)), Watch(clock=clock))
    assert "--seconds" in caught.value.hint


def test_a_drafter_that_fails_is_named() -> None:
    clock = Clock()
    subject = clocked(clock, ClockedExecutor(clock), ClockedDrafter(clock, broken=True))
    with pytest.raises(EngineError, match="no such head"):
        measure_costs(subject, GRID, Watch(clock=clock))


def test_a_profile_is_measured_once_and_found_from_then_on(tmp_path: Path) -> None:
    clock = Clock()
    executor = ClockedExecutor(clock)
    subject = clocked(clock, executor, ClockedDrafter(clock))
    lines: list[str] = []
    first = ensure_profile(subject, lines.append, tmp_path, Watch(clock=clock))
    passes = len(executor.passes)
    assert passes > 0
    assert lines == ["measuring this machine for some seconds: there is no profile of this model yet"]
    again = ensure_profile(subject, lines.append, tmp_path, Watch(clock=clock))
    assert again.table == first.table
    assert again.reason == again.absence == ""
    assert len(executor.passes) == passes
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("age", "effort", "share", "measured"),
    [
        (2.0, "short", 0.5, True),
        (0.5, "short", 0.5, False),
        (2.0, "full", 0.5, False),
        (2.0, "short", 0.05, False),
    ],
)
def test_a_short_profile_from_beside_others_work_is_measured_anew_by_a_later_run(
    tmp_path: Path, age: float, effort: Literal["short", "full"], share: float, measured: bool
) -> None:
    clock = Clock()
    executor = ClockedExecutor(clock)
    subject = clocked(clock, executor, ClockedDrafter(clock))
    before = (datetime.now(UTC) - timedelta(hours=age)).isoformat()
    old = replace(table(subject.fingerprint), measured_at=before, effort=effort, others_share=share)
    save_profile(old, tmp_path)
    lines: list[str] = []
    found = ensure_profile(subject, lines.append, tmp_path, Watch(clock=clock))
    assert (found.table != old) == measured
    assert (len(executor.passes) > 0) == measured
    assert len(lines) == measured
    assert all("other programs had 50% of the machine while it was measured" in line for line in lines)
    assert find_profile(subject.fingerprint, tmp_path).table == found.table


def test_cores_that_measuring_leaves_to_others_are_theirs() -> None:
    quiet = replace(table(replace(HERE, threads=2, cores=8)), others_share=0.8)
    assert quiet.disturbed == ""
    assert replace(quiet, others_share=0.9).disturbed == (
        "other programs had 90% of the machine while it was measured"
    )


def test_a_disturbed_profile_does_where_no_other_can_be_measured(tmp_path: Path) -> None:
    clock = Clock()
    subject = clocked(clock, ClockedExecutor(clock), ClockedDrafter(clock, broken=True))
    old = replace(
        table(subject.fingerprint), measured_at="2026-01-01T00:00:00+00:00", effort="short", others_share=0.5
    )
    save_profile(old, tmp_path)
    lines: list[str] = []
    assert ensure_profile(subject, lines.append, tmp_path, Watch(clock=clock)).table == old
    assert lines[-1].endswith("; the profile there is does instead")


def test_a_profile_of_an_older_version_is_stale_and_replaced(tmp_path: Path) -> None:
    old = table(replace(HERE, specbatch="0.0.9"))
    path = save_profile(old, tmp_path)
    found = find_profile(HERE, tmp_path)
    assert (found.table, found.absence) == (None, "stale")
    assert found.reason == "the profile is out of date: it was measured with specbatch 0.0.9, this is 0.1.0"
    save_profile(table(), tmp_path)
    assert find_profile(HERE, tmp_path).table == table()
    assert list(tmp_path.glob("*")) == [path]


def test_a_profile_of_another_machine_is_foreign(tmp_path: Path) -> None:
    save_profile(table(replace(HERE, threads=8, processor="Sapphire Rapids")), tmp_path)
    save_profile(table(replace(HERE, threads=8)), tmp_path)
    save_profile(table(replace(HERE, model_digest="0" * 64)), tmp_path)
    found = find_profile(HERE, tmp_path)
    assert (found.table, found.absence) == (None, "foreign")
    assert found.reason == "the nearest profile is another's: threads 8, here 2"


def test_a_profile_that_was_copied_over_is_foreign(tmp_path: Path) -> None:
    theirs = save_profile(table(replace(HERE, processor="Sapphire Rapids")), tmp_path)
    theirs.rename(tmp_path / f"{HERE.key}.json")
    found = find_profile(HERE, tmp_path)
    assert (found.table, found.absence) == (None, "foreign")
    assert "processor Sapphire Rapids, here Zen 3" in found.reason


def test_no_profile_and_profiles_of_other_models_only_are_the_same(tmp_path: Path) -> None:
    assert find_profile(HERE, tmp_path / "none").absence == "missing"
    save_profile(table(replace(HERE, model_digest="0" * 64)), tmp_path)
    assert find_profile(HERE, tmp_path).absence == "missing"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"verify": 3}', b"\xff\xfe", table().to_json()[:-100]])
def test_a_damaged_profile_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"{HERE.key}.json").write_bytes(content)
    (tmp_path / "other.json").write_bytes(content)
    found = find_profile(HERE, tmp_path)
    assert (found.table, found.absence) == (None, "damaged")
    assert "\n" not in found.reason
    assert find_profile(replace(HERE, threads=3), tmp_path).absence == "missing"


def test_a_run_goes_on_without_a_profile_when_measuring_fails(tmp_path: Path) -> None:
    clock = Clock()
    subject = clocked(clock, ClockedExecutor(clock), ClockedDrafter(clock, broken=True))
    found = ensure_profile(subject, lambda _: None, tmp_path, Watch(clock=clock))
    assert found.table is None
    assert found.absence == "missing"
    assert "the drafter failed" in found.reason
    assert not list(tmp_path.iterdir())


def test_a_cache_that_cannot_be_written_costs_a_run_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "profiles"
    blocked.write_text("a file")
    clock = Clock()
    subject = clocked(clock, ClockedExecutor(clock), None)
    with pytest.raises(StorageError, match="cannot be kept"):
        save_profile(table(), blocked)
    said: list[str] = []
    found = ensure_profile(subject, said.append, blocked, Watch(clock=clock))
    assert found.table is not None
    assert "cannot be kept" in said[-1]
    assert said[-1].endswith("; the next run measures again")
