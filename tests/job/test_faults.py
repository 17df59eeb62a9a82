"""Every fault of a row, alone and with all others: documented code, helpful message, good rows unharmed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import ExitCode, InputError
from specbatch.table.schema import part_schema
from specbatch.text.chat import ChatTemplate
from specbatch.text.encoder import PromptEncoder
from specbatch.text.tokenizer import Tokenizer

from .fake_engine import FakeEncoder, FakeEngine, World
from .jobs import manifest, results, run, save_job

CONTEXT = 1000
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
SCHEMA = pa.schema(
    [
        ("prompt", pa.string()),
        ("messages", pa.list_(MESSAGE)),
        ("id", pa.string()),
        ("tier", pa.string()),
        ("deadline_s", pa.float64()),
        ("max_tokens", pa.int64()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("stop", pa.list_(pa.string())),
    ]
)
NAN = float("nan")
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "null": ({"prompt": None}, "null_prompt", "column `prompt` is null; give"),
    "empty": ({"prompt": ""}, "empty_prompt", "is empty; give"),
    "blank": ({"prompt": " \n"}, "empty_prompt", "is empty; give"),
    "both": ({"messages": [{"role": "user", "content": "x"}]}, "ambiguous_prompt", "leave one null"),
    "no turns": ({"prompt": None, "messages": []}, "empty_prompt", "column `messages` has no turn; give"),
    "no role": (
        {"prompt": None, "messages": [{"role": None, "content": "x"}]},
        "invalid_messages",
        "column `messages`, turn 1: no `role`",
    ),
    "over-long": (
        {"prompt": "long " * 300},
        "prompt_too_long",
        "the model holds 1000, output included; shorten",
    ),
    "no room": ({"max_tokens": 999}, "max_tokens_exceeds_context", "exceed the model's 1000; at most"),
    "unknown tier": (
        {"tier": "platinum"},
        "unknown_tier",
        "column `tier`: 'platinum' is not a tier; use one of",
    ),
    "refused": (
        {"prompt": None, "messages": [{"role": "villain", "content": "x"}]},
        "template_error",
        "the model's chat template refused the row: no villains",
    ),
    "NaN": ({"temperature": NAN}, "invalid_value", "column `temperature` is nan; use a number"),
    "out of range": (
        {"top_p": 1.5},
        "invalid_value",
        "column `top_p` is 1.5; use a number above 0, at most 1",
    ),
    "no tokens": (
        {"max_tokens": 0},
        "invalid_value",
        "column `max_tokens` is 0; use an integer of at least 1",
    ),
    "empty stop": ({"stop": [""]}, "invalid_value", "column `stop` holds an empty or null string; remove it"),
    "no deadline": ({"deadline_s": NAN}, "invalid_value", "column `deadline_s` is nan; use a finite number"),
    "same id": ({"id": "good 0"}, "duplicate_id", "column `id`: 'good 0' is the id of row 0 already; give"),
}
TEMPLATE = """{%- for message in messages %}
{%- if message.role == 'villain' %}{{ raise_exception('no villains') }}{% endif %}
{%- endfor %}{{ messages | tojson }}"""


class Bytes:
    """A token per byte."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert add_special_tokens in (True, False)
        return list(text.encode())


@dataclass(frozen=True)
class Limit:
    max_context: int = CONTEXT


def world() -> World:
    """A fake engine behind the real encoder."""
    encoder = PromptEncoder(cast("Tokenizer", Bytes()), ChatTemplate(TEMPLATE, {}), Limit())
    return World(FakeEngine(encoder=cast("FakeEncoder", encoder)))


def good(number: int) -> dict[str, Any]:
    return {"prompt": f"good {number}", "id": f"good {number}", "max_tokens": 8}


def bad(name: str) -> dict[str, Any]:
    return {"prompt": f"bad: {name}", "id": name, "max_tokens": 8, **FAULTS[name][0]}


