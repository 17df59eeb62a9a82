"""Rows with the id of an earlier one, and what else may be wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbatch.job.estimate import Estimate, Speed
from specbatch.job.lookover import Repeats
from specbatch.job.validate import validate_job
from specbatch.models.config import ModelConfig

from .jobs import results, run
from .test_faults import FAULTS, Limit, bad, good, job, world


def test_validate_says_of_a_repeated_id_what_a_run_says_and_counts_no_work_for_it(tmp_path: Path) -> None:
    rows = [good(0), {**good(1), "deadline_s": 1e-9}, {**good(2), "id": "good 0", "deadline_s": 9.0}]
    config = job(tmp_path / "one", rows)
    other = job(tmp_path / "two", [{**good(3), "id": "good 1"}])
    config = config.model_copy(update={"input": (*config.input, *other.input)})
    run(config, world())
    told = {
        row["row_index"]: row["error_message"].removeprefix(f"row {row['row_index']}: ")
        for row in results(config)
        if row["error_code"] == "duplicate_id"
    }
    assert told[2] == (
        f"column `id`: 'good 0' is the id of row 0 (in {config.input[0]}) already; give every row its own"
    )
    found = validate_job(config, 9, Speed(1.0, 0.0), 0.0)
    (fault,) = found.faults
    assert {example.row: example.message for example in fault.first} == told
    assert found.repeated_ids == Repeats(2, ((2, 0), (3, 1)))
    assert found.max_output_tokens == 16
    assert found.estimate == Estimate(1.0, 0.0, 16.0, missed_deadlines=1)
    assert (found.deadlines.rows, found.rows_with_slo) == (1, 1)
    assert found.tokens is None or found.tokens.sampled_rows == 2


@pytest.mark.parametrize("alone", [True, False], ids=["no good row left", "a good row left"])
def test_a_faulty_row_with_a_repeated_id_is_named_by_its_own_fault_in_run_and_validate(
    tmp_path: Path, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name in FAULTS if name != "same id"]
    rows = [good(0), *({**bad(name), "id": "good 0"} for name in names), {**good(1), "id": "good 0"}]
    if alone:
        run(job(tmp_path, rows[:1]), world())
    config = job(tmp_path, rows)
    run(config, world())
    told = {row["row_index"]: row["error_code"] for row in results(config)}
    assert told == {0: None} | dict(enumerate([FAULTS[name][1] for name in names], 1)) | {
        len(names) + 1: "duplicate_id"
    }
    encoder = world().engine.encoder
    monkeypatch.setattr("specbatch.job.validate.find_side_files", lambda _spec: tmp_path)
    monkeypatch.setattr("specbatch.job.validate.open_encoder", lambda *_args: encoder)
    monkeypatch.setattr(ModelConfig, "from_directory", lambda _path: Limit())
    found = validate_job(config, 9, None, 0.0)
    counted: dict[str, int] = {}
    for code in filter(None, told.values()):
        counted[code] = counted.get(code, 0) + 1
    assert {fault.code: fault.rows for fault in found.faults} == counted
