"""What a user may say about training a head. Imports neither torch nor a model library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specbatch.errors import ConfigError
from specbatch.models.catalog import DEFAULT_MODEL


class TrainSettings(BaseModel):
    """Settings of ``specbatch train-draft``; descriptions are the help of the flags."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: Annotated[Path | None, Field(description="folder of training data: made, or gone on with")] = None
    out: Annotated[Path | None, Field(description="the head's file, .safetensors; never overwritten")] = None
    start: Annotated[
        Path | None, Field(description="head to begin with; it also gives the draft vocabulary")
    ] = None
    model: Annotated[str, Field(description="the model to draft for")] = DEFAULT_MODEL
    seed: Annotated[int, Field(ge=0, description="of everything that is drawn")] = 0
    threads: Annotated[
        int | None, Field(ge=1, le=1024, description="CPU threads; all cores when not given")
    ] = None
    rows: Annotated[
        Path | None,
        Field(
            description="finished run directory whose rows are learned from, instead of the model's own text"
        ),
    ] = None
    prompts: Annotated[
        Path | None, Field(description="table whose prompts the model answers, instead of its own")
    ] = None
    also: Annotated[
        tuple[Path, ...], Field(description="folder of more data, collected before; may be repeated")
    ] = ()
    tokens: Annotated[int, Field(ge=1, description="collect until there are so many tokens")] = 1_000_000
    user_tokens: Annotated[int, Field(ge=8, description="cut longer user messages")] = 160
    answer_tokens: Annotated[int, Field(ge=8, description="cut longer answers")] = 320
    temperature: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="of half the answers; the others are greedy")
    ] = 0.7
    seats: Annotated[int, Field(ge=1, description="documents written at once, per thread")] = 64
    minutes: Annotated[float, Field(gt=0, allow_inf_nan=False, description="train for about so long")] = 60.0
    steps: Annotated[
        int | None, Field(ge=1, description="train for so many steps instead; repeatable bit by bit")
    ] = None
    batch_tokens: Annotated[int, Field(ge=1, description="tokens per step")] = 512
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False, description="at its peak")] = 1.2e-3
    draft_vocab: Annotated[int, Field(ge=2, description="tokens that the head can propose")] = 8192
    quantise: Annotated[
        Literal["none", "q8_0", "q4_0"], Field(description="block format of the matrices")
    ] = "q8_0"


def read_settings(flags: Mapping[str, object]) -> TrainSettings:
    """Settings from flags; ``None`` means not given.

    Raises:
        ConfigError: A value makes no sense.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return TrainSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise ConfigError(f"--{name} {first['input']}: {first['msg']}") from error
