"""The record of an attempt in ``run.json``, from its start to how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from specbatch.errors import ExitCode, SpecbatchError, StorageError
from specbatch.job.gauge import Gauge
from specbatch.job.host import RunClock, WorkDone
from specbatch.signals import Interrupts
from specbatch.table.manifest import Attempt, Finished, Manifest, ShardRecord
from specbatch.table.reserve import Reserve
from specbatch.table.rundir import RunDir, differing_keys, refuse_mismatch


class Attempts:
    """Keeps ``run.json`` up to date; a context manager around one attempt.

    Args:
        directory: Locked.
        manifest: To go on with.
        interrupts: Saving is not to be torn by a signal.
        wall: Unix time, seconds.
    """

    def __init__(
        self, directory: RunDir, manifest: Manifest, interrupts: Interrupts, wall: Callable[[], float]
    ) -> None:
        self._directory, self._interrupts, self._wall = directory, interrupts, wall
        self._reserve = Reserve(directory.path)
        start = wall()
        # Wall clocks are set back now and then; the run clock is not.
        began = max(start - manifest.epoch, manifest.elapsed)
        self.clock = RunClock(began)
        attempt = Attempt(start=start, began=began)
        self.manifest = manifest.model_copy(update={"attempts": (*manifest.attempts, attempt)})
        self._engine_started: float | None = None
        self._settled = False
        self._gauge: Gauge | None = None

    def __enter__(self) -> Attempts:
        try:
            self._reserve.fill(len(self.manifest.model_dump_json(indent=2)))
            self._save()
        except BaseException:
            self._reserve.release()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is None:
                self._reserve.release()
            else:
                self._broke_off(error)
        finally:
            if self._gauge is not None:
                self._gauge.close()

    def _broke_off(self, error: BaseException) -> None:
        """Record how the attempt ended."""
        code = error.exit_code if isinstance(error, SpecbatchError) else ExitCode.ENGINE
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        try:
            self._reserve.release()
            self._update(end=self._wall(), exit_code=int(code), error=reason)
        except StorageError as second:
            # Nothing at all can be written any more; the first failure is the one to tell of.
            error.add_note(f"the end of the attempt is not recorded: {second.what}")

    def check_numerics(self, numerics: Mapping[str, str], *, started: bool) -> None:
        """Record what of this machine shapes texts, or compare it.

        Raises:
            MismatchError: Finished rows were computed otherwise.
        """
        recorded = self.manifest.numerics
        if started and recorded:
            refuse_mismatch(self._directory.path, recorded, numerics)
        if differing_keys(recorded, numerics):
            self.manifest = self.manifest.model_copy(update={"numerics": dict(numerics)})
            self._save()

    def indexed(self, shard: ShardRecord | None) -> None:
        """The input was read; record which part of a job this run is."""
        if shard != self.manifest.shard:
            self.manifest = self.manifest.model_copy(update={"shard": shard})
            self._save()

    def engine_started(self, gauge: Gauge) -> None:
        """The engine begins to work, and what it takes is measured."""
        self._gauge = gauge
        gauge.start()
        self._engine_started = self.clock.attempt_seconds()

    def progressed(self, work: WorkDone) -> None:
        """Record what this attempt has done so far, and what of it is safe."""
        self._update(**asdict(work))

    def worked(self, work: WorkDone) -> None:
        """Keep what this attempt has done in mind, until something is recorded the next time."""
        self.manifest = self._timed(asdict(work))

    def reused(self, rows: int, tokens: int) -> None:
        """Record answers copied from another run."""
        self._update(reused_rows=rows, reused_tokens=tokens)

    def adopt_numerics(self, numerics: Mapping[str, str]) -> None:
        """Rows computed this way have been taken over; :meth:`check_numerics` compares from now on."""
        self.manifest = self.manifest.model_copy(update={"numerics": dict(numerics)})
        self._save()

    def record_stats(self, stats: Mapping[str, float | int | str | None]) -> None:
        """The engine is done."""
        self.manifest = self.manifest.with_attempt(
            self.manifest.attempts[-1].model_copy(update={"stats": dict(stats)})
        )
        self._update()
        self._engine_started = None

    def settle(self) -> Manifest:
        """The manifest with the seconds of the present attempt; from now on they stay as they are.

        A summary is computed from them, and whoever computes it again is to find the same.
        """
        self.manifest = self._timed({})
        self._settled = True
        return self.manifest

    def finish(self, finished: Finished) -> None:
        """Results are in place."""
        self.manifest = self.manifest.model_copy(update={"finished": finished})
        self._update(end=self._wall(), exit_code=finished.exit_code)

    def _update(self, **changes: object) -> None:
        self.manifest = self._timed(changes)
        self._save()

    def _timed(self, changes: Mapping[str, object]) -> Manifest:
        seconds = self.clock.attempt_seconds()
        update: dict[str, object] = dict(changes) if self._settled else {**changes, "seconds": seconds}
        if self._engine_started is not None:
            update["engine_seconds"] = seconds - self._engine_started
            update["energy"] = None if self._gauge is None else self._gauge.record()
        return self.manifest.with_attempt(self.manifest.attempts[-1].model_copy(update=update))

    def _save(self) -> None:
        with self._interrupts.deferred():
            self._directory.save(self.manifest)


def told_of_last(manifest: Manifest) -> str | None:
    """What to say of the attempt before the present one; ``None`` where there is nothing to say."""
    before = manifest.attempts[-2:-1]
    if not before or (before[0].exit_code is not None and not before[0].error):
        return None
    last = before[0]
    more = " or more" if last.exit_code is None else ""
    return f"the last attempt {last.ending}; {last.lost_tokens} tokens{more} of its work are lost"
