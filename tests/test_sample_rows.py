"""Sample rows end where ``expect`` says, as far as reading, checking and tokenising can tell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from specbatch.config import JobConfig
from specbatch.errors import RowFault
from specbatch.models.config import ModelConfig
from specbatch.models.resolve import resolve_model
from specbatch.rows import Prompt
from specbatch.table.fetch import RowFetcher
from specbatch.table.parse import RowParser
from specbatch.table.reader import InputTable
from specbatch.table.spool import Spool
from specbatch.text.chat import ChatTemplate
from specbatch.text.encoder import PromptEncoder
from specbatch.text.tokenizer import Tokenizer

SAMPLE_DATA = Path(__file__).resolve().parent.parent / "sample_data"
pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def encoder() -> PromptEncoder:
    directory = resolve_model("smollm2-135m", report=lambda _: None).directory
    config = ModelConfig.from_directory(directory)
    return PromptEncoder(Tokenizer.load(directory), ChatTemplate.load(directory), config)


def outcomes(path: Path, encoder: PromptEncoder, folder: Path) -> Iterator[Prompt | str]:
    """For every row its prompt, or the code of its fault."""
    config = JobConfig(input=(str(path),))
    parser = RowParser.of(config, epoch=1.8e9)
    table = InputTable.open(config)
    with Spool(folder) as spool:
        fetcher = RowFetcher(table.index(parser, spool), parser, spool)
        for row_index in range(table.num_rows):
            try:
                yield encoder.encode(fetcher.fetch(row_index))
            except RowFault as fault:
                yield fault.code


def test_every_job_row_is_sound(encoder: PromptEncoder, tmp_path: Path) -> None:
    prompts = list(outcomes(SAMPLE_DATA / "jobs.parquet", encoder, tmp_path))
    faults = [prompt for prompt in prompts if isinstance(prompt, str)]
    assert not faults
    lengths = [len(prompt.token_ids) for prompt in prompts if isinstance(prompt, Prompt)]
    assert len(lengths) == 60
    assert sum(lengths) < 10_000, "the sample job must stay quick on two cores"


def test_awkward_rows_end_as_they_say(encoder: PromptEncoder, tmp_path: Path) -> None:
    path = SAMPLE_DATA / "awkward.parquet"
    ends = ["answered" if isinstance(end, Prompt) else end for end in outcomes(path, encoder, tmp_path)]
    rows = pq.read_table(path, columns=["id", "expect"]).to_pylist()
    surprises = {
        row["id"]: (row["expect"], end) for row, end in zip(rows, ends, strict=True) if row["expect"] != end
    }
    assert not surprises
