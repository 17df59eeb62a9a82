"""Flags made from the fields of a settings class: one place for name, default, type and help."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

Command = Callable[..., None]
Panels = Mapping[str, tuple[str, ...]]
"""Heading in ``--help`` → names of the fields below it, in order."""


def with_flags(settings: type[BaseModel], panels: Panels) -> Callable[[Command], Command]:
    """Give a command one option per field; values arrive as keyword arguments, ``None`` when not given.

    Values stay strings: the settings class parses them, with the same messages as for a job file.

    Args:
        settings: Where the fields are.
        panels: Which fields, under which headings.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        rest = inspect.Parameter.VAR_KEYWORD
        own = [item for item in signature.parameters.values() if item.kind is not rest]
        fields = settings.model_fields
        options = [_option(name, fields[name], panel) for panel, names in panels.items() for name in names]
        # Typer reads the signature; the command itself takes whatever comes.
        command.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return command

    return decorate


def _option(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    flag = "--" + name.replace("_", "-")
    kinds = _kinds(field.annotation)
    is_bool, many = bool in kinds, tuple in kinds
    declared = f"{flag}/--no-{flag[2:]}" if is_bool else flag
    option = typer.Option(
        declared,
        help=_sentence(field),
        metavar="" if is_bool else _metavar(field.annotation),
        rich_help_panel=panel,
        show_default=False,
    )
    base: Any = bool if is_bool else list[str] if many else str
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[base | None, option]
    )


def _kinds(annotation: object) -> set[object]:
    """The types that take part in an annotation, unions and ``Annotated`` opened."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return set().union(*(_kinds(item) for item in get_args(annotation)))
    return {annotation if origin is None else origin}


def _choices(annotation: object) -> tuple[str, ...]:
    origin = get_origin(annotation)
    if origin is Literal:
        return tuple(str(choice) for choice in get_args(annotation))
    return tuple(choice for item in get_args(annotation) for choice in _choices(item))


def _metavar(annotation: object) -> str:
    kinds = _kinds(annotation)
    return "N" if kinds & {int, float} and not kinds & {str, Literal} else "TEXT"


def _sentence(field: FieldInfo) -> str:
    """The description as a sentence, with the choices, and the default where there is one to tell."""
    text = (field.description or "").strip()
    choices = _choices(field.annotation)
    listed = f": {', '.join(choices)}" if len(choices) > 1 else ""
    default = field.default
    told = "" if default in (None, (), "") or default is False else f" (default: {_shown(default)})"
    return f"{text[:1].upper()}{text[1:]}{listed}{told}."


def _shown(default: object) -> str:
    return "on" if default is True else f"{default:g}" if isinstance(default, float) else str(default)
