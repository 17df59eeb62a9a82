"""``results.parquet``: input order, declared types, other people's columns, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import EngineError, StorageError
from specbatch.rows import Answer, FinishReason, Status
from specbatch.slo import Slo
from specbatch.table.atomic import replacing, write_text
from specbatch.table.finalise import Finaliser
from specbatch.table.keys import Keys, key_hex
from specbatch.table.parse import RowParser
from specbatch.table.parts import PartFormat, PartWriter, find_parts, read_progress
from specbatch.table.reader import InputTable
from specbatch.table.schema import carried_names, output_schema, part_schema, results_schema

FORM = PartFormat({b"specbatch.run_id": b"r"}, token_ids=True, epoch=1e9, policy="off", engine="native")


def answer(row: int, key: str, **changes: object) -> Answer:
    values: dict[str, object] = {
        "row_index": row,
        "key": key,
        "id": None,
        "tier": "batch",
        "status": Status.OK,
        "text": f"answer {row}",
        "token_ids": (row,),
        "finish_reason": FinishReason.STOP,
        **changes,
    }
    return Answer(**values)  # type: ignore[arg-type]


def opened(tmp_path: Path, table: pa.Table, **settings: object) -> tuple[InputTable, Keys]:
    pq.write_table(table, tmp_path / "in.parquet")
    job = JobConfig.model_validate({"input": (str(tmp_path / "in.parquet"),), **settings})
    source = InputTable.open(job)
    return source, source.index(RowParser.of(job, FORM.epoch)).keys


def answered(tmp_path: Path, keys: Keys, rows: list[int], flush_rows: int = 3) -> PartWriter:
    writer = PartWriter(tmp_path / "parts", FORM, flush_rows, 1e9)
    for row in rows:
        writer.add(answer(row, key_hex(keys[row])))
        if writer.due:
            writer.flush()
    writer.flush()
    return writer


def finalise(
    tmp_path: Path, source: InputTable, keys: Keys, check: Callable[[], None] = lambda: None
) -> pa.Table:
    parts = find_parts(tmp_path / "parts", FORM)
    Finaliser(source, keys, parts, FORM.stamp, check).write(tmp_path / "results.parquet", FORM.token_ids)
    return pq.read_table(tmp_path / "results.parquet")


def test_rows_that_finished_in_any_order_come_out_in_input_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specbatch.table.finalise._BUCKET_ROWS", 7)
    monkeypatch.setattr("specbatch.table.finalise._IN_MEMORY_BYTES", 100)
    source, keys = opened(tmp_path, pa.table({"prompt": [f"{i % 9}" for i in range(50)], "n": range(50)}))
    answered(tmp_path, keys, np.random.default_rng(1).permutation(50).tolist())
    table = finalise(tmp_path, source, keys)
    assert table.column("row_index").to_pylist() == list(range(50))
    assert table.column("text").to_pylist() == [f"answer {row}" for row in range(50)]
    assert table.column("n").to_pylist() == list(range(50))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", "parts", "results.parquet"]
    assert pq.read_schema(tmp_path / "results.parquet").metadata[b"specbatch.run_id"] == b"r"


def test_of_two_answers_for_a_row_the_later_counts(tmp_path: Path) -> None:
    source, keys = opened(tmp_path, pa.table({"prompt": ["a", "b"]}))
    answered(tmp_path, keys, [0, 1])
    writer = PartWriter(tmp_path / "parts", FORM, 9, 9)
    writer.add(answer(1, key_hex(keys[1]), text="second thoughts"))
    writer.flush()
    assert finalise(tmp_path, source, keys).column("text").to_pylist() == ["answer 0", "second thoughts"]
    progress = read_progress(find_parts(tmp_path / "parts", FORM), keys)
    assert progress.done.tolist() == [True, True]


def test_foreign_columns_pass_through_and_clashes_get_a_prefix(tmp_path: Path) -> None:
    given = pa.table(
        {
            "prompt": ["a", "b"],
            "id": ["x", None],
            "text": ["mine", None],
            "input_text": [1, 2],
            "nested": [[{"k": 1}], None],
            "label": pa.array(["u", "v"]).dictionary_encode(),
            "empty": pa.nulls(2),
            "owner": ["finance", None],
        }
    )
    source, keys = opened(tmp_path, given)
    answered(tmp_path, keys, [1, 0])
    table = finalise(tmp_path, source, keys)
    assert table.column_names == [
        *output_schema(token_ids=True).names,
        *("input_input_text", "input_text", "nested", "label", "empty", "owner"),
    ]
    assert table.column("input_input_text").to_pylist() == ["mine", None]
    assert table.column("input_text").to_pylist() == [1, 2]
    assert table.column("nested").to_pylist() == [[{"k": 1}], None]
    assert table.column("label").to_pylist() == ["u", "v"]
    assert table.column("id").to_pylist() == ["x", None]
    assert table.column("owner").to_pylist() == ["finance", None]
    assert not any(pa.types.is_null(field.type) for field in table.schema)
    assert carried_names(["prompt_tokens", "other"]) == {
        "prompt_tokens": "input_prompt_tokens",
        "other": "other",
    }


def test_an_empty_table_gives_an_empty_result_with_the_full_schema(tmp_path: Path) -> None:
    source, keys = opened(
        tmp_path, pa.table({"prompt": pa.array([], pa.string()), "n": pa.array([], pa.int8())})
    )
    table = finalise(tmp_path, source, keys)
    assert table.num_rows == 0
    assert table.schema.equals(results_schema(True, source.carried))


def test_times_are_timestamps_counted_from_the_first_start(tmp_path: Path) -> None:
    source, keys = opened(tmp_path, pa.table({"prompt": ["a"]}))
    writer = PartWriter(tmp_path / "parts", FORM, 9, 9)
    slo = Slo(deadline=60.5)
    times = {"arrival": 1.5, "admitted_at": 2.0, "first_token_at": 3.0, "finished_at": 61.0}
    writer.add(answer(0, key_hex(keys[0]), slo=slo, token_ids=(1, 2, 3), **times))
    writer.flush()
    (row,) = finalise(tmp_path, source, keys).to_pylist()
    assert (row["arrival"].timestamp(), row["deadline"].timestamp()) == (1e9 + 1.5, 1e9 + 60.5)
    assert (row["queued_s"], row["ttft_s"], row["tpot_ms"], row["e2e_s"]) == (0.5, 1.5, 29_000.0, 59.5)
    assert (row["deadline_met"], row["slo_met"], row["output_tokens"]) == (False, False, 3)


def test_missing_answers_are_found_and_an_earlier_file_stays(tmp_path: Path) -> None:
    source, keys = opened(tmp_path, pa.table({"prompt": ["a", "b", "c"]}))
    answered(tmp_path, keys, [0, 2])
    (tmp_path / "results.parquet").write_bytes(b"earlier")
    with pytest.raises(EngineError, match="1 rows have no answer, the first is row 1"):
        finalise(tmp_path, source, keys)

    def stop() -> None:
        raise KeyboardInterrupt

    answered(tmp_path, keys, [1])
    with pytest.raises(KeyboardInterrupt):
        finalise(tmp_path, source, keys, stop)
    assert (tmp_path / "results.parquet").read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", "parts", "results.parquet"]


def test_a_part_whose_pages_are_damaged_is_named(tmp_path: Path) -> None:
    source, keys = opened(tmp_path, pa.table({"prompt": [f"{i}" for i in range(200)]}))
    answered(tmp_path, keys, list(range(200)), flush_rows=1000)
    (part,) = (tmp_path / "parts").iterdir()
    raw = bytearray(part.read_bytes())
    raw[60:2000] = bytes(1940)
    part.write_bytes(raw)
    with pytest.raises(StorageError, match=r"part-000001\.parquet: cannot be read back"):
        finalise(tmp_path, source, keys)


def fill_the_disk(path: Path) -> None:
    with replacing(path) as sibling:
        sibling.write_text("half")
        raise OSError(28, "No space left on device")


def test_a_failed_write_leaves_the_old_file_and_keeps_the_answers(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No space left"):
        fill_the_disk(tmp_path / "f")
    assert list(tmp_path.iterdir()) == []
    write_text(tmp_path / "f", "whole")
    _, keys = opened(tmp_path, pa.table({"prompt": ["a"]}))
    (tmp_path / "parts").write_text("in the way")
    writer = PartWriter(tmp_path / "parts", FORM, 1, 1)
    writer.add(answer(0, key_hex(keys[0])))
    with pytest.raises(StorageError):
        writer.flush()
    (tmp_path / "parts").unlink()
    writer.flush()
    assert writer.committed == 1
    assert pq.read_table(tmp_path / "parts").column("text").to_pylist() == ["answer 0"]


def test_parts_declare_every_type_even_when_all_values_are_null(tmp_path: Path) -> None:
    _, keys = opened(tmp_path, pa.table({"prompt": ["a"]}))
    writer = PartWriter(tmp_path / "parts", FORM, 9, 9)
    rejected = {"text": None, "finish_reason": None, "token_ids": (), "status": Status.REJECTED}
    writer.add(answer(0, key_hex(keys[0]), **rejected))
    writer.flush()
    (part,) = (tmp_path / "parts").iterdir()
    assert pq.read_schema(part).equals(part_schema(token_ids=True))
