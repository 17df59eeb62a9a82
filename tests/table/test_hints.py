"""What is wrong with a table comes with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import ConfigError, InputError
from specbatch.table.reader import InputTable

TURNS = [[{"role": "user", "content": "x"}]]


def hint_of(tmp_path: Path, table: dict[str, object], **settings: object) -> str:
    """What a job over a table of these columns is told."""
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    config = JobConfig.model_validate({"input": (str(tmp_path / "t.parquet"),), **settings})
    with pytest.raises((InputError, ConfigError)) as caught:
        InputTable.open(config)
    return caught.value.hint


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        ({"body": ["x"], "n": [1]}, "--prompt-column body, or --template '... {body} ...'"),
        ({"body": ["x"], "n": [1], "title": ["y"]}, "--prompt-column NAME, or --template '... {NAME} ...'; "),
        ({"body": ["x"], "n": [1], "title": ["y"]}, "columns with text: body, title"),
        ({"chat": TURNS, "title": ["x"]}, '[columns] messages = "chat"'),
        ({"n": [1]}, "one column must hold text; the table has: n"),
        ({f"column {number}": [1] for number in range(25)}, "column 19 and 5 more"),
    ],
)
def test_a_table_without_a_prompt_is_told_where_it_could_come_from(
    tmp_path: Path, columns: dict[str, object], hint: str
) -> None:
    assert hint in hint_of(tmp_path, columns)


@pytest.mark.parametrize(
    ("renamed", "hint"),
    [
        ({"body": "prompt"}, 'did you mean prompt = "body"?'),
        ({"promt": "body"}, "did you mean `prompt`? known: prompt, messages"),
        ({"prompt": "bdy"}, "did you mean `body`? the table has: body"),
    ],
)
def test_a_map_of_columns_is_put_right(tmp_path: Path, renamed: dict[str, str], hint: str) -> None:
    assert hint in hint_of(tmp_path, {"body": ["x"]}, columns=renamed)


def test_text_in_double_quotes_is_shown_in_single_ones(tmp_path: Path) -> None:
    table: dict[str, object] = {"prompt": ["x"], "lang": ["en"]}
    hint = hint_of(tmp_path, table, where='lang = "en" and prompt <> "x"')
    assert hint.startswith("text stands in single quotes")
    assert hint.endswith("lang = 'en' and prompt <> \"x\"")
    assert "did you mean `lang`?" in hint_of(tmp_path, table, where="lan = 'en'")
    assert "did you mean `lang`?" in hint_of(tmp_path, table, template="{lan}")


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        ({"prompt": [1]}, "use --template '{prompt}'"),
        ({"prompt": [1]}, 'cast it to string (pandas: df["prompt"].astype("string"))'),
        ({"id": [1.5]}, 'cast it to int64 or string (pandas: df["id"].astype("Int64"))'),
        ({"max_tokens": ["3"]}, 'cast it to int64 (pandas: df["max_tokens"].astype("Int64"))'),
        ({"top_p": ["0.5"]}, 'cast it to float64 (pandas: df["top_p"].astype("float64"))'),
        ({"deadline": ["2026-07-01"]}, '(pandas: pd.to_datetime(df["deadline"], utc=True))'),
        ({"stop": ["x"]}, 'put each text into a list (pandas: df["stop"].map('),
        ({"stop": [1]}, "store it as list<string>"),
        ({"messages": ["[]"]}, 'if it is JSON, read it first (pandas: df["messages"].map(json.loads))'),
        ({"messages": [[{"content": "x"}]]}, "store it as list<struct<role, content, ...>>"),
    ],
)
def test_a_wrong_type_is_told_with_the_cast_to_make(
    tmp_path: Path, columns: dict[str, object], hint: str
) -> None:
    found = hint_of(tmp_path, {"prompt": ["x"], **columns})
    assert hint in found
    assert found.endswith("or rename it if it means something else")


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_directory_as_input_is_told_what_it_is_good_for(tmp_path: Path, finished: bool) -> None:
    out = tmp_path / "t.out"
    (out / "parts").mkdir(parents=True)
    (out / "run.json").write_text("{}")
    answers = pa.table({"text": ["x"]})
    pq.write_table(answers, out / "parts" / "part-00000.parquet")
    if finished:
        pq.write_table(answers, out / "results.parquet")
    for spec in (str(out), f"{out}/", f"file://{out}", str(tmp_path / "*.out")):
        with pytest.raises(InputError, match=r"is a run directory, the output of specbatch run") as caught:
            InputTable.open(JobConfig(input=(spec,)))
        assert f"specbatch report {out} shows it" in caught.value.hint
        assert f"its own input with --out {out} goes on with it" in caught.value.hint
        assert (f"{out}/results.parquet" in caught.value.hint) == finished
    (out / "run.json").unlink()
    assert InputTable.open(JobConfig(input=(str(out),), prompt_column="text")).num_rows == 1 + finished
