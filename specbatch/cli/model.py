"""``specbatch model``: what there is, fetching it, describing it, writing it for other tools."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specbatch.cli.spelling import SpellingGroup
from specbatch.models.catalog import CATALOG, DEFAULT_MODEL
from specbatch.models.config import ModelConfig
from specbatch.models.files import ModelFiles
from specbatch.models.pull import is_installed
from specbatch.models.resolve import refresh_model, resolve_model

SCHEMA_VERSION = 1

app = typer.Typer(
    cls=SpellingGroup,
    no_args_is_help=True,
    add_completion=False,
    help="List, fetch, describe and export models.",
)


class ExportFormat(StrEnum):
    """What ``specbatch model export`` can write."""

    HF = "hf"


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Alias, Hugging Face id, directory or .gguf file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models that have a short name.

    Example: specbatch model list
    """
    if as_json:
        models = [
            {
                "alias": entry.alias,
                "title": entry.title,
                "license": entry.license,
                "download_bytes": entry.download_bytes,
                "on_disk": is_installed(entry),
            }
            for entry in CATALOG.values()
        ]
        typer.echo(json.dumps({"schema_version": SCHEMA_VERSION, "models": models}))
        return
    rows = [("ALIAS", "MODEL", "LICENSE", "DOWNLOAD", "ON DISK")]
    rows += [
        (
            entry.alias,
            entry.title,
            entry.license,
            f"{entry.download_bytes / 1e6:.0f} MB",
            "yes" if is_installed(entry) else "no",
        )
        for entry in CATALOG.values()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command("pull")
def pull_model(
    model: Model = DEFAULT_MODEL,
    force: Annotated[
        bool, typer.Option("--force", help="Fetch again what is there: it may be damaged.")
    ] = False,
) -> None:
    """Fetch a model, or the newest revision of a Hugging Face one, and print its directory.

    Example: specbatch model pull smollm2-135m
    """
    typer.echo(refresh_model(model, force=force, report=_report).directory)


@app.command("info")
def show_model(model: Model = DEFAULT_MODEL, as_json: AsJson = False) -> None:
    """Describe a model on this machine; nothing is fetched.

    Example: specbatch model info smollm2-135m
    """
    files = resolve_model(model, allow_download=False, report=_report)
    facts = _facts(files, ModelConfig.from_directory(files.directory))
    if as_json:
        typer.echo(json.dumps({"schema_version": SCHEMA_VERSION, **facts}))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {_shown(value)}")


@app.command("export")
def export_model(
    model: Model,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to write; must not exist.")],
    export_format: Annotated[ExportFormat, typer.Option("--format", help="What to write.")] = ExportFormat.HF,
) -> None:
    """Write a model for other tools: hf is a float32 directory that transformers loads.

    Example: specbatch model export smollm2-135m ./smollm2 --format hf
    """
    # Brings in torch, which the other commands do without.
    from specbatch.models.export import export_hf  # noqa: PLC0415

    files = resolve_model(model, report=_report)
    writers = {ExportFormat.HF: export_hf}
    writers[export_format](files, ModelConfig.from_directory(files.directory), target)
    typer.echo(target)


def _facts(files: ModelFiles, config: ModelConfig) -> dict[str, str | int | bool]:
    from specbatch.text.chat import ChatTemplate  # noqa: PLC0415 - jinja2, which --help does without

    return {
        "name": files.name,
        "architecture": config.architecture,
        "parameters": config.num_parameters,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "vocabulary": config.vocab_size,
        "max_context": config.max_context,
        "chat_template": ChatTemplate.load(files.directory) is not None,
        "format": files.format,
        "quantization": files.quantization,
        "bytes_on_disk": files.num_bytes,
        "digest": files.digest,
        "directory": str(files.directory),
    }


def _shown(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else value


def _report(line: str) -> None:
    typer.echo(line, err=True)
