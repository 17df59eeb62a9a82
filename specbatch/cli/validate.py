"""``specbatch validate``."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from specbatch.cli.flags import with_flags
from specbatch.cli.job import Inputs, configure
from specbatch.cli.output import print_json, stdout_may_close
from specbatch.cli.run import PANELS
from specbatch.config import JobConfig
from specbatch.errors import UsageError

if TYPE_CHECKING:
    from specbatch.job.reach import PerToken
    from specbatch.job.validate import Validation

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


Sample = Annotated[int, typer.Option("--sample", metavar="N", min=0, help="Rows to tokenise for statistics.")]
TokensPerS = Annotated[
    float | None,
    typer.Option(
        "--tokens-per-s",
        metavar="N",
        min=1e-3,
        help="Output tokens per second of this machine, all rows together: estimates time and deadlines.",
    ),
]
LoadingS = Annotated[
    float | None,
    typer.Option(
        "--loading-s",
        metavar="N",
        min=0,
        help="Seconds until the model is loaded, for that estimate; default: 2, and 1 for every 200 MB.",
    ),
]


@app.command()
@with_flags(JobConfig, PANELS)
def validate(
    inputs: Inputs,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object.")] = False,
    sample: Sample = 1000,
    tokens_per_s: TokensPerS = None,
    loading_s: LoadingS = None,
    **flags: object,
) -> None:
    """Check a job before it runs: columns, rows, prompts, deadlines.

    Takes the flags of specbatch run. No weights are loaded, and nothing is
    fetched or written.

    Exit codes: 0 every row would be answered, 1 some would be refused,
    2 the run would not start.

    Example: specbatch validate jobs.parquet --tokens-per-s 400
    """
    config = configure(inputs, flags)
    if loading_s is not None and tokens_per_s is None:
        raise UsageError("--loading-s is of no use without an estimate", "give --tokens-per-s N, too")
    # pyarrow and the tokenizer take a moment to import, and --help must not wait for them.
    from specbatch.job.estimate import Speed  # noqa: PLC0415
    from specbatch.job.validate import validate_job  # noqa: PLC0415

    speed = None if tokens_per_s is None else Speed(tokens_per_s, loading_s)
    found = validate_job(config, sample, speed, time.time())
    code = int(found.exit_code)
    if as_json:
        print_json({**asdict(found), "exit_code": code})
    else:
        with stdout_may_close():
            _print(found)
    raise typer.Exit(code)


def _print(found: Validation) -> None:
    from specbatch.report.page import Page  # noqa: PLC0415 - rich

    page = Page()
    for name, text in _facts(found):
        page.fact(name, text)
    for fault in found.faults:
        page.item(f"{_rows(fault.rows)} {fault.code}")
        for example in fault.first:
            page.detail(f"row {example.row}: {example.message}")
    page.fact("verdict", _verdict(found))


def _facts(found: Validation) -> list[tuple[str, str]]:
    files = found.files[0] if len(found.files) == 1 else f"{len(found.files)} files, first {found.files[0]}"
    part = "" if found.shard is None else f" (shard {found.shard} of {_rows(found.job_rows)})"
    facts = [
        ("input", f"{_rows(found.rows)}{part} in {files}"),
        ("output", found.run_directory),
        ("columns", ", ".join(found.columns)),
    ]
    if found.carried:
        facts.append(("", f"passed through: {', '.join(found.carried)}"))
    facts.append(("tiers", ", ".join(f"{name} {rows:,}" for name, rows in found.tiers.items()) or "none"))
    facts += [("prompts", _prompts(found)), ("answers", f"{found.max_output_tokens:,} tokens at most")]
    facts += _times(found)
    facts.append(("repeated", _repeated(found)))
    refused = f"{_rows(found.refused_rows)} would end without an answer" if found.refused_rows else "no rows"
    return [*facts, ("refused", refused)]


def _prompts(found: Validation) -> str:
    if found.tokenizer_missing:
        return f"lengths not checked: {found.tokenizer_missing}"
    if found.tokens is None:
        return f"{found.tokenised_rows:,} tokenised to check their length"
    tokens = found.tokens
    return (
        f"{tokens.mean:,.0f} tokens on average, half below {tokens.p50:,.0f}, 95 % below {tokens.p95:,.0f},"
        f" longest {tokens.largest:,} ({_rows(tokens.sampled_rows)} sampled)"
    )


def _times(found: Validation) -> list[tuple[str, str]]:
    from specbatch.progress import duration  # noqa: PLC0415 - rich
    from specbatch.report.words import seconds  # noqa: PLC0415

    deadlines, facts = found.deadlines, []
    if deadlines.rows:
        text = _rows(deadlines.rows)
        if deadlines.earliest_s is not None and deadlines.latest_s is not None:
            ends = dict.fromkeys(
                seconds(end) if end < 1 else duration(end)
                for end in (deadlines.earliest_s, deadlines.latest_s)
            )
            text += f"; started now, they have {' to '.join(ends)}"
        if deadlines.past:
            fate = "answered late" if found.late == "answer" else "dropped"
            text += f"; {deadlines.past:,} past before the row begins ({fate})"
        facts.append(("deadlines", text))
    first = found.first_tokens
    if first.tightest_ms is not None:
        text = f"{_rows(first.rows)} promised within {seconds(first.tightest_ms / 1000)} at the tightest"
        text += "; the clock starts with the run, so loading the model (seconds) counts"
        facts.append(("1st token", text))
    if found.per_token.tightest_ms is not None:
        facts.append(("per token", _per_token(found.per_token)))
    if found.estimate is not None:
        speed, missed = found.estimate.tokens_per_s, found.estimate.missed_deadlines
        loading = f"{found.estimate.loading_s:.1f} s to load the model included"
        text = f"{duration(found.estimate.seconds)} at most at {speed:g} tokens/s, {loading}"
        if deadlines.rows:
            text += f"; {missed:,} deadlines missed if every row runs to its last token"
        facts.append(("estimate", text))
    return facts


def _per_token(found: PerToken) -> str:
    from specbatch.report.words import seconds  # noqa: PLC0415

    assert found.tightest_ms is not None
    text = f"{_rows(found.rows)} promised within {seconds(1e-3 * found.tightest_ms)} at the tightest"
    if found.reachable_ms is None:
        return f"{text}; whether that is out of reach cannot be judged: {found.not_judged}"
    best = (
        f"the {seconds(1e-3 * found.reachable_ms)} that a row alone takes at best by this machine's profile"
    )
    if not found.out_of_reach:
        return f"{text}, none less than {best}"
    named = ", ".join(map(str, found.first)) + (", ..." if found.out_of_reach > len(found.first) else "")
    return f"{text}; {found.out_of_reach:,} less than {best}: out of reach (row {named})"


def _repeated(found: Validation) -> str:
    prompts, ids = found.repeated_prompts, found.repeated_ids
    if not prompts.rows and not ids.rows:
        return "no prompt, no id"
    parts = []
    for repeats, what in ((prompts, "prompt"), (ids, "id")):
        if repeats.rows:
            row, earlier = repeats.first[0]
            parts.append(
                f"{_rows(repeats.rows)} with the {what} of an earlier one (row {row}: that of {earlier})"
            )
    return "; ".join(parts)


def _verdict(found: Validation) -> str:
    if found.refused_rows:
        return (
            f"exit code 1: {found.refused_rows:,} of {_rows(found.rows)} would be refused, the rest would run"
        )
    return "exit code 0: the job can run as it is"


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"
