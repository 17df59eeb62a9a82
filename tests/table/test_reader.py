"""The input table: column faults stop the job, row faults stay with the row, the index tells the truth."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig, Tier
from specbatch.errors import ConfigError, InputError, RowFault
from specbatch.rows import RawPrompt, SamplingParams
from specbatch.slo import Slo
from specbatch.table.fetch import RowFetcher
from specbatch.table.parse import RowParser
from specbatch.table.reader import InputTable
from specbatch.table.spool import Spool

EPOCH = 1_000_000.0
UTC = dt.UTC


def save(path: Path, table: pa.Table | dict[str, object], **options: object) -> str:
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), path, **options)
    return str(path)


def rows_of(tmp_path: Path, table: pa.Table | dict[str, object], **config: object) -> list[RawPrompt | str]:
    """Every row, or its fault code."""
    path = save(tmp_path / "in.parquet", table)
    job = JobConfig.model_validate({"input": (path,), **config})
    parser = RowParser.of(job, EPOCH)
    with Spool(tmp_path) as spool:
        fetcher = RowFetcher(InputTable.open(job).index(parser, spool), parser, spool)
        return [outcome(fetcher, row) for row in range(len(spool))]


def outcome(fetcher: RowFetcher, row: int) -> RawPrompt | str:
    try:
        return fetcher.fetch(row)
    except RowFault as fault:
        return fault.code


def only(rows: list[RawPrompt | str]) -> RawPrompt:
    (row,) = rows
    assert isinstance(row, RawPrompt)
    return row


def test_every_column_reaches_the_row(tmp_path: Path) -> None:
    table = pa.table(
        {
            "prompt": ["hello"],
            "id": pa.array([7], pa.int32()),
            "deadline": pa.array(
                [dt.datetime.fromtimestamp(EPOCH + 12.5, UTC)], pa.timestamp("ms", "Europe/Lisbon")
            ),
            "tier": pa.array(["batch"]).dictionary_encode(),
            "tpot_slo_ms": [50.1],
            "ttft_slo_ms": pa.array([900], pa.int16()),
            "max_tokens": [3.0],
            "temperature": [0.5],
            "top_p": [0.9],
            "top_k": [5],
            "min_p": [0.1],
            "repetition_penalty": [1.5],
            "seed": pa.array([2**63 - 1], pa.uint64()),
            "stop": [["a", "b"]],
            "arrival_s": [2],
            "owner": ["us"],
            "else": [1],
        }
    )
    row = only(rows_of(tmp_path, table))
    params = SamplingParams(0.5, 5, 0.9, 0.1, 1.5, 3, ("a", "b"), 2**63 - 1)
    slo = Slo(deadline=12.5, tpot_ms=50.1, ttft_ms=900.0)
    assert row == RawPrompt(0, row.key, "7", "batch", "hello", params, slo, 2.0, "us")


def test_nulls_fall_back_to_the_job(tmp_path: Path) -> None:
    table = pa.table(
        {"prompt": ["x"], "max_tokens": pa.array([None], pa.int64()), "tier": pa.array([None], pa.string())}
    )
    gold = Tier(priority=3, deadline_s=10, tpot_slo_ms=5, ttft_slo_ms=6)
    row = only(rows_of(tmp_path, table, max_tokens=9, stop=("z",), tiers={"gold": gold}, default_tier="gold"))
    assert row.params == SamplingParams(max_tokens=9, stop=("z",))
    assert (row.tier, row.slo) == ("gold", Slo(10, 5, 6))


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"prompt": [None]}, "null_prompt"),
        ({"prompt": [""]}, "empty_prompt"),
        ({"prompt": ["x"], "tier": ["gold"]}, "unknown_tier"),
        ({"prompt": ["x"], "max_tokens": [0]}, "invalid_value"),
        ({"prompt": ["x"], "max_tokens": [2.5]}, "invalid_value"),
        ({"prompt": ["x"], "temperature": [float("nan")]}, "invalid_value"),
        ({"prompt": ["x"], "temperature": [-1.0]}, "invalid_value"),
        ({"prompt": ["x"], "top_p": [0.0]}, "invalid_value"),
        ({"prompt": ["x"], "min_p": [1.5]}, "invalid_value"),
        ({"prompt": ["x"], "seed": [-1]}, "invalid_value"),
        ({"prompt": ["x"], "max_draft_tokens": [-1]}, "invalid_value"),
        ({"prompt": ["x"], "max_draft_tokens": [1.5]}, "invalid_value"),
        ({"prompt": ["x"], "stop": [["a", ""]]}, "invalid_value"),
        ({"prompt": ["x"], "deadline_s": [float("inf")]}, "invalid_value"),
        ({"prompt": ["x"], "tpot_slo_ms": [0]}, "invalid_value"),
        ({"prompt": ["x"], "arrival_s": [-1]}, "invalid_value"),
        ({"messages": [[]]}, "empty_prompt"),
        ({"messages": [[{"role": None, "content": "x"}]]}, "invalid_messages"),
        ({"messages": [[None, {"role": "user", "content": "x"}]]}, "invalid_messages"),
    ],
)
def test_a_bad_row_is_named_and_its_neighbour_is_untouched(
    tmp_path: Path, columns: dict[str, list[object]], code: str
) -> None:
    good: dict[str, object] = {"prompt": "good", "messages": [{"role": "user", "content": "good"}]}
    table = pa.table({name: pa.array([*values, good.get(name)]) for name, values in columns.items()})
    if code == "null_prompt":
        table = table.cast(pa.schema([("prompt", pa.string())]))
    bad, fine = rows_of(tmp_path, table)
    assert bad == code
    assert isinstance(fine, RawPrompt)


def test_invalid_utf8_is_the_fault_of_its_row_alone(tmp_path: Path) -> None:
    raw = pa.array([b"\xff\xfe", b"fine"], pa.binary())
    text = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    turns = pa.StructArray.from_arrays([pa.array(["user", "user"]), text], names=["role", "content"])
    assert [getattr(row, "content", row) for row in rows_of(tmp_path, {"prompt": text})] == [
        "invalid_utf8",
        "fine",
    ]
    messages = pa.ListArray.from_arrays([0, 1, 2], turns)
    bad, fine = rows_of(tmp_path, {"messages": messages})
    assert bad == "invalid_utf8"
    assert isinstance(fine, RawPrompt)


def test_a_stop_string_that_is_not_utf8_is_the_fault_of_its_row_alone(tmp_path: Path) -> None:
    raw = pa.array([b"\xff\xfe", b"fine"], pa.binary())
    text = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    stop = pa.ListArray.from_arrays([0, 1, 2], text)
    bad, fine = rows_of(tmp_path, {"prompt": ["same", "same"], "stop": stop})
    assert bad == "invalid_utf8"
    assert isinstance(fine, RawPrompt)
    assert fine.params.stop == ("fine",)


def test_lists_of_nothing_are_stop_strings_too(tmp_path: Path) -> None:
    row = only(rows_of(tmp_path, {"prompt": ["x"], "stop": [[]]}))
    assert row.params.stop == ()


def test_whole_decimals_keep_every_digit(tmp_path: Path) -> None:
    seed = Decimal(2**53 + 1)
    row = only(rows_of(tmp_path, {"prompt": ["x"], "seed": pa.array([seed], pa.decimal128(18, 0))}))
    assert row.params.seed == 2**53 + 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_deadlines_at_the_ends_of_time_stay_on_their_side_of_now(tmp_path: Path, unit: str) -> None:
    end = 2**62 if unit != "s" else 2**53  # Parquet keeps milliseconds at the coarsest
    times = pa.array([end, -end], pa.int64()).cast(pa.timestamp(unit, "UTC"))
    future, past = rows_of(tmp_path, {"prompt": ["x", "y"], "deadline": times})
    assert isinstance(future, RawPrompt)
    assert isinstance(past, RawPrompt)
    assert future.slo.deadline is not None
    assert past.slo.deadline is not None
    assert past.slo.deadline < 0 < future.slo.deadline


def test_an_unknown_tier_is_named_without_filling_the_screen(tmp_path: Path) -> None:
    path = save(tmp_path / "in.parquet", {"prompt": ["x"], "tier": ["t" * 100_000]})
    job = JobConfig(input=(path,))
    parser = RowParser.of(job, EPOCH)
    with Spool(tmp_path) as spool, pytest.raises(RowFault, match="is not a tier") as caught:
        RowFetcher(InputTable.open(job).index(parser, spool), parser, spool).fetch(0)
    assert len(caught.value.message) < 200


@pytest.mark.filterwarnings("error")
def test_a_promise_too_large_for_the_index_is_no_warning(tmp_path: Path) -> None:
    row = only(rows_of(tmp_path, {"prompt": ["x"], "ttft_slo_ms": [1e300]}))
    assert row.slo.ttft_ms == 1e300


def test_conversations_become_plain_python_without_the_nulls_of_other_turns(tmp_path: Path) -> None:
    call = {"name": "f", "arguments": {"x": 1}}
    turns: list[list[dict[str, object]]] = [
        [{"role": "user", "content": "a"}],
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "1"},
        ],
    ]
    first, second = rows_of(tmp_path, {"messages": turns})
    assert isinstance(first, RawPrompt)
    assert isinstance(second, RawPrompt)
    assert list(first.content) == turns[0]
    assert list(second.content) == turns[1]


def test_turns_stored_as_maps_are_dictionaries_too(tmp_path: Path) -> None:
    kind = pa.list_(pa.map_(pa.string(), pa.string()))
    table = pa.table({"messages": pa.array([[[("role", "user"), ("content", "hi")]]], kind)})
    assert only(rows_of(tmp_path, table)).content == ({"role": "user", "content": "hi"},)


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"text": ["x"]}, "no column `prompt` or `messages`"),
        ({"prompt": [1]}, "column `prompt` is int64, expected string"),
        ({"prompt": pa.nulls(2)}, "no column `prompt` or `messages`"),
        ({"prompt": ["x"], "max_tokens": ["3"]}, "column `max_tokens` is string, expected integer"),
        ({"prompt": ["x"], "temperature": [True]}, "column `temperature` is bool, expected number"),
        (
            {"prompt": ["x"], "deadline": [dt.datetime(2026, 1, 1)]},
            "column `deadline` holds timestamps without",
        ),
        ({"prompt": ["x"], "deadline": ["soon"]}, "column `deadline` is string, expected timestamp"),
        ({"prompt": ["x"], "stop": ["a"]}, "column `stop` is string, expected list<string>"),
        ({"messages": ["x"]}, "column `messages` is string, expected list<struct"),
        ({"messages": [[{"content": "x"}]]}, "expected list<struct"),
        (
            {"prompt": ["x"], "messages": [[{"role": "user", "content": "x"}]]},
            "`prompt` and `messages` are both set in every row",
        ),
    ],
)
def test_a_wrong_column_stops_the_job_and_names_file_and_column(
    tmp_path: Path, columns: dict[str, object], what: str
) -> None:
    with pytest.raises(InputError) as caught:
        rows_of(tmp_path, columns)
    assert what in caught.value.what
    assert "in.parquet" in caught.value.what
    assert caught.value.exit_code == 2


def test_a_table_may_hold_prompts_and_conversations_one_per_row(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "x"}]
    got = rows_of(tmp_path, {"prompt": ["x", None, "x"], "messages": [None, turns, turns]})
    assert [getattr(row, "content", row) for row in got] == ["x", tuple(turns), "ambiguous_prompt"]


def test_naive_timestamps_mean_the_zone_that_is_given(tmp_path: Path) -> None:
    noon = dt.datetime(2026, 7, 1, 12)
    row = only(rows_of(tmp_path, {"prompt": ["x"], "deadline": [noon]}, tz="Europe/Lisbon"))
    assert row.slo.deadline == dt.datetime(2026, 7, 1, 11, tzinfo=UTC).timestamp() - EPOCH
    with pytest.raises(ConfigError, match="not a time zone"):
        rows_of(tmp_path, {"prompt": ["x"]}, tz="Mars/Base")


def test_columns_of_other_names_are_mapped(tmp_path: Path) -> None:
    row = only(
        rows_of(tmp_path, {"question": ["x"], "who": ["me"]}, columns={"prompt": "question", "owner": "who"})
    )
    assert (row.content, row.owner) == ("x", "me")
    with pytest.raises(InputError, match="no column `ask`"):
        rows_of(tmp_path, {"question": ["x"]}, columns={"prompt": "ask"})
