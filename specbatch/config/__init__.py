"""The frozen description of a job, put together from layers: defaults < job file < environment < flags.

Every field of :class:`JobConfig` is a key of the job file, a variable ``SPECBATCH_<KEY>`` and a flag
``--<key>`` alike. A key that does not exist is an error with a suggestion, in whichever layer it stands.
Where the layers come from is :mod:`specbatch.settings`; the kinds of values are in
:mod:`specbatch.config.values`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from specbatch.config.identity import ModelIdentity, identity
from specbatch.config.moments import Moment
from specbatch.config.places import Shard, check_out, spelled_shard
from specbatch.config.values import (
    POLICIES,
    WEIGHS_COSTS,
    Integer,
    Number,
    Owner,
    Positive,
    Strings,
    Tier,
    as_tuple,
    builtin_tiers,
    check_owners,
    check_policy,
    check_shares,
    parse_bytes,
    parse_failures,
    parse_memory,
    unwritable,
    with_builtin_tiers,
)
from specbatch.rows import SamplingParams

__all__ = ["JobConfig", "ModelIdentity", "Owner", "Tier", "builtin_tiers", "identity", "parse_bytes"]


class JobConfig(BaseModel):
    """One job, frozen and saved beside its output."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    input: Annotated[Strings, Field(min_length=1, description="Parquet files, globs or directories")]
    out: Annotated[
        Path | None,
        Field(description="run directory (default: INPUT_STEM.out); {date} is that of the first start"),
    ] = None
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
    activations: Annotated[
        Literal["auto", "int8", "float32"],
        Field(description="what the compiled kernels multiply quantised weights with (auto: int8)"),
    ] = "auto"
    quantize: Annotated[
        Literal["q8_0", "q4_0"] | None, Field(description="quantise a float checkpoint when it is loaded")
    ] = None
    threads: Annotated[
        Annotated[Positive, Field(le=1024)] | None, Field(description="CPU threads (default: all cores)")
    ] = None

    policy: Annotated[
        str,
        AfterValidator(check_policy),
        Field(description=f"speculation policy: {POLICIES}"),
    ] = "auto"
    gamma: Annotated[Positive, Field(le=1024, description="drafted tokens per step with policy fixed")] = 4
    tree_levels: Annotated[Positive, Field(le=1024, description="depth of the tree of policy eagle")] = 7
    tree_width: Annotated[Positive, Field(le=1024, description="nodes expanded per level of that tree")] = 10
    tree_nodes: Annotated[Positive, Field(le=4096, description="nodes of that tree that are verified")] = 60
    draft_budget: Annotated[
        Positive, Field(le=65536, description="drafted tokens per step at most, all rows together")
    ] = 512
    drafter: Annotated[
        Literal["auto", "suffix", "model", "head", "suffix+head"], Field(description="where drafts come from")
    ] = "auto"
    draft_model: Annotated[
        str | None, Field(min_length=1, description="small model that drafts, named like --model")
    ] = None
    draft_head: Annotated[Path | None, Field(description="draft head, instead of the model's own")] = None

    objective: Annotated[
        Literal["tokens_per_s", "tokens_per_joule"],
        Field(description="what policies that weigh costs go for; joules need an energy meter"),
    ] = "tokens_per_s"
    power_cap: Annotated[
        Annotated[Number, Field(gt=0, le=1e6)] | None,
        Field(description="watts that the run stays below; needs an energy meter"),
    ] = None
    assume_watts: Annotated[
        Annotated[Number, Field(gt=0, le=1e6)] | None,
        Field(description="power to reckon with instead of measuring; labelled assumed everywhere"),
    ] = None
    measure_idle: Annotated[
        Annotated[Number, Field(gt=0, le=3600)] | None,
        Field(description="seconds for which idle power is measured before the run"),
    ] = None

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
    tz: Annotated[
        str | None, Field(description="time zone of timestamps that carry none, of {date} and --deadline")
    ] = None
    limit: Annotated[
        Annotated[Integer, Field(ge=1, lt=2**63)] | None, Field(description="run the first N rows only")
    ] = None
    shard: Annotated[
        Annotated[str, AfterValidator(spelled_shard)] | None,
        Field(description="answer one of n equal parts of the rows, i/n"),
    ] = None
    token_ids: Annotated[bool, Field(description="write a token_ids column")] = False
    tiers: Annotated[dict[str, Tier], BeforeValidator(with_builtin_tiers), Field(validate_default=True)] = {}
    default_tier: Annotated[str, Field(description="tier of rows that name none")] = "standard"
    late: Annotated[
        Literal["answer", "drop"],
        Field(description="what becomes of rows past their deadline"),
    ] = "answer"
    deadline: Annotated[
        str | None, Field(description="when the whole run is to be over, e.g. '06:00 Europe/Berlin'")
    ] = None
    owners: Annotated[dict[str, Owner], Field(description="limits by the owner column")] = {}
    decisions: Annotated[
        Literal["summary", "full", "off"], Field(description="what decisions.parquet tells of each row")
    ] = "summary"

    max_rows_in_flight: Annotated[Integer, Field(ge=1, le=4096, description="rows decoded together")] = 32
    kv_memory: Annotated[
        int | Literal["auto"],
        BeforeValidator(parse_memory),
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
    log_file: Annotated[
        Path | None, Field(description="append the log to this file; stderr keeps warnings and errors")
    ] = None
    max_failures: Annotated[
        int | str, BeforeValidator(parse_failures), Field(description="failed rows tolerated: N or P%")
    ] = 0
    fail_on: Annotated[
        tuple[Literal["truncated"], ...],
        BeforeValidator(as_tuple),
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
                if isinstance(text, str | Path) and (error := unwritable(str(text))):
                    raise ValueError(f"{name} {error}")
        return values

    @model_validator(mode="after")
    def _check_together(self) -> JobConfig:
        if self.default_tier not in self.tiers:
            raise ValueError(f"default_tier '{self.default_tier}' is not one of {', '.join(self.tiers)}")
        check_owners(self.owners, self.tiers)
        check_shares(self.tiers)
        if isinstance(self.max_failures, int) and self.max_failures < 0:
            raise ValueError("max_failures must not be negative")
        prompts = {"template": self.template, "prompt_column": self.prompt_column}
        given = [name for name, value in prompts.items() if value is not None]
        given += ["columns.prompt"] if "prompt" in self.columns else []
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} both say what the prompt is; give one of them")
        self._check_drafter()
        self._check_arithmetic()
        if self.deadline is not None:
            try:
                Moment.parse(self.deadline, self.tz)
            except ValueError as error:
                raise ValueError(f"deadline = '{self.deadline}': {error}") from None
        check_out(self.out, Shard.of(self.shard))
        self._check_energy()
        if "" in self.stop:
            raise ValueError("stop must not contain an empty string")
        return self

    def _check_arithmetic(self) -> None:
        if self.activations == "int8" and self.kernels == "torch":
            raise ValueError("activations 'int8' is for compiled kernels; leave out kernels 'torch', or this")
        if self.device == "cpu" and self.dtype not in ("auto", "float32"):
            raise ValueError(f"dtype '{self.dtype}' is not supported on the CPU; use 'float32'")
        if self.device == "cuda" and self.kernels == "compiled":
            raise ValueError("kernels 'compiled' work on the CPU only; leave out device 'cuda', or this")

    def _check_drafter(self) -> None:
        if self.drafter == "model" and self.draft_model is None:
            raise ValueError("drafter 'model' needs a draft_model")
        if self.draft_model is not None and self.drafter != "model":
            raise ValueError("draft_model is for drafter 'model'; set that too")
        if self.draft_head is not None and self.drafter in ("suffix", "model"):
            raise ValueError(f"draft_head is not for drafter '{self.drafter}'; leave one of them out")

    def _check_energy(self) -> None:
        if self.objective == "tokens_per_joule" and self.policy not in WEIGHS_COSTS:
            listed = ", ".join(WEIGHS_COSTS)
            raise ValueError(f"objective 'tokens_per_joule' is for policies that weigh costs: {listed}")
        if self.assume_watts is not None and (self.needs_meter or self.measure_idle is not None):
            raise ValueError(
                "assume_watts measures nothing, which power_cap, measure_idle and "
                "objective 'tokens_per_joule' need; leave one of them out"
            )

    @property
    def needs_meter(self) -> bool:
        """Whether the job cannot be run where no energy meter can be read."""
        return self.power_cap is not None or self.objective == "tokens_per_joule"

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

    def run_deadline(self, epoch: float) -> float | None:
        """When a run whose first start was at ``epoch`` is to be over; Unix seconds both."""
        return None if self.deadline is None else Moment.parse(self.deadline, self.tz).after(epoch)

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
