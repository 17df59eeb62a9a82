"""Answers that the target writes to the prompts of a table."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from specbatch.config import JobConfig
from specbatch.draft.training.documents import Conversation, Document, Mark, document_stream
from specbatch.draft.training.recipe import Source, Writing, target_facts
from specbatch.errors import InputError, RowFault
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.rows import SamplingParams
from specbatch.table.fetch import RowFetcher
from specbatch.table.parse import RowParser
from specbatch.table.reader import InputTable
from specbatch.table.spool import Spool
from specbatch.text.chat import ChatTemplate
from specbatch.text.encoder import PromptEncoder
from specbatch.text.tokenizer import Tokenizer

LONGEST_PROMPT = 512
"""Tokens; longer prompts are left out."""


def answers_to(files: ModelFiles, config: ModelConfig, path: Path, writing: Writing) -> Source:
    """The prompts of a table, which the target answers: every second greedily.

    Args:
        files: The target.
        config: Its shape.
        path: A table such as ``specbatch run`` takes; only its prompts count.
        writing: Length and temperature of the answers.

    Raises:
        InputError: The table cannot be read, or none of its prompts can be used.
    """
    prompts = tuple(_prompts(files, config, path))
    if not prompts:
        raise InputError(
            f"{path}: no prompt of at most {LONGEST_PROMPT} tokens", "specbatch validate says what is wrong"
        )
    styles = (
        SamplingParams(max_tokens=writing.answer_tokens),
        SamplingParams(temperature=writing.temperature, max_tokens=writing.answer_tokens),
    )
    digest = hashlib.sha256(b"".join(b"%d," % token for prompt in prompts for token in (*prompt, -1)))
    recipe = {
        **target_facts(files, config),
        "source": "the target's answers to given prompts",
        "prompts": {"count": len(prompts), "sha256": digest.hexdigest()},
        "seed": writing.seed,
        "answer": {"temperatures": [0.0, writing.temperature], "max_tokens": writing.answer_tokens},
    }

    def document(number: int) -> Document | None:
        if number >= len(prompts):
            return None
        prompt = prompts[number]
        return Conversation(
            index=number,
            stream=document_stream(writing.seed, number),
            tokens=list(prompt),
            marks=[Mark.USER] * len(prompt),
            params=styles[number % 2],
            end_ids=config.eos_ids,
            turn=Mark.ANSWER,
        )

    return Source(document, recipe, LONGEST_PROMPT + writing.answer_tokens)


def _prompts(files: ModelFiles, config: ModelConfig, path: Path) -> Iterator[tuple[int, ...]]:
    """The prompts as tokens, template included, in the order of the table."""
    job = JobConfig(input=(str(path),))
    table, parser = InputTable.open(job), RowParser.of(job, 0.0)
    tokenizer = Tokenizer.load(files.directory)
    encoder = PromptEncoder(tokenizer, ChatTemplate.load(files.directory), config, job.system, False)
    with TemporaryDirectory() as folder, Spool(Path(folder)) as spool:
        index = table.index(parser, spool)
        fetcher = RowFetcher(index, parser, spool)
        for row in range(len(index)):
            try:
                prompt = encoder.encode(fetcher.fetch(row)).token_ids
            except RowFault:
                continue  # validate names it; here a prompt more or less makes no difference
            if len(prompt) <= LONGEST_PROMPT:
                yield tuple(prompt)
