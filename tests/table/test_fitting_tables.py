"""Other people's tables: prompts made of columns, rows chosen, files anywhere, ids that repeat."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbatch.config import JobConfig
from specbatch.errors import ConfigError, InputError, RowFault
from specbatch.table import source as source_module
from specbatch.table.fetch import RowFetcher
from specbatch.table.ids import first_with_id
from specbatch.table.keys import as_keys
from specbatch.table.parse import RowParser
from specbatch.table.reader import InputTable
from specbatch.table.spool import Spool
from specbatch.table.template import Template


def save(path: Path, table: dict[str, object], **options: object) -> str:
    pq.write_table(pa.table(table), path, **options)
    return str(path)


def contents(tmp_path: Path, *inputs: str, **settings: object) -> list[object]:
    """Content of every row, or code and message of its fault."""
    config = JobConfig.model_validate({"input": inputs, **settings})
    parser = RowParser.of(config, 0.0)
    with Spool(tmp_path) as spool:
        fetcher = RowFetcher(InputTable.open(config).index(parser, spool), parser, spool)
        return [content(fetcher, row) for row in range(len(spool))]


def content(fetcher: RowFetcher, row: int) -> object:
    try:
        return fetcher.fetch(row).content
    except RowFault as fault:
        return (fault.code, fault.message)


def test_a_template_makes_the_prompt_and_its_columns_still_pass_through(tmp_path: Path) -> None:
    table: dict[str, object] = {
        "body": ["long text", "{braces} stay"],
        "score": [1.25, 2.0],
        "when": [dt.date(2026, 7, 1)] * 2,
        "prompt": ["not this one", "nor this"],
    }
    path = save(tmp_path / "t.parquet", table)
    template = "Summarise {{briefly}} ({score:.1f}, {when:%d.%m.}): {body}"
    assert contents(tmp_path, path, template=template) == [
        "Summarise {briefly} (1.2, 01.07.): long text",
        "Summarise {briefly} (2.0, 01.07.): {braces} stay",
    ]
    opened = InputTable.open(JobConfig(input=(path,), template=template))
    assert opened.carried.names == list(table)


def test_a_template_that_cannot_be_filled_in_is_the_fault_of_its_row(tmp_path: Path) -> None:
    raw = pa.array([b"fine", b"\xff", b"fine", b""], pa.binary())
    body = pa.StringArray.from_buffers(4, raw.buffers()[1], raw.buffers()[2])
    table: dict[str, object] = {"body": body, "score": pa.array([1, 2, None, 4])}
    path = save(tmp_path / "t.parquet", table)
    fine, undecodable, null, empty = contents(tmp_path, path, template="{score:03d} {body}")
    assert fine == "001 fine"
    assert empty == "004 "
    assert undecodable == ("template_error", "column `body` is not UTF-8 (invalid start byte); re-encode it")
    assert null == ("template_error", "column `score` is null, and the template needs it")
    (wrong, *_) = contents(tmp_path, path, template="{body:03d}")
    assert isinstance(wrong, tuple)
    assert wrong[0] == "template_error"
    assert "Unknown format code" in wrong[1]


@pytest.mark.parametrize(
    "text",
    ["no column", "{}", "{0}", "{a.__class__}", "{a[0]}", "{a", "a}", "{a:{b}}", "{{a}}", "{a:>1000000000}"],
)
def test_templates_reach_no_further_than_columns(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Template.parse(text)
    assert text in caught.value.what
    assert "{body}" in caught.value.hint


def test_a_missing_template_column_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = save(tmp_path / "t.parquet", {"body": ["x"]})
    with pytest.raises(InputError, match=r"t\.parquet: no column `text` \(in template: \{text\}\)"):
        contents(tmp_path, path, template="{text}")


def test_the_prompt_may_be_in_another_column(tmp_path: Path) -> None:
    path = save(tmp_path / "t.parquet", {"question": ["q"], "prompt": ["p"]})
    assert contents(tmp_path, path, prompt_column="question") == ["q"]
    assert InputTable.open(JobConfig(input=(path,), prompt_column="question")).carried.names == ["prompt"]
    with pytest.raises(InputError, match="no column `ask`"):
        contents(tmp_path, path, prompt_column="ask")


@pytest.mark.parametrize(
    "settings",
    [
        {"template": "{a}", "prompt_column": "a"},
        {"template": "{a}", "columns": {"prompt": "a"}},
        {"prompt_column": "a", "columns": {"prompt": "b"}},
    ],
)
def test_one_prompt_is_enough(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="both say what the prompt is"):
        JobConfig.model_validate({"input": ("x",), **settings})


def test_rows_are_chosen_over_all_files_and_counted_afterwards(tmp_path: Path) -> None:
    first = save(tmp_path / "1.parquet", {"prompt": ["a", "b", "c"], "n": [1, 2, 3], "k": [1, 1, 1]})
    other = save(tmp_path / "2.parquet", {"prompt": ["d", "e"], "n": [4, 5], "k": [2, 2]})
    assert contents(tmp_path, first, other, where="n > 1 and n <> 3") == ["b", "d", "e"]
    assert contents(tmp_path, first, other, where="n > 1 and n <> 3", limit=2) == ["b", "d"]
    assert contents(tmp_path, first, other, where="prompt = 'zzz'") == []
    opened = InputTable.open(JobConfig(input=(first, other), where="n > 2", limit=2))
    carried = pa.Table.from_batches(opened.carried_batches())
    assert carried.select(["n", "k"]).to_pylist() == [{"n": 3, "k": 1}, {"n": 4, "k": 2}]
    unfiltered = InputTable.open(JobConfig(input=(first, other), limit=2))
    assert opened.fingerprint() != unfiltered.fingerprint()
    with pytest.raises(InputError, match=r"1\.parquet: no column `size`"):
        InputTable.open(JobConfig(input=(first,), where="size = 1"))


def test_ids_that_repeat_are_the_fault_of_the_later_rows(tmp_path: Path) -> None:
    table: dict[str, object] = {
        "prompt": ["same", "same", "other", "same", "last"],
        "id": pa.array([7, None, 7, None, 8]),
    }
    path = save(tmp_path / "t.parquet", table, row_group_size=2)
    fault = ("duplicate_id", "column `id`: '7' is the id of row 0 already; give every row its own")
    assert contents(tmp_path, path) == ["same", "same", fault, "same", "last"]


def test_an_id_that_repeats_in_another_file_names_row_and_file(tmp_path: Path) -> None:
    paths = [
        save(tmp_path / f"{name}.parquet", {"prompt": list(ids), "id": list(ids)})
        for name, ids in (("1", "ab"), ("2", "c"), ("3", "cdb"))
    ]
    faults = [
        (
            "duplicate_id",
            f"column `id`: '{name}' is the id of row {row} (in {path}) already; give every row its own",
        )
        for name, row, path in (("c", 2, paths[1]), ("b", 1, paths[0]))
    ]
    assert contents(tmp_path, *paths) == ["a", "b", "c", faults[0], "d", faults[1]]
    assert contents(tmp_path, *paths, where="id <> 'b'") == [
        *("a", "c"),
        ("duplicate_id", faults[0][1].replace("row 2", "row 1")),
        "d",
    ]


@given(st.lists(st.sampled_from([b"", b"a", b"b", b"c"]), max_size=12))
def test_repetition_is_told_by_the_first_row_and_null_is_no_id(ids: list[bytes]) -> None:
    array = as_keys(b"".join(item.ljust(16, b"\0") for item in ids))
    expected = [
        ids.index(item) if item != b"" and item in ids[:place] else -1 for place, item in enumerate(ids)
    ]
    assert first_with_id(array).tolist() == expected


def test_addresses_patterns_and_folders_of_any_filesystem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("day=1/a", "day=1/b", "day=2/a", "day=2/sub/c"):
        file = tmp_path / "bucket" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        save(file, {"prompt": [name]})
    (tmp_path / "bucket" / "day=2" / "_SUCCESS").write_bytes(b"")
    everything = ["day=1/a", "day=1/b", "day=2/a", "day=2/sub/c"]

    remote = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    seen: list[str] = []

    def from_uri(uri: str) -> tuple[pafs.FileSystem, str]:
        seen.append(uri)
        return remote, uri.removeprefix("mem://").partition("?")[0]

    local = f"file://{tmp_path}/bucket"
    for place in (local, "mem://bucket"):
        if place.startswith("mem"):
            monkeypatch.setattr(source_module, "_filesystem", from_uri)
        assert contents(tmp_path, f"{place}/day=1/a.parquet") == ["day=1/a"]
        assert contents(tmp_path, place) == everything
        assert contents(tmp_path, f"{place}/*/a.parquet") == ["day=1/a", "day=2/a"]
        assert contents(tmp_path, f"{place}/day=[2-9]/*.parquet") == ["day=2/a"]
        assert contents(tmp_path, f"{place}/day=[!2]/[ab].parquet") == ["day=1/a", "day=1/b"]
        assert contents(tmp_path, f"{place}/**/*.parquet") == everything
        assert contents(tmp_path, f"{place}/day=2*") == ["day=2/a", "day=2/sub/c"]
        with pytest.raises(InputError, match="no file matches"):
            contents(tmp_path, f"{place}/*.csv")
        with pytest.raises(InputError, match="no such file"):
            contents(tmp_path, f"{place}/day=3/a.parquet")
    assert contents(tmp_path, "mem://bucket/day=1/*.parquet?region=here") == ["day=1/a", "day=1/b"]
    assert seen[-1] == "mem://bucket/day=1?region=here"
    opened = InputTable.open(JobConfig(input=("mem://bucket/day=1/a.parquet",)))
    assert opened.fingerprint()[0]["path"] == "mem://bucket/day=1/a.parquet"


@pytest.mark.parametrize("address", ["nonsense://x/y", "file://relative/x.parquet"])
def test_an_address_that_leads_nowhere_is_one_clear_line(tmp_path: Path, address: str) -> None:
    with pytest.raises(InputError, match=address.split("://", 1)[0]) as caught:
        contents(tmp_path, address)
    assert "\n" not in caught.value.what
