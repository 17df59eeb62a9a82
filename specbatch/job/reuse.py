"""Answers of unchanged rows, taken over from another run directory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specbatch.config import JobConfig
from specbatch.errors import UsageError
from specbatch.job.host import Rows
from specbatch.job.state import refuse_other_device
from specbatch.table.keys import KeyFinder
from specbatch.table.manifest import Manifest
from specbatch.table.parts import (
    PartFormat,
    find_parts,
    next_number,
    part_keys,
    read_parts,
    succeeded,
    write_part,
)
from specbatch.table.rundir import RunDir, refuse_mismatch
from specbatch.table.schema import DRAFT_COUNTS, FIRST_SECOND, HISTOGRAM, LAST_SECOND, SHARES

_HINT = "use the same settings as that run, or leave out --reuse"
# What a copied answer did not cost in this run, and latencies and shares of time and energy it does not have.
_ZEROED = (
    *("cached_prompt_tokens", "num_preemptions", "recomputed_tokens", "target_passes"),
    *("prefill_flops", "verify_flops", *DRAFT_COUNTS, "draft_flops", "rejected_flops"),
)
_NULLED = ("row_index", "queued_s", "ttft_s", "tpot_ms", "e2e_s", *SHARES)


@dataclass(frozen=True, slots=True)
class Donor:
    """A run directory whose answers may be taken over.

    Attributes:
        directory: Of the earlier run; only read.
        manifest: Its ``run.json``.
    """

    directory: RunDir
    manifest: Manifest

    @classmethod
    def open(cls, path: Path, own: RunDir, manifest: Manifest, config: JobConfig) -> Donor:
        """Check that its answers are what this run would compute.

        Args:
            path: Of the earlier run.
            own: Directory of this run.
            manifest: Of this run.
            config: The job.

        Raises:
            UsageError: Not a run directory, or this very one.
            MismatchError: Its settings are others; names each.
        """
        directory = RunDir(path)
        if path.resolve() == own.path.resolve():
            raise UsageError(f"--reuse {path}: this is the run's own directory", "name an earlier one")
        theirs = directory.load()
        if theirs is None:
            raise UsageError(f"--reuse {path}: not a run directory", "name one that `specbatch run` wrote")
        if theirs.sources:
            runs = ", ".join(source.directory for source in theirs.sources)
            raise UsageError(
                f"--reuse {path}: merged results have no parts to take answers from", f"name a run: {runs}"
            )
        refuse_mismatch(path, theirs.identity, manifest.identity, _HINT)
        refuse_other_device(path, theirs, config, _HINT)
        if theirs.numerics and manifest.numerics:
            refuse_mismatch(path, theirs.numerics, manifest.numerics, _HINT)
        return cls(directory, theirs)

    def give(self, rows: Rows, form: PartFormat, target: Path, now: float) -> tuple[int, int]:
        """Copy the answers of rows that are left; they are not left any more.

        Rows that failed are not copied: they get another try.

        Args:
            rows: Of this run; ``left`` is updated.
            form: Of this run's parts.
            target: Folder of this run's parts.
            now: Run clock, seconds: when the copied rows end.

        Returns:
            Rows copied, and the output tokens they hold.

        Raises:
            StorageError: A part cannot be read, or the disk refused.
        """
        manifest = self.manifest
        theirs = PartFormat(manifest.stamp, form.token_ids, manifest.epoch, form.policy, form.engine)
        count = tokens = 0
        for table, places in self._matching(theirs, rows):
            rows.left[places] = False
            count += len(places)
            tokens += sum(table.column("output_tokens").to_pylist())
            write_part(target, next_number(target), _adapted(table, places, rows, form, now))
        return count, tokens

    def _matching(self, form: PartFormat, rows: Rows) -> Iterator[tuple[pa.Table, NDArray[np.int64]]]:
        """Answers of rows that are left, and which rows these are; the newest answer of a row first."""
        finder = KeyFinder(rows.index.keys)
        for table in read_parts(find_parts(self.directory.parts, form), newest_first=True):
            places = finder.find(part_keys(table))
            wanted = np.flatnonzero((places >= 0) & succeeded(table))
            wanted = wanted[rows.left[places[wanted]]]
            if len(wanted):
                yield table.take(wanted), places[wanted]


def _adapted(
    table: pa.Table, places: NDArray[np.int64], rows: Rows, form: PartFormat, now: float
) -> pa.Table:
    """Copied answers with this run's promises; their latencies were another run's.

    They are there at once, so that a time per token is kept by any answer.
    """
    index = rows.index
    schema = form.schema
    deadline, ttft, tpot = index.deadline[places], index.ttft_ms[places], index.tpot_ms[places]
    dated, soon = np.isfinite(deadline), np.isfinite(ttft)
    in_time = deadline >= now
    kept = (in_time | ~dated) & (~soon | (index.arrival[places] + 1e-3 * ttft >= now))
    nothing = ~(dated | soon | np.isfinite(tpot))
    replaced = {
        "tier": pa.array([rows.tiers[code] for code in index.tier[places]]),
        "arrival": _times(form.epoch + index.arrival[places]),
        "deadline": _times(np.where(dated, form.epoch + deadline, 0), ~dated),
        "deadline_met": pa.array(in_time, mask=~dated),
        "ttft_slo_ms": pa.array(ttft, mask=~soon),
        "tpot_slo_ms": pa.array(tpot, mask=~np.isfinite(tpot)),
        "slo_met": pa.array(kept, mask=nothing),
        "miss_reason": pa.array(np.full(len(places), "waited"), mask=kept),
        HISTOGRAM: pa.array([[]] * len(places), form.schema.field(HISTOGRAM).type),
        **{name: pa.nulls(len(places)) for name in _NULLED},
        **{name: pa.array(np.zeros(len(places))) for name in _ZEROED},
    }
    columns = [replaced.get(field.name, table.column(field.name)).cast(field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _times(seconds: NDArray[np.float64], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    microseconds = np.round(np.clip(seconds, FIRST_SECOND, LAST_SECOND) * 1e6).astype(np.int64)
    return pa.array(microseconds, mask=missing).cast(pa.timestamp("us", "UTC"))
