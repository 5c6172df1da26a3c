"""Commands that are imported when they are called, so that `--help` shows all of them and imports none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Command:
    """A command by name: where it is (`module:function`, or `module:app` of a group), its line in the list of commands,
    and the part of the list that it stands in."""

    name: str
    place: str
    help: str
    panel: str

    def load(self) -> Any:
        """The command itself, as typer makes it."""
        module, _, attribute = self.place.partition(":")
        found: Any = getattr(import_module(module), attribute)
        holder = typer.Typer()
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=self.name)
        else:
            holder.command(self.name)(found)
            holder.callback()(_together)
        made: Any = typer.main.get_command(holder)
        return made.commands[self.name]


class ListedCommand(TyperCommand):
    """A command in a list, which is not imported yet."""

    def __init__(self, command: Command) -> None:
        super().__init__(command.name, help=command.help, rich_help_panel=command.panel)
        self.load = command.load


class LazyGroup(TyperGroup):
    """A group that imports the command that is called, and no other."""

    listed: Sequence[Command] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in self.listed:
            self.add_command(ListedCommand(command))

    @classmethod
    def of(cls, commands: Sequence[Command]) -> type[LazyGroup]:
        """The group of these commands."""
        return type("LazyGroupOfCommands", (cls,), {"listed": tuple(commands)})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that `args` begins with, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, ListedCommand) else command, rest


def commands_below(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """`command` and each command below it, imported, with what a user types for it. Hidden ones are left out."""
    if isinstance(command, ListedCommand):
        command = command.load()
    if not command.hidden:
        yield path, command
        for name, below in command.commands.items() if isinstance(command, TyperGroup) else ():
            yield from commands_below(below, f"{path} {name}")


def _together() -> None:
    """Makes typer build a group, also of one command."""
