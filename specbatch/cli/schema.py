"""``specbatch schema``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from specbatch.cli.output import print_json, stdout_may_close

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from rich.table import Table

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

Columns = list[dict[str, object]]


@app.command()
def schema(
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
) -> None:
    """List the columns that an input table may have, and those of what a run writes.

    Other columns of the input pass through to the output, after ours.

    Example: specbatch schema --json
    """
    columns = {"input": _input(), "output": _output(), "decisions": _decisions()}
    if as_json:
        print_json(columns)
        return
    from specbatch.report.page import Page  # noqa: PLC0415 - rich, which --help does without

    console = Page().console
    with stdout_may_close():
        console.print("input: prompt or messages is needed; all else is optional, null included")
        console.print(_table(columns["input"]))
        console.print("\noutput: results.parquet, one row per input row, in input order")
        console.print(_table(columns["output"]))
        console.print("\ndecisions: decisions.parquet, what was decided about rows, and why")
        console.print(_table(columns["decisions"]))


def _input() -> Columns:
    from specbatch.table.columns import KINDS  # noqa: PLC0415 - pyarrow
    from specbatch.table.meaning import INPUT_MEANING  # noqa: PLC0415

    return [
        {"name": name, "type": kind.value, "meaning": INPUT_MEANING[name]} for name, kind in KINDS.items()
    ]


def _output() -> Columns:
    from specbatch.table.meaning import OUTPUT_MEANING  # noqa: PLC0415
    from specbatch.table.schema import output_schema  # noqa: PLC0415

    return _written(output_schema(token_ids=True), OUTPUT_MEANING)


def _decisions() -> Columns:
    from specbatch.table.decisions import decisions_schema  # noqa: PLC0415
    from specbatch.table.meaning import DECISION_MEANING  # noqa: PLC0415

    return _written(decisions_schema(), DECISION_MEANING)


def _written(schema: pa.Schema, meaning: Mapping[str, str]) -> Columns:
    return [
        {
            "name": field.name,
            "type": _spelled(str(field.type)),
            "nullable": field.nullable,
            "meaning": meaning[field.name],
        }
        for field in schema
    ]


def _spelled(kind: str) -> str:
    """``list<element: int32>`` → ``list<int32>``: what Arrow calls the element says nothing."""
    return kind.replace("item: ", "").replace("element: ", "")


def _table(columns: Columns) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    table.add_column("column", no_wrap=True)
    table.add_column("type", overflow="fold")
    table.add_column("meaning", overflow="fold")
    for column in columns:
        table.add_row(*(str(column[key]) for key in ("name", "type", "meaning")))
    return table
