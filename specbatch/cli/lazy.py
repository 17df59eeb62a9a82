"""A group of commands that imports a command's module only when it is called."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import typer
import typer.core
import typer.main

from specbatch.cli.spelling import SpellingGroup
from specbatch.startup import loading


class LazyCommand(NamedTuple):
    """Where a command is, and what the list of commands says about it.

    Attributes:
        module: Holds a ``typer.Typer`` called ``app``.
        help: First line of its help.
    """

    module: str
    help: str


def lazy_group(commands: dict[str, LazyCommand]) -> type[typer.core.TyperGroup]:
    """A group class for ``typer.Typer(cls=...)`` with these commands, in this order.

    ``--help`` sees stand-ins that know their name and first line, so nothing is imported; calls and
    completion go through ``resolve_command`` and get the real command.
    """

    class LazyGroup(SpellingGroup):
        """The group."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            for name, command in commands.items():
                self.commands[name] = typer.core.TyperCommand(name, help=command.help)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """The real command for the first argument."""
            name, stand_in, rest = super().resolve_command(ctx, args)
            if stand_in is None or name is None:
                return name, stand_in, rest
            with loading():
                module = importlib.import_module(commands[name].module)
            command = typer.main.get_command(module.app)
            command.name = name
            return name, command, rest

    return LazyGroup
