"""An engine without a model: answers are a function of prompt and key. Also a program, to be killed.

``python fake_engine.py INPUT OUT SECONDS_PER_ROW`` runs a job with it.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from specbatch.config import JobConfig
from specbatch.errors import RowFault, SpecbatchError
from specbatch.job.run import run_job
from specbatch.job.surroundings import Surroundings
from specbatch.models.files import ModelFiles
from specbatch.progress import Snapshot
from specbatch.rows import Answer, FinishReason, Prompt, RawPrompt, Status

if TYPE_CHECKING:  # these import torch, and a process that is to be killed soon should start quickly
    from specbatch.engine.feed import Engine, Feed, Host
    from specbatch.ledger import EngineStats
    from specbatch.models.config import ModelConfig

FILES = ModelFiles("fake", Path("nowhere"), (), "gguf", "digest", "side", "q4_1")
NUMERICS = {"device": "cpu", "dtype": "float32"}


class FakeEncoder:
    """A token per byte."""

    def encode(self, raw: RawPrompt) -> Prompt:
        if not isinstance(raw.content, str) or "unspeakable" in raw.content:
            raise RowFault("template_error", "column `prompt`: the template refuses")
        tokens = tuple(raw.content.encode())
        return Prompt(
            raw.row_index, raw.key, raw.id, raw.tier, tokens, raw.params, raw.slo, raw.arrival, raw.owner
        )


@dataclass
class FakeStats:
    """Stands for ``EngineStats``."""

    steps: int = 0
    output_tokens: int = 0

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)


@dataclass
class FakeEngine:
    """Answers the feed most urgent row first, one per step."""

    numerics: Mapping[str, str] = field(default_factory=lambda: NUMERICS)
    notice: str = ""
    seconds_per_row: float = 0.0
    before_row: Callable[[int], None] = lambda _row: None
    choose: Callable[[list[int]], list[int]] = lambda rows: rows
    served: list[int] = field(default_factory=list)
    started_at: float = -1.0
    encoder: FakeEncoder = field(default_factory=FakeEncoder)

    @property
    def config(self) -> ModelConfig:
        raise NotImplementedError

    def run(self, feed: Feed, host: Host) -> EngineStats:
        stats = FakeStats()
        self.started_at = host.now()
        order = np.lexsort((feed.rows, feed.deadline, feed.priority))
        for row in self.choose(feed.rows[order].tolist()):
            if host.stop_requested():
                break
            self.before_row(row)
            self.served.append(row)
            try:
                host.deliver(answer(feed.fetch(row), host.now()))
                stats.output_tokens += 3
            except RowFault as fault:
                host.refuse(row, Status.REJECTED, fault)
            stats.steps += 1
            host.tick(Snapshot("running", 1, len(feed.rows) - len(self.served), stats.output_tokens))
            time.sleep(self.seconds_per_row)
        return cast("EngineStats", stats)


def answer(prompt: Prompt, now: float) -> Answer:
    """Text and tokens of a row, from its prompt and key alone; every third row is truncated."""
    digest = hashlib.sha256(prompt.key.encode() + bytes(prompt.token_ids)).digest()
    truncated = digest[0] % 3 == 0
    base = Answer(prompt.row_index, prompt.key, prompt.id, prompt.tier, Status.OK)
    return replace(
        base,
        status=Status.TRUNCATED if truncated else Status.OK,
        finish_reason=FinishReason.LENGTH if truncated else FinishReason.STOP,
        text=f"{bytes(prompt.token_ids).decode()} -> {digest.hex()[:8]}",
        token_ids=tuple(digest[:3]),
        prompt_tokens=len(prompt.token_ids),
        slo=prompt.slo,
        arrival=prompt.arrival,
        admitted_at=now,
        first_token_at=now,
        finished_at=now + 0.001,
        target_passes=3,
    )


class SilentReporter:
    """Remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        self.said.append(text)

    def warning(self, text: str) -> None:
        self.said.append(f"warning: {text}")

    def phase(self, name: str) -> None:
        self.said.append(name)

    def begin(self, tally: object) -> None:
        pass

    def tick(self, snapshot: Snapshot) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class World:
    """Surroundings that a test can look into."""

    engine: FakeEngine = field(default_factory=FakeEngine)
    files: ModelFiles = FILES
    reporter: SilentReporter = field(default_factory=SilentReporter)
    opened: int = 0
    wall: Callable[[], float] = time.time

    def surroundings(self) -> Surroundings:
        return Surroundings(
            self.open_engine, self.find_model, lambda: self.reporter, self.wall, self.open_encoder
        )

    def open_engine(self, _config: JobConfig, _files: ModelFiles, _started: datetime, *_: object) -> Engine:
        self.opened += 1
        return cast("Engine", self.engine)

    def open_encoder(self, _config: JobConfig, _directory: Path, _started: datetime) -> FakeEncoder:
        return self.engine.encoder

    def find_model(
        self, spec: str, *, allow_download: bool = True, report: Callable[[str], None]
    ) -> ModelFiles:
        assert spec
        assert allow_download in (True, False)
        return self.files


def main(source: str, out: str, seconds_per_row: str) -> int:
    """Run a job of which every finished row is committed at once."""
    config = JobConfig(input=(source,), out=Path(out), token_ids=True, flush_rows=1)
    world = World(FakeEngine(seconds_per_row=float(seconds_per_row)))
    try:
        return int(run_job(config, surroundings=world.surroundings()).exit_code)
    except SpecbatchError as error:
        sys.stderr.write(f"{error.what}\n")
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
