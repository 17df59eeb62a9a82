"""The real loop over the model of known next-token tables, as the engine of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from specbatch.config import JobConfig
from specbatch.engine.loop import Loop, Target
from specbatch.rows import Prompt, RawPrompt
from tests.engine.table_model import CONFIG, TableExecutor, word_tokenizer

from .fake_engine import NUMERICS, World

if TYPE_CHECKING:
    from specbatch.engine.feed import Engine, Feed, Host
    from specbatch.ledger import EngineStats


class WordEncoder:
    """Prompts are words "a0" ... "a31"."""

    def encode(self, raw: RawPrompt) -> Prompt:
        assert isinstance(raw.content, str)
        tokens = tuple(word_tokenizer().encode(raw.content, add_special_tokens=False))
        return Prompt(
            raw.row_index, raw.key, raw.id, raw.tier, tokens, raw.params, raw.slo, raw.arrival, raw.owner
        )


@dataclass
class TableEngine:
    """Implements :class:`specbatch.engine.feed.Engine`."""

    job: JobConfig
    numerics = NUMERICS
    notice = ""
    encoder = WordEncoder()
    config = CONFIG

    def run(self, feed: Feed, host: Host) -> EngineStats:
        loop = Loop(Target(CONFIG, word_tokenizer(), TableExecutor()), self.job, feed, host)
        while loop.rows_left() and not host.stop_requested():
            loop.step()
        return loop.finish()


class TableWorld(World):
    """Surroundings with that engine."""

    def open_engine(self, config: JobConfig, *_rest: Any) -> Engine:
        return cast("Engine", TableEngine(config))

    def open_encoder(self, *_rest: Any) -> Any:
        return WordEncoder()
