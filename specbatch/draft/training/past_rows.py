"""Documents from a past run: the prompts of its input, the answers of its results."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq

from specbatch.config import JobConfig
from specbatch.draft.training.documents import Document, given_document
from specbatch.draft.training.recipe import Source, target_facts
from specbatch.errors import InputError, MismatchError, RowFault
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.table.fetch import RowFetcher
from specbatch.table.manifest import Manifest
from specbatch.table.parse import RowParser
from specbatch.table.reader import InputTable
from specbatch.table.rundir import RunDir
from specbatch.table.spool import Spool
from specbatch.text.chat import ChatTemplate
from specbatch.text.encoder import PromptEncoder
from specbatch.text.tokenizer import Tokenizer

LONGEST = 1024
"""Tokens of a document; what is behind is cut off."""

_SUCCEEDED = ("ok", "truncated")


def past_rows(files: ModelFiles, config: ModelConfig, path: Path) -> Source:
    """Rows of a finished run of the same model.

    Args:
        files: The target.
        config: Its shape.
        path: Run directory. Its input must still be where it was, unchanged.

    Raises:
        InputError: Not a finished run, or its input is gone.
        MismatchError: Another model wrote the answers, or the input was changed.
    """
    manifest = _manifest(path)
    if manifest.model.get("digest") != files.digest:
        raise MismatchError(
            f"{path} holds answers of {manifest.model.get('name', 'another model')}, not of {files.name}",
            "train on rows of the model the head is for",
        )
    job = JobConfig.model_validate(manifest.config)
    table = InputTable.open(job)
    if table.fingerprint() != manifest.input:
        raise MismatchError(f"the input of {path} was changed since", "run the job again")
    documents = list(_documents(files, config, (path, job, manifest), table))
    recipe = {
        **target_facts(files, config),
        "source": "rows of a past run",
        "rows": {"run_id": manifest.run_id, "count": len(documents)},
    }

    def document(number: int) -> Document | None:
        if number >= len(documents):
            return None
        prompt, answer = documents[number]
        return given_document(number, prompt, answer)

    return Source(document, recipe, LONGEST)


def _manifest(path: Path) -> Manifest:
    directory = RunDir(path)
    manifest = directory.load()
    if manifest is None or not directory.results.is_file():
        raise InputError(
            f"{path} is not the directory of a finished run", "name one that has results.parquet"
        )
    return manifest


def _documents(
    files: ModelFiles, config: ModelConfig, run: tuple[Path, JobConfig, Manifest], table: InputTable
) -> Iterator[tuple[list[int], list[int]]]:
    """Prompt and answer of every row that has one, as far as a document reaches."""
    path, job, manifest = run
    tokenizer = Tokenizer.load(files.directory)
    started = datetime.fromtimestamp(manifest.epoch).astimezone()
    template = ChatTemplate.load(files.directory, started)
    encoder = PromptEncoder(tokenizer, template, config, job.system, job.raw_prompts)
    parser = RowParser.of(job, manifest.epoch)
    with Spool(path) as spool:
        fetcher = RowFetcher(table.index(parser, spool), parser, spool)
        for row_index, answer in _answers(path, tokenizer, config):
            try:
                prompt = list(encoder.encode(fetcher.fetch(row_index)).token_ids)
            except RowFault:
                continue  # it had no answer in that run either
            if len(prompt) < LONGEST - 1 and answer:
                yield prompt, answer[: LONGEST - len(prompt)]


def _answers(path: Path, tokenizer: Tokenizer, config: ModelConfig) -> Iterator[tuple[int, list[int]]]:
    """Row index and answer tokens; made from the text again where the run kept no token ids."""
    file = pq.ParquetFile(RunDir(path).results)
    names = ["row_index", "status", "finish_reason", "text"]
    has_ids = "token_ids" in file.schema_arrow.names
    end = [min(config.eos_ids)] if config.eos_ids else []
    for batch in file.iter_batches(columns=[*names, *(["token_ids"] if has_ids else [])]):
        for row in batch.to_pylist():
            if row["status"] not in _SUCCEEDED:
                continue
            ids = row["token_ids"] if has_ids else None
            if ids is None:
                ids = tokenizer.encode(row["text"], add_special_tokens=False)
                ids += end if row["finish_reason"] == "stop" else []
            yield row["row_index"], ids
