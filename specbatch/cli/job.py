"""What commands that take a job have in common: its inputs and its settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from specbatch.config import JobConfig
from specbatch.errors import UsageError
from specbatch.settings import PROJECT_FILE, load_config

Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help="Parquet files, globs or directories; a job file (.toml)."),
]


def configure(inputs: list[str], flags: dict[str, object]) -> JobConfig:
    """The job that a command line describes, with job file, environment and project file below it.

    Args:
        inputs: Positional arguments: tables, and at most one job file.
        flags: By field name; ``None`` or an empty list when not given.

    Raises:
        UsageError: The settings make no job.
    """
    job_files = [name for name in inputs if name.endswith(".toml")]
    tables = tuple(name for name in inputs if not name.endswith(".toml"))
    if len(job_files) > 1:
        raise UsageError(f"several job files: {', '.join(job_files)}", "run them one after another")
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    if tables:
        given["input"] = tables
    return load_config(
        given,
        job_file=Path(job_files[0]) if job_files else None,
        environ=os.environ,
        project_file=Path(PROJECT_FILE),
    )
