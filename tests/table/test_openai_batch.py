"""OpenAI batch files: requests become rows, results become responses, nothing is dropped in silence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import InputError
from specbatch.table.openai_batch import requests_to_table, results_to_responses
from specbatch.table.openai_request import BadLineError, parse_request
from specbatch.table.parse import RowParser
from specbatch.table.reader import InputTable
from specbatch.table.schema import output_schema


def request(custom_id: str = "a", **body: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": "hi"}], **body}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line).encode()


def test_requests_become_rows_that_the_reader_understands(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]
    lines = [
        request("a", max_tokens=4, stop="x", temperature=1, user="me", model="m"),
        b"",
        request("b", max_completion_tokens=5, stop=["y", "z"], top_p=0.5, seed=3, top_k=2, n=1),
        request("c", messages=turns, stream=False, logit_bias={}),
    ]
    (tmp_path / "b.jsonl").write_bytes(b"\n".join(lines))
    done = requests_to_table(tmp_path / "b.jsonl", tmp_path / "t.parquet")
    assert (done.rows, dict(done.left_out), dict(done.models)) == (3, {}, {"m": 1})
    rows = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert [row["max_tokens"] for row in rows] == [4, 5, None]
    assert [row["stop"] for row in rows] == [["x"], ["y", "z"], None]
    config = JobConfig(input=(str(tmp_path / "t.parquet"),))
    table = InputTable.open(config)
    assert table.carried.names == ["owner", "model"]
    parser = RowParser.of(config, 0.0)
    parsed = [parser.parse(number, "", row) for number, row in enumerate(rows)]
    assert parsed[2].content == (
        {"role": "system", "content": "Be brief"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    )
    assert (parsed[0].params.temperature, parsed[1].params.seed, parsed[1].params.top_k) == (1.0, 3, 2)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b"[]", "the line is not an object"),
        (b"\xff{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (request().replace(b"POST", b"GET"), 'method is "GET"'),
        (request().replace(b"/v1/chat/completions", b"/v1/embeddings"), 'url is "/v1/embeddings"'),
        (request(""), "custom_id is missing or empty"),
        (request(messages=[]), "body.messages is missing or empty"),
        (request(messages=[{"content": "x"}]), "messages[0] has no role"),
        (request(messages=[{"role": "user", "audio": {}}]), "messages[0].audio is not supported"),
        (request(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 'type "image_url"'),
        (request(messages=[{"role": "user", "content": "\ud83d"}]), "stands alone and is no character"),
        (request(max_tokens=3, max_completion_tokens=4), "max_completion_tokens is 4, but max_tokens is 3"),
        (request(max_tokens=True), "max_tokens is true"),
        (request(seed=2**64), "expected an integer of 64 bits"),
        (request(temperature="hot"), 'temperature is "hot"'),
        (request(stop=[1]), "stop is [1]"),
    ],
)
def test_a_bad_line_says_what_is_wrong(line: bytes, reason: str) -> None:
    with pytest.raises(BadLineError, match=re.escape(reason)):
        parse_request(line)


def test_bad_lines_are_named_by_number_and_nothing_is_written(tmp_path: Path) -> None:
    lines = [request("a"), b"{", request("a"), *[b"?"] * 12, request("c", n=3, tools=[{}])]
    (tmp_path / "b.jsonl").write_bytes(b"\n".join(lines))
    with pytest.raises(InputError) as caught:
        requests_to_table(tmp_path / "b.jsonl", tmp_path / "t.parquet")
    assert "15 bad lines: line 2: not JSON" in caught.value.what
    assert caught.value.what.endswith("and 5 more")
    assert [path.name for path in tmp_path.iterdir()] == ["b.jsonl"]
    (tmp_path / "b.jsonl").write_bytes(b"\n".join([request("a"), request("b"), request("a")]))
    with pytest.raises(InputError, match="line 3: custom_id is that of line 1"):
        requests_to_table(tmp_path / "b.jsonl", tmp_path / "t.parquet")
    (tmp_path / "b.jsonl").write_bytes(b"\n")
    with pytest.raises(InputError, match="no requests"):
        requests_to_table(tmp_path / "b.jsonl", tmp_path / "t.parquet")


def test_unsupported_fields_are_refused_by_name_or_left_out_by_name(tmp_path: Path) -> None:
    line = request(n=2, presence_penalty=0.5, logprobs=False, metadata={"k": 1}, unheard_of=1, tools=None)
    (tmp_path / "b.jsonl").write_bytes(line)
    with pytest.raises(InputError, match=r"body\.unheard_of, body\.n, body\.presence_penalty not supported"):
        requests_to_table(tmp_path / "b.jsonl", tmp_path / "t.parquet")
    done = requests_to_table(tmp_path / "b.jsonl", tmp_path / "t.parquet", drop_unsupported=True)
    assert set(done.left_out) == {"body.unheard_of", "body.n", "body.presence_penalty", "metadata"}


def test_results_become_responses(tmp_path: Path) -> None:
    schema = output_schema(token_ids=False).with_metadata(
        {b"specbatch.run_id": b"0123456789abcdef", b"specbatch.config": b'{"model": "smollm2-135m"}'}
    )
    good = {"status": "ok", "finish_reason": "stop", "text": "yés", "prompt_tokens": 5, "output_tokens": 2}
    bad = {"status": "rejected", "error_code": "null_prompt", "error_message": "row 1: no prompt"}
    columns = [
        {"row_index": 0, "id": "a", "arrival": 1_000_000, "e2e_s": 2.5, **good},
        {"row_index": 1, "id": None, **bad},
    ]
    (tmp_path / "r.out").mkdir()
    pq.write_table(pa.Table.from_pylist(columns, schema), tmp_path / "r.out" / "results.parquet")
    assert results_to_responses(tmp_path / "r.out", tmp_path / "a.jsonl").rows == 2
    first, second = map(json.loads, (tmp_path / "a.jsonl").read_text("utf-8").splitlines())
    assert (first["id"], first["custom_id"], first["error"]) == ("batch_req_0123456789ab-0", "a", None)
    body = first["response"]["body"]
    assert (first["response"]["status_code"], body["model"], body["created"]) == (200, "smollm2-135m", 3)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "yés"}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == 7
    assert (second["custom_id"], second["response"]) == ("row-1", None)
    assert second["error"] == {"code": "null_prompt", "message": "row 1: no prompt"}


@pytest.mark.parametrize("name", ["missing", "text", "table"])
def test_what_is_no_result_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "text").write_text("x")
    pq.write_table(pa.table({"prompt": ["x"]}), tmp_path / "table")
    with pytest.raises(InputError, match="not the results of a run"):
        results_to_responses(tmp_path / name, tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()