def job(folder: Path, rows: list[dict[str, Any]], row_group_size: int = 4, **settings: object) -> JobConfig:
    table = pa.Table.from_pylist(rows, SCHEMA)
    config = save_job(folder, {name: table.column(name) for name in table.column_names}, **settings)
    pq.write_table(table, config.input[0], row_group_size=row_group_size)
    return config


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Texts of the good rows in a job of nothing else."""
    config = job(tmp_path_factory.mktemp("clean"), [good(number) for number in range(len(FAULTS))])
    assert run(config, world()).exit_code == ExitCode.OK
    return [row["text"] for row in results(config)]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_alone_is_a_row_with_code_and_message(
    tmp_path: Path, undisturbed: list[object], name: str
) -> None:
    config = job(tmp_path / "faulty", [good(0), bad(name), good(1)])
    outcome = run(config, world())
    assert outcome.exit_code == ExitCode.ROW_FAILURES
    first, faulty, last = results(config)
    _, code, message = FAULTS[name]
    assert (faulty["status"], faulty["error_code"], faulty["text"]) == ("rejected", code, None)
    assert faulty["error_message"].startswith("row 1: ")
    assert message in faulty["error_message"]
    assert [first["text"], last["text"]] == undisturbed[:2]


def test_a_row_of_an_unknown_tier_is_in_no_tier_and_has_no_tiers_promises(tmp_path: Path) -> None:
    tiers = {"standard": {"priority": 1, "deadline_s": 60, "ttft_slo_ms": 5000, "tpot_slo_ms": 500}}
    rows = [good(0), bad("unknown tier"), {**bad("null"), "tier": "batch"}, bad("no tokens")]
    config = job(tmp_path, rows, tiers=tiers)
    summary = run(config, world()).summary
    found = results(config)
    assert [row["tier"] for row in found] == ["standard", None, "batch", "standard"]
    assert [found[1][name] for name in ("deadline", "ttft_slo_ms", "tpot_slo_ms", "slo_met")] == [None] * 4
    assert found[3]["slo_met"] is False
    assert {tier: each["rows"] for tier, each in summary["tiers"].items()} == {"standard": 2, "batch": 1}


def test_all_faults_together_leave_the_good_rows_as_they_are(
    tmp_path: Path, undisturbed: list[object]
) -> None:
    names = list(FAULTS)
    rows = [row for number, name in enumerate(names) for row in (good(number), bad(name))]
    config = job(tmp_path / "faulty", rows, flush_rows=3)
    outcome = run(config, world())
    assert f"{len(names)} of {2 * len(names)} rows failed" in outcome.verdict
    found = results(config)
    assert [row["error_code"] for row in found[1::2]] == [FAULTS[name][1] for name in names]
    assert all(row["error_code"] is None for row in found[::2])
    assert [row["text"] for row in found[::2]] == undisturbed
    again = world()
    assert run(config, again, retry_failed=True).exit_code == ExitCode.ROW_FAILURES
    assert manifest(config)["attempts"][1]["rows"] == len(names), "only they are looked at, and fail again"
    assert again.opened == 0
    assert [row["error_message"] for row in results(config)] == [row["error_message"] for row in found]


def test_a_deadline_in_the_past_is_answered_and_missed(tmp_path: Path) -> None:
    config = job(tmp_path, [{**good(0), "deadline_s": -5.0}, {**good(1), "deadline_s": 1e6}])
    assert run(config, world()).exit_code == ExitCode.OK
    assert [row["deadline_met"] for row in results(config)] == [False, True]


def test_deadlines_beyond_any_calendar_give_a_file_that_can_be_read(tmp_path: Path) -> None:
    config = job(tmp_path, [{**good(0), "deadline_s": 1e300}, {**good(1), "deadline_s": -1e300}])
    run(config, world())
    assert [row["deadline"].year for row in results(config)] == [9999, 1]


def test_errors_that_begin_in_a_later_row_group_give_one_readable_file(tmp_path: Path) -> None:
    rows = [good(number) for number in range(8)] + [bad(name) for name in FAULTS if name != "same id"]
    config = job(tmp_path, rows, flush_rows=4)
    run(config, world())
    for path in [*(tmp_path / "out" / "parts").iterdir(), tmp_path / "out" / "results.parquet"]:
        assert not [field.name for field in pq.read_schema(path) if pa.types.is_null(field.type)]
    parts = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / "out" / "parts").iterdir())])
    assert parts.schema.equals(part_schema(token_ids=False))
    assert parts.num_rows == len(rows) == len(results(config))


def test_conversations_reach_the_template_as_plain_python(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    user, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}
    conversations: list[list[dict[str, Any]]] = [
        [user],
        [user, answer],
        [
            user,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "1", "tool_call_id": "c1"},
        ],
    ]
    config = save_job(tmp_path, {"messages": conversations})
    # One conversation per row group: what a column holds elsewhere must not show.
    pq.write_table(pa.table({"messages": conversations}), config.input[0], row_group_size=1)
    assert run(config, world()).exit_code == ExitCode.OK
    rendered = [json.loads(str(row["text"]).rpartition(" -> ")[0]) for row in results(config)]
    conversations[2][1].pop("content")
    assert rendered == conversations, "null fields are absent, nested values are lists and dictionaries"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "not a readable Parquet file"),
        (b"id,prompt\n1,hello\n", "not a readable Parquet file"),
        (b"PAR1" + bytes(100) + b"PAR1", "not a readable Parquet file"),
    ],
)
def test_input_that_cannot_be_read_is_named_and_nothing_begins(
    tmp_path: Path, content: bytes, what: str
) -> None:
    config = save_job(tmp_path, {"prompt": ["a"]})
    Path(config.input[0]).write_bytes(content)
    with pytest.raises(InputError, match=what) as caught:
        run(config)
    assert (caught.value.exit_code, "in.parquet" in caught.value.what) == (ExitCode.USAGE, True)
    assert not (tmp_path / "out").exists()


def test_truncated_and_damaged_input_leaves_earlier_results_alone(tmp_path: Path) -> None:
    config = save_job(tmp_path, {"prompt": [f"{row} text" for row in range(3000)]})
    run(config)
    before = (tmp_path / "out" / "results.parquet").read_bytes()
    whole = Path(config.input[0]).read_bytes()
    damaged = bytearray(whole)
    damaged[100:3000] = bytes(2900)
    for content in (whole[:-100], bytes(damaged)):
        Path(config.input[0]).write_bytes(content)
        with pytest.raises(InputError, match=r"in\.parquet"):
            run(config)
        assert (tmp_path / "out" / "results.parquet").read_bytes() == before
    Path(config.input[0]).write_bytes(whole)
    assert run(config).exit_code == ExitCode.OK
