"""The frozen description of a job, put together from layers: defaults < job file < environment < flags.

Every field of :class:`JobConfig` is a key of the job file, a variable ``SPECBATCH_<KEY>`` and a flag
``--<key>`` alike. A key that does not exist is an error with a suggestion, in whichever layer it stands.
Where the layers come from is :mod:`specbatch.settings`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from specbatch.rows import SamplingParams

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_PERCENT = re.compile(r"\d+(?:\.\d+)?\s*%")


def parse_bytes(text: str) -> int:
    """Turn ``"2GiB"``, ``"512 MB"`` or ``"4096"`` into a number of bytes, at least one.

    Raises:
        ValueError: The text is not a size.
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a size such as 2GiB, 512MB or auto")
    number, unit, binary = match.groups()
    base = 1024 if binary else 1000
    size = float(number) * base ** " kmgt".index(unit.lower() or " ")
    if not 1 <= size < 2**63:
        raise ValueError("expected at least one byte, and fewer than 2^63")
    return int(size)


def _parse_memory(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, int) and value < 1):
        raise ValueError("expected a size such as 2GiB, 512MB or auto")
    return parse_bytes(value) if isinstance(value, str) and value != "auto" else value


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


def _as_tuple(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _parse_failures(value: object) -> object:
    """Accept a count or a percentage; digits in a string (environment, flag) are a count."""
    if isinstance(value, bool):
        raise ValueError("expected a number of rows or a percentage such as 5%")
    if not isinstance(value, str):
        return value
    if value.strip().isdigit():
        return int(value)
    if not _PERCENT.fullmatch(value.strip()):
        raise ValueError("expected a number of rows or a percentage such as 5%")
    return value.strip()


def _unwritable(text: str) -> str | None:
    """What keeps a text from being written or passed on; ``None`` for good ones."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"is not valid Unicode: {text!a}"
    return None


Integer = Annotated[int, BeforeValidator(_no_bool)]
Positive = Annotated[Integer, Field(ge=1)]
Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Strings = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


class Tier(BaseModel):
    """A named latency class. Its SLOs hold for rows that do not bring their own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    priority: Annotated[Integer, Field(ge=0, le=1000, description="lower is more urgent")]
    deadline_s: Annotated[Number, Field(gt=0, description="seconds after the row's arrival")] | None = None
    tpot_slo_ms: Annotated[Number, Field(gt=0, description="milliseconds per output token")] | None = None
    ttft_slo_ms: Annotated[Number, Field(gt=0, description="milliseconds to the first token")] | None = None


def builtin_tiers() -> dict[str, Tier]:
    """Tiers every job has. They order rows and promise nothing: SLOs come from the job or the row."""
    return {"interactive": Tier(priority=0), "standard": Tier(priority=10), "batch": Tier(priority=20)}


def _with_builtin_tiers(value: object) -> object:
    return {**builtin_tiers(), **value} if isinstance(value, Mapping) else value


class ModelIdentity(Protocol):
    """What identifies a model on disk (provided by :mod:`specbatch.models`)."""

    @property
    def digest(self) -> str:
        """SHA-256 over the weights."""

    @property
    def side_digest(self) -> str:
        """SHA-256 over configuration, tokenizer and chat template."""

    @property
    def quantization(self) -> str:
        """Label of the stored number format, e.g. ``q4_1``; ``none`` for plain floats."""


class JobConfig(BaseModel):
    """One job, frozen and saved beside its output."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    input: Annotated[Strings, Field(min_length=1, description="Parquet files, globs or directories")]
    out: Annotated[Path | None, Field(description="run directory (default: INPUT_STEM.out)")] = None
    model: Annotated[
        str, Field(min_length=1, description="alias, Hugging Face id, directory or .gguf file")
    ] = "smollm2-135m"
    engine: Annotated[Literal["native"], Field(description="inference engine")] = "native"
    device: Annotated[Literal["auto", "cpu", "cuda"], Field(description="where to run")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Field(description="number format of the computation"),
    ] = "auto"
    kernels: Annotated[
        Literal["auto", "compiled", "torch"], Field(description="compiled CPU kernels, or those of torch")
    ] = "auto"
    quantize: Annotated[
        Literal["q8_0", "q4_0"] | None, Field(description="quantise a float checkpoint when it is loaded")
    ] = None
    threads: Annotated[
        Annotated[Positive, Field(le=1024)] | None, Field(description="CPU threads (default: all cores)")
    ] = None
    policy: Annotated[Literal["off"], Field(description="speculation policy")] = "off"

    seed: Annotated[Integer, Field(ge=0, lt=2**63, description="seed of the job")] = 0
    max_tokens: Annotated[Integer, Field(ge=1, description="output tokens per row at most")] = 256
    temperature: Annotated[Number, Field(ge=0, description="0 is greedy")] = 0.0
    top_k: Annotated[Integer, Field(ge=0, description="keep the k most likely tokens; 0 keeps all")] = 0
    top_p: Annotated[Number, Field(gt=0, le=1, description="keep the likeliest tokens of this mass")] = 1.0
    min_p: Annotated[
        Number, Field(ge=0, le=1, description="drop tokens below this share of the likeliest")
    ] = 0.0
    repetition_penalty: Annotated[Number, Field(gt=0, description="above 1 discourages repetition")] = 1.0
    stop: Annotated[Strings, Field(description="strings that end the text")] = ()
    system: Annotated[str | None, Field(description="system message put before every prompt")] = None
    raw_prompts: Annotated[bool, Field(description="send prompts as they are, without chat template")] = False

    where: Annotated[
        str | None, Field(description="only rows for which this is true, e.g. \"lang = 'en' and score > 3\"")
    ] = None
    template: Annotated[str | None, Field(description="prompt made of columns, e.g. 'Summarise: {body}'")] = (
        None
    )
    prompt_column: Annotated[str | None, Field(description="column that holds the prompt")] = None
    columns: Annotated[dict[str, str], Field(description="our column name = the table's column name")] = {}
    tz: Annotated[str | None, Field(description="time zone of timestamps that carry none")] = None
    limit: Annotated[
        Annotated[Integer, Field(ge=1, lt=2**63)] | None, Field(description="run the first N rows only")
    ] = None
    token_ids: Annotated[bool, Field(description="write a token_ids column")] = False
    tiers: Annotated[dict[str, Tier], BeforeValidator(_with_builtin_tiers), Field(validate_default=True)] = {}
    default_tier: Annotated[str, Field(description="tier of rows that name none")] = "standard"
    late: Annotated[
        Literal["answer", "drop"],
        Field(description="what becomes of rows past their deadline"),
    ] = "answer"

    max_rows_in_flight: Annotated[Integer, Field(ge=1, le=4096, description="rows decoded together")] = 32
    kv_memory: Annotated[
        int | Literal["auto"],
        BeforeValidator(_parse_memory),
        Field(description="memory for keys and values, e.g. 2GiB"),
    ] = "auto"
    page_size: Annotated[Integer, Field(ge=1, le=1024, description="tokens per page of keys and values")] = 16
    prefix_sharing: Annotated[bool, Field(description="share keys and values of equal prompt beginnings")] = (
        True
    )
    prefill_chunk: Annotated[Integer, Field(ge=1, description="prompt tokens per step at most")] = 128

    flush_every_s: Annotated[Number, Field(gt=0, description="seconds between commits of finished rows")] = (
        5.0
    )
    flush_rows: Annotated[Integer, Field(ge=1, description="finished rows that force a commit")] = 256
    log_format: Annotated[Literal["text", "json"], Field(description="form of the lines on stderr")] = "text"
    max_failures: Annotated[
        int | str, BeforeValidator(_parse_failures), Field(description="failed rows tolerated: N or P%")
    ] = 0
    fail_on: Annotated[
        tuple[Literal["truncated"], ...],
        BeforeValidator(_as_tuple),
        Field(description="also count these as failed"),
    ] = ()
    min_attainment: Annotated[
        Annotated[Number, Field(ge=0, le=1)] | None,
        Field(description="share of rows with SLOs that must attain them, 0 to 1"),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _check_unicode(cls, values: object) -> object:
        """Bytes of the command line that are not UTF-8 arrive as lone surrogates, which nobody can write."""
        for name, value in values.items() if isinstance(values, Mapping) else ():
            for text in value if isinstance(value, list | tuple) else (value,):
                if isinstance(text, str | Path) and (error := _unwritable(str(text))):
                    raise ValueError(f"{name} {error}")
        return values

    @model_validator(mode="after")
    def _check_together(self) -> JobConfig:
        if self.default_tier not in self.tiers:
            raise ValueError(f"default_tier '{self.default_tier}' is not one of {', '.join(self.tiers)}")
        if isinstance(self.max_failures, int) and self.max_failures < 0:
            raise ValueError("max_failures must not be negative")
        prompts = {"template": self.template, "prompt_column": self.prompt_column}
        given = [name for name, value in prompts.items() if value is not None]
        given += ["columns.prompt"] if "prompt" in self.columns else []
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} both say what the prompt is; give one of them")
        if "" in self.stop:
            raise ValueError("stop must not contain an empty string")
        return self

    @property
    def sampling(self) -> SamplingParams:
        """Parameters of a row that sets none of its own."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            max_tokens=self.max_tokens,
            stop=self.stop,
        )

    @property
    def renamed(self) -> dict[str, str]:
        """Our column name → the table's, where they differ."""
        return self.columns if self.prompt_column is None else {**self.columns, "prompt": self.prompt_column}

    @property
    def failure_rate(self) -> float | None:
        """``max_failures`` as a share of the rows; ``None`` when it is a number of rows."""
        return None if isinstance(self.max_failures, int) else float(self.max_failures.rstrip("% ")) / 100

    def allowed_failures(self, rows: int) -> int:
        """How many of ``rows`` may fail before the run counts as failed."""
        if isinstance(self.max_failures, int):
            return self.max_failures
        return math.floor(rows * float(self.max_failures.rstrip("% ")) / 100)


def identity(config: JobConfig, model: ModelIdentity) -> dict[str, object]:
    """The settings that change a row's text, one flat JSON-ready mapping.

    A run directory continues only with an equal identity. Tiers, deadlines, batching, drafters and
    policies are absent on purpose: they change when a row is answered, never what is answered. What
    the machine contributes (device class, number format, kernels) is compared by the engine's own
    :attr:`specbatch.engine.feed.Engine.numerics`.
    """
    keys = ("engine", "seed", "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    settings = {key: getattr(config, key) for key in keys}
    return {
        "model_digest": model.digest,
        "quantization": config.quantize or model.quantization,
        "side_digest": model.side_digest,
        **settings,
        "stop": list(config.stop),
        "system": config.system,
        "template": config.template,
        "raw_prompts": config.raw_prompts,
        "token_ids": config.token_ids,
    }
