"""A run directory as a report finds it: whatever can be read, and a line about whatever cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specbatch.errors import MismatchError
from specbatch.report.runs.rows import OWNER, FoundRows, parts_rows, results_rows
from specbatch.report.status import RunStatus, State, read_status
from specbatch.table.decisions import decisions_schema
from specbatch.table.manifest import Attempt, AttemptEnergy, Manifest
from specbatch.table.rundir import RunDir
from specbatch.table.schema import KEY

_UNREADABLE = (OSError, pa.ArrowException, ValueError, KeyError)
"""Whatever a damaged file may bring about; ArrowException covers what a cast refuses."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What there is to report on.

    Attributes:
        status: State of the directory; its ``problems`` are among those here.
        manifest: Of the run; where ``run.json`` is missing or damaged, a stand-in made of what rows and
            summary say.
        has_manifest: Whether it is no stand-in.
        rows: As in :class:`specbatch.report.runs.rows.FoundRows`.
        source: File or folder that the rows are from; empty when there are none.
        decisions: Columns of ``decisions.parquet``, with ``row`` (whatever names the row) for ``row_index``;
            ``None`` when there are none.
        recorded: Content of ``summary.json``; ``None`` when there is none of this run.
        problems: What is missing or damaged, and what follows from that.
    """

    status: RunStatus
    manifest: Manifest
    has_manifest: bool
    rows: pa.Table
    source: str
    decisions: pa.Table | None
    recorded: Mapping[str, object] | None
    problems: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return self.manifest.finished is not None

    @property
    def started(self) -> float | None:
        """Unix time of the first start."""
        return self.manifest.epoch if self.has_manifest else None


@dataclass(slots=True)
class _Reading:
    """One directory while it is read; what goes wrong is collected."""

    directory: RunDir
    status: RunStatus
    manifest: Manifest | None
    problems: list[str] = field(default_factory=list)

    def rows(self) -> tuple[FoundRows, str]:
        """Rows and where they are from: the results of a complete run, else its parts."""
        parts_are_newer = self.manifest is not None and self.manifest.finished is None
        if parts_are_newer:
            found = self._parts()
            if found.table.num_rows or not self.directory.results.is_file():
                return found, "parts/" if found.table.num_rows else ""
        try:
            found = results_rows(self.directory.results, self._owner_column())
        except _UNREADABLE:
            if self.directory.results.exists():
                self._say("results.parquet", "damaged; the rows in parts/ are reported instead")
        else:
            if self.manifest is None or found.footer.run_id in ("", self.manifest.run_id):
                if parts_are_newer:
                    self._say("results.parquet", "of an earlier completion of this run")
                return found, "results.parquet"
            self._say("results.parquet", "belongs to another run; the rows in parts/ are reported instead")
        found = self._parts()
        return found, "parts/" if found.table.num_rows else ""

    def decisions(self) -> pa.Table | None:
        """What was decided: in one file, or in parts while the run goes on."""
        files = [self.directory.decisions]
        if not files[0].is_file() or (self.manifest is not None and self.manifest.finished is None):
            parts = sorted(self.directory.decision_parts.glob("attempt-*.parquet"))
            files = parts or [path for path in files if path.is_file()]
        tables = []
        for path in files:
            try:
                tables.append(_decisions(path))
            except _UNREADABLE:
                self._say(str(path.relative_to(self.directory.path)), "damaged; its decisions are left out")
        if not files and self.manifest is not None and self.manifest.config.get("decisions") != "off":
            self._say("decisions.parquet", "missing; nothing is known of what was decided")
        return pa.concat_tables(tables) if tables else None

    def recorded(self) -> Mapping[str, object] | None:
        """``summary.json``, as far as it is about this run."""
        path = self.directory.summary
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if self.manifest is None:
                self._say(
                    path.name, "missing; the numbers are computed from the rows and compared with nothing"
                )
            return None
        except _UNREADABLE:
            content = None
        if not isinstance(content, dict):
            self._say(path.name, "damaged; the numbers are computed from the rows and compared with nothing")
            return None
        if self.manifest is not None and content.get("run_id") != self.manifest.run_id:
            self._say(path.name, "belongs to another run; the numbers are compared with nothing")
            return None
        return content

    def _parts(self) -> FoundRows:
        return parts_rows(self.directory.parts, "" if self.manifest is None else self.manifest.run_id)

    def _owner_column(self) -> str:
        columns = {} if self.manifest is None else self.manifest.config.get("columns")
        name = columns.get(OWNER, OWNER) if isinstance(columns, dict) else OWNER
        return str(name)

    def _say(self, file: str, what: str) -> None:
        """Once for each file: the status may have told of it already."""
        if not any(problem.startswith(f"{file}: ") for problem in self.status.problems):
            self.problems.append(f"{file}: {what}")


def read_record(path: Path) -> RunRecord:
    """Look at a run directory; nothing is written, and a run that is going on is not disturbed.

    Args:
        path: The directory.

    Raises:
        UsageError: There is no such directory, or no run has ever been in it.
    """
    status = read_status(path)
    directory = RunDir(path)
    try:
        manifest = directory.load()
    except (MismatchError, OSError):
        manifest = None  # the status says so
    reading = _Reading(directory, status, manifest)
    rows, source = reading.rows()
    decisions = reading.decisions()
    recorded = reading.recorded()
    if not source:
        reading.problems.append(
            "there are no rows to report on yet"
            if status.state is State.RUNNING
            else "there are no rows to report on"
        )
    problems = [*status.problems, *reading.problems]
    problems += [problem for problem in rows.problems if problem.partition(":")[0] not in _named(problems)]
    return RunRecord(
        status=status,
        manifest=manifest or _stand_in(rows, recorded or {}),
        has_manifest=manifest is not None,
        rows=rows.table,
        source=source,
        decisions=decisions,
        recorded=recorded,
        problems=tuple(problems),
    )


def _named(problems: list[str]) -> set[str]:
    return {problem.partition(":")[0] for problem in problems}


def _decisions(path: Path) -> pa.Table:
    """All columns; those that the file lacks are null. Rows go by their index, or by their keys in parts.

    Raises:
        OSError: The file cannot be read.
        pa.ArrowException: It is damaged.
    """
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        table = file.read()
    columns = [_decision_row(table)]
    wanted = list(decisions_schema())[1:]
    for column in wanted:
        there = column.name in table.column_names
        found = table.column(column.name) if there else pa.nulls(table.num_rows, column.type)
        columns.append(found.cast(column.type))
    return pa.table(columns, ["row", *(column.name for column in wanted)])


def _decision_row(table: pa.Table) -> pa.ChunkedArray:
    if KEY in table.column_names:
        return table.column(KEY).cast(pa.binary())
    return table.column("row_index").cast(pa.string()).cast(pa.binary())


def _stand_in(rows: FoundRows, recorded: Mapping[str, object]) -> Manifest:
    """What rows and summary say about their run: who wrote them, settings, the time they took."""
    footer = rows.footer
    config = dict(footer.config or {})
    time, model = recorded.get("time"), recorded.get("model")
    spans = [time.get(f"{name}_seconds") if isinstance(time, dict) else None for name in ("device", "engine")]
    device_s, engine_s = (float(span) if isinstance(span, int | float) else 0.0 for span in spans)
    reason = "run.json says what the meter has shown, and is missing or damaged"
    meter = AttemptEnergy(method="none", reason=reason)
    attempt = Attempt(start=0.0, seconds=device_s, engine_seconds=engine_s, energy=meter)
    return Manifest(
        run_id=footer.run_id,
        specbatch=footer.specbatch,
        epoch=0.0,
        config=config,
        identity={},
        model=model if isinstance(model, dict) else {"name": config.get("model")},
        input=[],
        versions={},
        hardware={},
        attempts=(attempt,) if engine_s else (),
    )
