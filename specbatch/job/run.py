"""A job from the first file opened to the exit code. :func:`run_job` reads as its table of contents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specbatch.config import JobConfig
from specbatch.config.places import DATE, Shard
from specbatch.errors import UsageError
from specbatch.job.attempts import Attempts, told_of_last
from specbatch.job.feed import TableFeed
from specbatch.job.gauge import Gauge, open_gauge, require_meter
from specbatch.job.host import Rows, RunHost
from specbatch.job.mishaps import mishaps
from specbatch.job.nights import place_of
from specbatch.job.outcome import RunOutcome, StopRule, has_failures, judge
from specbatch.job.promises import count_from_first_start, deadline_notice, reminder
from specbatch.job.refusals import refusals, refuse
from specbatch.job.reuse import Donor
from specbatch.job.state import claim, finished_before
from specbatch.job.surroundings import Surroundings
from specbatch.models.files import ModelFiles
from specbatch.progress import Reporter, Tally
from specbatch.report.summary import Summary, summarise
from specbatch.signals import Interrupts
from specbatch.table.atomic import write_text
from specbatch.table.decisions import DecisionWriter, write_decisions
from specbatch.table.fetch import RowFetcher
from specbatch.table.finalise import Finaliser
from specbatch.table.index import RowIndex
from specbatch.table.keys import Keys
from specbatch.table.manifest import Finished
from specbatch.table.parse import RowParser
from specbatch.table.parts import PartFormat, PartWriter, Progress, find_parts, read_progress
from specbatch.table.reader import InputTable
from specbatch.table.rundir import RunDir, locked
from specbatch.table.spool import Spool
from specbatch.table.stripes import read_rows

if TYPE_CHECKING:  # the engine's room imports torch
    from specbatch.engine.feed import Engine


@dataclass(frozen=True, slots=True)
class Start:
    """How a run deals with what is there.

    Attributes:
        fresh: Discard what the run directory holds.
        retry_failed: Run the rows that failed once more.
        reuse: Run directory whose answers of unchanged rows are taken over.
    """

    fresh: bool = False
    retry_failed: bool = False
    reuse: Path | None = None


def run_job(
    config: JobConfig, *, start: Start | None = None, surroundings: Surroundings | None = None
) -> RunOutcome:
    """Run a job to its end, or go on with it.

    Args:
        config: The job.
        start: How to deal with what is there; by default, go on.
        surroundings: Replaced in tests.

    Raises:
        SpecbatchError: The job ended early; its ``exit_code`` says how, finished rows are kept.
    """
    around, start = surroundings or Surroundings(), start or Start()
    if start.fresh and start.retry_failed:
        raise UsageError("--fresh and --retry-failed contradict each other", "give one of them")
    table = InputTable.open(config)
    with (
        Interrupts() as interrupts,
        _reporting(around) as reporter,
        locked(_place(config, table, around, start, reporter)) as directory,
    ):
        for stranger in directory.clear() if start.fresh else ():
            reporter.message(f"{stranger} stays where it is: no run wrote it")
        done = finished_before(directory, config, table, around.find_model, reporter)
        if done is not None and not (start.retry_failed and has_failures(done.summary)):
            return done
        require_meter(config, around.find_meter)
        files = around.find_model(config.model, report=reporter.message)
        if config.draft_model is not None and config.policy != "off":
            around.find_model(config.draft_model, report=reporter.message)  # the engine opens it
        manifest = claim(directory, config, files, table, around.wall())
        with Attempts(directory, manifest, interrupts, around.wall) as attempts:
            run = _Run(config, around, directory, table, reporter, attempts)
            keys = run.answer(files, interrupts, start)
            return run.finish(keys, interrupts)


def _place(
    config: JobConfig, table: InputTable, around: Surroundings, start: Start, reporter: Reporter
) -> Path:
    """The run directory; the time matters only where there is a date in its name."""
    now = around.wall() if DATE in str(config.out) else 0.0
    return place_of(config, table, now, reporter, fresh=start.fresh, retry=start.retry_failed)


class _Run:
    """One attempt that holds the lock and has a manifest."""

    def __init__(
        self,
        config: JobConfig,
        around: Surroundings,
        directory: RunDir,
        table: InputTable,
        reporter: Reporter,
        attempts: Attempts,
    ) -> None:
        self._config, self._around, self._directory = config, around, directory
        self._table, self._reporter, self._attempts = table, reporter, attempts
        manifest = attempts.manifest
        self._form = PartFormat(
            manifest.stamp, config.token_ids, manifest.epoch, config.policy, config.engine
        )

    def answer(self, files: ModelFiles, interrupts: Interrupts, start: Start) -> Keys:
        """Index the input and have the engine answer what no earlier attempt did; the keys of all rows."""
        self._reporter.phase("reading input")
        epoch = self._attempts.manifest.epoch
        notice = deadline_notice(self._config, epoch, epoch + self._attempts.clock.now())
        if notice is not None:
            self._reporter.message(notice)
        parser = RowParser.of(self._config, epoch)
        with Spool(self._directory.path) as spool:
            read = read_rows(self._table, parser, spool, Shard.of(self._config.shard), interrupts.check)
            index, self._table = read.index, read.table
            self._attempts.indexed(read.shard)
            before = self._earlier(index, start.retry_failed)
            rows = Rows(index, tuple(self._config.tiers), ~before.done)
            if start.reuse is not None:
                with interrupts.deferred():
                    self._take_over(start.reuse, rows)
                interrupts.check()
            if rows.left.any():
                self._remind(rows)
                fetcher = RowFetcher(index, parser, read.spool)
                self._answer_left(files, interrupts, fetcher, rows, before, start)
            return index.keys

    def _answer_left(
        self,
        files: ModelFiles,
        interrupts: Interrupts,
        fetcher: RowFetcher,
        rows: Rows,
        before: Progress,
        start: Start,
    ) -> None:
        """End the rows that are left, with an engine where one is needed."""
        continued, now = not rows.left.all(), self._attempts.clock.now()
        ended = None
        if continued or start.retry_failed or start.reuse is not None:
            ended = refusals(self._feed(files, fetcher, rows), self._config.late, now)
        engine = self._open_engine(files, continued) if ended is None else None
        gauge = self._open_gauge(engine) if engine is not None else None
        stop = StopRule(interrupts, self._config)
        with interrupts.deferred(), self._committing(rows, before, stop) as host:
            if engine is None or gauge is None:
                refuse(ended or [], host)
            else:
                host.keep_meter(gauge.joules)
                self._attempts.engine_started(gauge)
                used = self._attempts.manifest.owner_tokens
                stats = engine.run(TableFeed(fetcher, engine.encoder.encode, rows.left, used), host)
                self._attempts.record_stats(stats.as_dict())
        stop.check()

    def _feed(self, files: ModelFiles, fetcher: RowFetcher, rows: Rows) -> TableFeed:
        """Rows with an encoder that is opened when the first of them gets as far as that."""
        opened = cache(lambda: self._around.open_encoder(self._config, files.directory, self._started))
        return TableFeed(fetcher, lambda raw: opened().encode(raw), rows.left)

    @property
    def _started(self) -> datetime:
        """First start of the run."""
        return datetime.fromtimestamp(self._attempts.manifest.epoch).astimezone()

    def _open_engine(self, files: ModelFiles, continued: bool) -> Engine:
        """The engine, checked to compute what earlier attempts computed."""
        self._reporter.phase("loading model")
        with mishaps(self._directory.path, "the model cannot be loaded"):
            engine = self._around.open_engine(self._config, files, self._started, self._reporter.phase)
        if engine.notice:
            self._reporter.message(engine.notice)
        self._attempts.check_numerics(engine.numerics, started=continued)
        return engine

    def _open_gauge(self, engine: Engine) -> Gauge:
        """The energy meter of the engine's device."""
        device, find = engine.numerics["device"], self._around.find_meter
        return open_gauge(self._config, device, find, self._reporter)

    def _remind(self, rows: Rows) -> None:
        """A directory that holds a complete run is easily taken for a new one."""
        if self._directory.results.exists() and count_from_first_start(self._table, self._config, rows):
            self._reporter.warning(reminder(int(rows.left.sum()), self._started))

    def finish(self, keys: Keys, interrupts: Interrupts) -> RunOutcome:
        """Put results and summary in place."""
        self._reporter.phase("writing results")
        manifest = self._attempts.manifest
        footer = {**manifest.stamp, b"specbatch.config": json.dumps(manifest.config).encode()}
        parts = find_parts(self._directory.parts, self._form)
        with interrupts.deferred():
            finaliser = Finaliser(self._table, keys, parts, footer, interrupts.check)
            finaliser.write(self._directory.results, self._config.token_ids)
            if self._config.decisions != "off":
                write_decisions(self._directory.path, keys, manifest.stamp, footer, self._table.picked)
            summary = self._summarise()
        code, verdict = judge(summary, self._config)
        self._attempts.finish(
            Finished(input=self._table.fingerprint(), limit=self._config.limit, exit_code=code)
        )
        return RunOutcome(self._directory.path, code, summary, verdict, ran=True)

    def _summarise(self) -> Summary:
        summary = summarise(self._directory.results, self._attempts.settle())
        write_text(self._directory.summary, json.dumps(summary, indent=2) + "\n")
        return summary

    def _take_over(self, path: Path, rows: Rows) -> None:
        """Copy answers from another run directory."""
        donor = Donor.open(path, self._directory, self._attempts.manifest, self._config)
        now = self._attempts.clock.now()
        count, tokens = donor.give(rows, self._form, self._directory.parts, now)
        if count:
            self._attempts.adopt_numerics(donor.manifest.numerics)
        self._attempts.reused(count, tokens)
        self._reporter.message(f"reused {count} answers of {path}; {int(rows.left.sum())} rows are left")

    def _earlier(self, index: RowIndex, retry_failed: bool) -> Progress:
        parts = find_parts(self._directory.parts, self._form)
        for reason in parts.ignored:
            self._reporter.message(f"ignored {self._directory.parts}/{reason}")
        before = read_progress(parts, index.keys, retry_failed=retry_failed)
        ended = told_of_last(self._attempts.manifest)
        if ended is not None:
            self._reporter.message(ended)
        done = int(before.done.sum())
        if done:
            self._reporter.message(f"continuing: {done} of {len(index)} rows are finished")
        if before.strangers:
            self._reporter.message(f"not in the input any more: {before.strangers} of the finished rows")
        return before

    @contextmanager
    def _committing(self, rows: Rows, before: Progress, stop: StopRule) -> Iterator[RunHost]:
        """The host of the engine; whatever happens inside, finished rows are committed."""
        config = self._config
        folder, picked = self._directory.parts, self._table.picked
        writer = PartWriter(folder, self._form, config.flush_rows, config.flush_every_s, picked)
        done = int(np.count_nonzero(~rows.left))
        tally = Tally(len(rows.left), done, before.failed, before.slo_met, before.slo_missed)
        host = RunHost(self._attempts.clock, rows, writer, tally, self._reporter, stop)
        host.keep_record(self._attempts.progressed)
        if config.decisions != "off":
            folder, attempt = self._directory.decision_parts, len(self._attempts.manifest.attempts)
            host.keep_decisions(DecisionWriter(folder, self._form.stamp, attempt))
        self._reporter.begin(tally)
        try:
            with mishaps(self._directory.path, "the engine failed"):
                try:
                    yield host
                except Exception:
                    host.commit()
                    raise
            host.commit()
        finally:
            self._attempts.worked(host.work_done())


@contextmanager
def _reporting(around: Surroundings) -> Iterator[Reporter]:
    reporter = around.open_reporter()
    try:
        yield reporter
    finally:
        reporter.close()
