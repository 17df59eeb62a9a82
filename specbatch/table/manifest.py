"""``run.json``: what a run directory holds, for whom, and every attempt at it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import uuid
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from pydantic import BaseModel, ConfigDict

from specbatch import __version__
from specbatch.config import JobConfig

_VERSIONED = ("torch", "numpy", "pyarrow", "tokenizers", "jinja2")


class AttemptEnergy(BaseModel):
    """What the meter of an attempt has shown since its engine began to work.

    Attributes:
        method: ``nvml``, ``rapl``, ``assumed`` or ``none``.
        scope: What is counted.
        reason: Why there are no joules; empty when there are.
        joules: Idle power included.
        peak_watts: Over half a second.
        idle_watts: Before the engine began; null when that was not asked for.
        idle_s: For how long that was measured, seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["nvml", "rapl", "assumed", "none"]
    scope: str | None = None
    reason: str = ""
    joules: float | None = None
    peak_watts: float | None = None
    idle_watts: float | None = None
    idle_s: float | None = None


class Attempt(BaseModel):
    """One start of the run; ``end`` stays null when it could not be written down: after a kill, say.

    Attributes:
        start: Unix seconds.
        began: Run clock at the start, seconds; goes on where the attempt before was last seen alive.
        end: Unix seconds.
        seconds: From start to the last commit, or to the end.
        engine_seconds: The part of it in which the engine ran.
        rows: Rows committed by this attempt.
        answered_rows: Those of them with a text: the others took next to no time.
        computed_tokens: Output tokens this attempt computed, as far as recorded.
        committed_tokens: Those of them that belong to committed rows.
        reused_rows: Answers copied from another run directory.
        reused_tokens: Their output tokens, which this run did not compute.
        attributed_s: Engine seconds that rows have a share in, finished or not.
        attributed_j: Likewise joules; null where they were not measured.
        energy: Null until the engine works.
        owner_tokens: Verified tokens by owner with a quota, those of earlier attempts included.
        exit_code: Null while running, after a kill, and where not even the end could be written down.
        error: What ended it early; empty where nothing did.
        stats: The engine's own counts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: float
    began: float = 0.0
    end: float | None = None
    seconds: float = 0.0
    engine_seconds: float = 0.0
    rows: int = 0
    answered_rows: int = 0
    computed_tokens: int = 0
    committed_tokens: int = 0
    reused_rows: int = 0
    reused_tokens: int = 0
    attributed_s: float = 0.0
    attributed_j: float | None = None
    energy: AttemptEnergy | None = None
    owner_tokens: dict[str, int] = {}
    exit_code: int | None = None
    error: str = ""
    stats: dict[str, float | int | str | None] = {}

    @property
    def lost_tokens(self) -> int:
        """Output tokens computed in vain; of a killed attempt, up to its last record."""
        return max(0, self.computed_tokens - self.committed_tokens)

    @property
    def ending(self) -> str:
        """How it ended, as the rest of a sentence about it."""
        if self.exit_code is None:
            return "ended without saying why (killed, out of memory, power cut, or a disk without any room)"
        return f"ended with exit code {self.exit_code}" + (f" ({self.error})" if self.error else "")


class Finished(BaseModel):
    """Recorded when ``results.parquet`` is in place.

    Attributes:
        input: Fingerprint of the input that the results answer.
        limit: The job's limit at that time.
        exit_code: Of the finishing attempt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: list[dict[str, object]]
    limit: int | None
    exit_code: int


class ShardRecord(BaseModel):
    """Which part of a job a run is.

    Attributes:
        number: From 1.
        count: Shards of the job.
        rows_total: Rows of the whole job.
        keys: SHA-256 over the keys of all of them: shards of one table have the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    count: int
    rows_total: int
    keys: str

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def rows(self) -> int:
        """Rows of this shard."""
        return len(range(self.number - 1, self.rows_total, self.count))


class MergedRun(BaseModel):
    """One of the runs that merged results were made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: str
    run_id: str
    shard: str | None = None


class Manifest(BaseModel):
    """The content of ``run.json``.

    Attributes:
        epoch: Unix time of the first start; zero of the run clock.
        identity: Settings that change texts; a run continues only with equal ones.
        numerics: Device class, number format and kernels; empty until an engine was opened.
        input: Fingerprint of the files last seen.
        shard: Which part of a job this is, once the input was read; ``None`` for a whole one.
        sources: Runs whose results these are, put together; empty for a run of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    run_id: str
    specbatch: str
    epoch: float
    config: dict[str, object]
    identity: dict[str, object]
    numerics: dict[str, str] = {}
    model: dict[str, object]
    input: list[dict[str, object]]
    versions: dict[str, str]
    hardware: dict[str, object]
    attempts: tuple[Attempt, ...] = ()
    finished: Finished | None = None
    shard: ShardRecord | None = None
    sources: tuple[MergedRun, ...] = ()

    @classmethod
    def create(
        cls,
        config: JobConfig,
        identity: Mapping[str, object],
        model: Mapping[str, object],
        fingerprint: list[dict[str, object]],
        epoch: float,
    ) -> Manifest:
        """The manifest of a run that starts now."""
        return cls(
            run_id=uuid.uuid4().hex,
            specbatch=__version__,
            epoch=epoch,
            config=config.model_dump(mode="json"),
            identity=dict(identity),
            model=dict(model),
            input=fingerprint,
            versions=_versions(),
            hardware=_hardware(),
        )

    @property
    def stamp(self) -> dict[bytes, bytes]:
        """What the footer of every file of this run carries."""
        return {
            b"specbatch.run_id": self.run_id.encode(),
            b"specbatch.version": self.specbatch.encode(),
            b"specbatch.identity": identity_hash(self.identity).encode(),
        }

    @property
    def fail_on(self) -> tuple[str, ...]:
        """Ends of rows with a text that the job counts as failures as well."""
        recorded = self.config.get("fail_on")
        return tuple(map(str, recorded)) if isinstance(recorded, list) else ()

    @property
    def owner_tokens(self) -> dict[str, int]:
        """Verified tokens by owner with a quota, as far as any attempt recorded them."""
        used: dict[str, int] = {}
        for attempt in self.attempts:
            for owner, tokens in attempt.owner_tokens.items():
                used[owner] = max(tokens, used.get(owner, 0))
        return used

    @property
    def elapsed(self) -> float:
        """Run clock at the latest moment any attempt is known to have been alive."""
        return max((attempt.began + attempt.seconds for attempt in self.attempts), default=0.0)

    def with_attempt(self, attempt: Attempt) -> Manifest:
        """With the last attempt replaced."""
        return self.model_copy(update={"attempts": (*self.attempts[:-1], attempt)})


def identity_hash(identity: Mapping[str, object]) -> str:
    """SHA-256 of the settings that change texts."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _hardware() -> dict[str, object]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
    }
