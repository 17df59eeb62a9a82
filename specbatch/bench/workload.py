"""A workload: a job, and how many rows of which kind with which promises come when.

A workload file is a job file with one table more, ``[workload]``. Without that table the rows of the
job's input are taken as they are. Promises may be factors of what plain decoding needs on this machine
(``tpot = "0.7x"``), so that a workload is as hard on a fast machine as on a slow one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from specbatch.config.values import Integer, Number, as_tuple
from specbatch.errors import ConfigError
from specbatch.settings import WORKLOAD

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*(x|x alone|ms|s)")


class Amount(BaseModel):
    """A time, or a factor of the time that plain decoding takes.

    Attributes:
        value: Seconds, or the factor.
        of: ``batch``: of plain decoding of the same rows; ``alone``: of one row at a time.
    """

    model_config = ConfigDict(frozen=True)

    value: float
    of: Literal["", "batch", "alone"] = ""

    @classmethod
    def parse(cls, text: object) -> object:
        """``"25ms"``, ``"3s"``, ``"0.7x"`` or ``"0.7x alone"``.

        Raises:
            ValueError: The text is none of these.
        """
        if not isinstance(text, str):
            if isinstance(text, Amount):
                return text
            raise ValueError('expected a time such as "25ms" or "3s", or a factor such as "0.7x"')
        match = _AMOUNT.fullmatch(text.strip())
        if match is None or not float(match[1]) > 0.0:
            raise ValueError(
                'expected a time such as "25ms" or "3s", or a factor such as "0.7x" or "0.7x alone"'
            )
        value, unit = float(match[1]), match[2]
        if unit in ("ms", "s"):
            return cls(value=value / 1e3 if unit == "ms" else value)
        return cls(value=value, of="batch" if unit == "x" else "alone")

    def __str__(self) -> str:
        """As it was written; times in milliseconds below a second."""
        if self.of:
            return f"{self.value:g}x" + (" alone" if self.of == "alone" else "")
        return f"{self.value:g}s" if self.value >= 1.0 else f"{1e3 * self.value:g}ms"


Time = Annotated[Amount, BeforeValidator(Amount.parse)]


class Mix(BaseModel):
    """The rows of one tier.

    Attributes:
        rows: How many, or which share of all.
        tpot: Promised time per output token after the first.
        ttft: Promised time to the first token.
        deadline: Promised time from arrival to the last token.
        after: They arrive this long after the start, all at once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: Annotated[int | float, Field(gt=0)]
    tpot: Time | None = None
    ttft: Time | None = None
    deadline: Time | None = None
    after: Time | None = None

    @model_validator(mode="after")
    def _check_share(self) -> Mix:
        if isinstance(self.rows, float) and self.rows > 1.0:
            raise ValueError("rows must be a share of at most 1.0, or a whole number of rows")
        return self

    @property
    def promises(self) -> Mapping[str, Amount]:
        """Those that are made, by name."""
        named = {"TPOT": self.tpot, "TTFT": self.ttft, "deadline": self.deadline}
        return {name: amount for name, amount in named.items() if amount is not None}


class Arrivals(BaseModel):
    """Rows that arrive one after the other, at random (a Poisson process).

    Attributes:
        rate: Rows per second; with an ``x``, as a factor of what plain decoding answers per second.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: Annotated[str | Number, Field(description="rows per second")]

    @model_validator(mode="after")
    def _check_rate(self) -> Arrivals:
        self.per_second(1.0)
        return self

    @property
    def relative(self) -> bool:
        """Whether plain decoding must be measured first."""
        return isinstance(self.rate, str)

    def per_second(self, plain: float) -> float:
        """Rows per second.

        Args:
            plain: Rows per second of plain decoding.

        Raises:
            ValueError: The rate is no positive number or factor.
        """
        text = self.rate
        if isinstance(text, str):
            if not re.fullmatch(r"\d+(?:\.\d+)?x", text) or not float(text[:-1]) > 0.0:
                raise ValueError('rate must be a number of rows per second, or a factor such as "0.8x"')
            return float(text[:-1]) * plain
        if not text > 0.0:
            raise ValueError("rate must be positive")
        return float(text)


class CaseSpec(BaseModel):
    """One case of a workload.

    Attributes:
        name: For people; empty: made of the rows in flight.
        rows: Rows; prompts come round again when there are fewer. Never fewer than are in flight.
            0: as many as there are prompts.
        rows_in_flight: 0: the job's ``max_rows_in_flight``.
        tiers: Rows by tier; without, rows keep tier and promises of the input.
        arrivals: When rows arrive; ``None``: all are there at the start.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    rows: Annotated[Integer, Field(ge=0)] = 0
    rows_in_flight: Annotated[Integer, Field(ge=0, le=4096)] = 0
    tiers: dict[str, Mix] = {}
    arrivals: Arrivals | None = None

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        shares = [mix.rows for mix in self.tiers.values() if isinstance(mix.rows, float)]
        if shares and sum(shares) > 1.0 + 1e-9:
            raise ValueError(f"the shares of the tiers add up to {sum(shares):g}; at most 1 makes sense")
        return self

    def total(self, prompts: int) -> int:
        """Rows of the case, where there are so many prompts."""
        return max(self.rows or prompts, self.rows_in_flight if self.rows else 0)


class Workload(CaseSpec):
    """Content of ``[workload]``: one case, or what all cases have in common.

    Attributes:
        prompts: TOML files with a list ``prompts``, or the prompts themselves; without, the job's input.
        cases: What is different in each case.
    """

    prompts: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    cases: tuple[CaseSpec, ...] = ()

    def specs(self, rows_in_flight: int) -> list[CaseSpec]:
        """The cases, complete.

        Args:
            rows_in_flight: Of the job; for cases that say nothing else.
        """
        common = {name: getattr(self, name) for name in CaseSpec.model_fields}
        found = []
        for case in self.cases or (CaseSpec(),):
            values = common | {name: getattr(case, name) for name in case.model_fields_set}
            values["rows_in_flight"] = values["rows_in_flight"] or rows_in_flight
            found.append(CaseSpec.model_construct(**values))
        return found


def read_workload(path: Path) -> Workload:
    """The ``[workload]`` of a file; that of a mere job file is empty.

    Raises:
        ConfigError: It cannot be read, or its workload makes no sense.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8")).get(WORKLOAD, {})
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such workload", "check the path and the working directory") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}", "a workload is a readable TOML file") from None
    try:
        workload = Workload.model_validate(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join([WORKLOAD, *(str(part) for part in fault["loc"])])
        reason = str(fault["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"{path}: {where}: {reason[0].lower()}{reason[1:]}") from None
    return workload.model_copy(update={"prompts": _prompts(path, workload.prompts)})


def _prompts(path: Path, named: tuple[str, ...]) -> tuple[str, ...]:
    """Prompts as given, those of files in their place."""
    found: list[str] = []
    for name in named:
        if not name.endswith(".toml"):
            found.append(name)
            continue
        file = path.parent / name
        try:
            listed = tomllib.loads(file.read_text(encoding="utf-8"))["prompts"]
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError) as error:
            raise ConfigError(
                f"{file}: no prompts: {error}", "name a TOML file with a list `prompts`"
            ) from None
        if not (isinstance(listed, list) and listed and all(isinstance(each, str) for each in listed)):
            raise ConfigError(f"{file}: `prompts` is not a list of strings", 'write prompts = ["…", "…"]')
        found += listed
    return tuple(found)
