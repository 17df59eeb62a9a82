"""Where a :class:`~specbatch.config.JobConfig` comes from: files, environment, flags."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from specbatch.config import JobConfig, Owner, Tier
from specbatch.errors import ConfigError

PROJECT_FILE = "specbatch.toml"
ENV_PREFIX = "SPECBATCH_"
# Variables of that prefix which are not job settings: where models are cached, how kernels are built.
NOT_SETTINGS = ("SPECBATCH_CACHE", "SPECBATCH_SANITIZE")
WORKLOAD = "workload"
"""A table of job files that is no setting: ``specbatch bench`` reads it, and nobody else."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings of one source. ``names`` gives each key as the user wrote it, for error messages."""

    source: str
    values: Mapping[str, object]
    names: Mapping[str, str]


def load_config(
    flags: Mapping[str, object],
    *,
    job_file: Path | None = None,
    environ: Mapping[str, str],
    project_file: Path | None = None,
) -> JobConfig:
    """Merge the layers, later ones on top, and validate the result.

    Args:
        flags: Settings given on the command line, by field name; absent ones left out.
        job_file: The job's TOML file.
        environ: The process environment; ``SPECBATCH_<KEY>`` are settings.
        project_file: TOML file with defaults for all jobs of a project; may be missing.

    Raises:
        ConfigError: A file cannot be read, a key is unknown or a value is invalid.
    """
    layers: list[Layer] = []
    if project_file is not None and project_file.is_file():
        layers.append(file_layer(project_file))
    if job_file is not None:
        layers.append(file_layer(job_file))
    layers.append(environment_layer(environ))
    layers.append(Layer("flag", flags, {key: "--" + key.replace("_", "-") for key in flags}))
    values: dict[str, object] = {}
    blame: dict[str, Layer] = {}
    for layer in layers:
        for key, value in layer.values.items():
            _check_known(key, layer)
            values[key] = value
            blame[key] = layer
    if not values.get("input"):
        raise ConfigError("no input given", "name a Parquet file, or set `input` in the job file")
    try:
        return JobConfig.model_validate(values)
    except ValidationError as error:
        raise _explain(error, blame) from None


def file_layer(path: Path) -> Layer:
    """Read a TOML job file. Its relative paths mean files beside it, wherever the command is started.

    Raises:
        ConfigError: The file is missing, unreadable or not TOML.
    """
    try:
        values: dict[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such job file", "check the path and the working directory") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}", "the job file must be a readable TOML file") from None
    values.pop(WORKLOAD, None)
    for key in ("input", "out", "log_file", "model", "draft_model", "draft_head"):
        if key in values:
            values[key] = _beside(path.parent, key, values[key])
    return Layer(str(path), values, {key: key for key in values})


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Read ``SPECBATCH_<KEY>`` variables; tables and lists are written as JSON."""
    names = {
        name.removeprefix(ENV_PREFIX).lower(): name
        for name in environ
        if name.startswith(ENV_PREFIX) and name not in NOT_SETTINGS
    }
    values = {key: _decode(name, environ[name]) for key, name in names.items()}
    return Layer("environment", values, names)


def suggest(key: str, known: Iterable[str]) -> str:
    """A hint that names the closest known key, or all of them when none is close."""
    known = list(known)
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else f"known keys: {', '.join(known)}"


def _beside(folder: Path, key: str, value: object) -> object:
    if isinstance(value, list):
        return [_beside(folder, key, item) for item in value]
    if not isinstance(value, str) or "://" in value:
        return value
    if key in ("model", "draft_model") and not value.startswith(("./", "../")):
        return value
    return str(folder / value)


def _decode(name: str, text: str) -> object:
    if not text.startswith(("[", "{")):
        return text
    try:
        value: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}: {error}", "write lists and tables as JSON, or a plain value") from None
    return value


def _check_known(key: str, layer: Layer) -> None:
    if key not in JobConfig.model_fields:
        env = layer.source == "environment"
        known = [ENV_PREFIX + name.upper() if env else name for name in JobConfig.model_fields]
        hint = suggest(layer.names[key], known)
        raise ConfigError(f"{layer.source}: unknown setting `{layer.names[key]}`", hint)


def _explain(error: ValidationError, blame: Mapping[str, Layer]) -> ConfigError:
    """One line for the first fault; a misspelt key comes before the absence it causes."""
    fault = min(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
    where = [part for part in fault["loc"] if isinstance(part, str)]  # no list positions: the value is shown
    reason = str(fault["msg"]).removeprefix("Value error, ")
    if not where:
        return ConfigError(reason)
    layer = blame[where[0]]
    key = ".".join([layer.names[where[0]], *(part for part in where[1:] if not _is_type_label(part))])
    if fault["type"] == "extra_forbidden":
        return ConfigError(f"{layer.source}: unknown setting `{key}`", suggest(where[-1], _fields_at(where)))
    if fault["type"] == "literal_error":
        reason = f"available: {fault['ctx']['expected']}"
    value = fault["input"]
    shown = f" = {value!r}" if isinstance(value, str | int | float | bool | None) else ""
    source = "" if layer.source == "flag" else f"{layer.source}: "
    return ConfigError(f"{source}{key}{shown}: {reason[0].lower()}{reason[1:]}")


def _is_type_label(part: str) -> bool:
    """Pydantic adds the branch of a union to the location; users did not write it."""
    return part in ("int", "str", "float") or part.startswith(("literal[", "function-", "constrained-"))


def _fields_at(where: list[str]) -> Iterable[str]:
    tables: Mapping[str, type[BaseModel]] = {"tiers": Tier, "owners": Owner}
    model = tables.get(where[0], JobConfig)
    return model.model_fields
