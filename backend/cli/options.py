"""Options that several commands share, each declared once.

A command takes a group of options as one argument: with `@grouped`, a parameter `request: BacktestRequest` becomes the
options of that request's fields, and the command gets the request.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from backend.cli.console import RunsOption, StoreOption, console
from backend.runs.requests import ADVANCED, CHECKS, COSTS, DATA, RUNS, STORE, WHO, MarketRequest, RunRequest, options_of

_PANELS = ("", DATA, WHO, COSTS, CHECKS, "Ray", ADVANCED)  # in the order of the help

ConfigOption = Annotated[str, typer.Option("--config", "-c", help="A preset (demo, quick, recorded) or a TOML file.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Override a setting: section.key=value. Repeatable.")
]
SymbolsOption = Annotated[
    str, typer.Option("--symbols", help="Symbols to use: BTCUSDT,ETHUSDT. Default: as configured, or all there are.")
]


@dataclass(frozen=True)
class RecordOptions:
    """Where a run is recorded, and where its folder is."""

    store: StoreOption = STORE
    runs: RunsOption = RUNS


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its dataclass parameters as options of their own. Files of other programs that a
    request names as data are imported, which is printed."""
    groups: dict[str, Any] = {}
    names: dict[str, list[str]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            own = list(_parameters(parameter.annotation))
            names[parameter.name] = [one.name for one in own]
            parameters += own
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            values = {one: given.pop(one) for one in names[name]}
            given[name] = _request(group, values) if issubclass(group, RunRequest) else group(**values)
        command(**given)

    # Typer reads a command's options from here, and help shows them in this order.
    parameters.sort(key=lambda one: _PANELS.index(getattr(one.annotation.__metadata__[0], "rich_help_panel", "") or ""))
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _request(kind: type[RunRequest], values: dict[str, Any]) -> RunRequest:
    request = kind.of(**values)
    if isinstance(request, MarketRequest):
        request, done = request.imported()
        if done:
            console.print(done, soft_wrap=True)
    return request


def _parameters(group: Any) -> Iterator[inspect.Parameter]:
    """The options of a request, or of another dataclass whose fields are annotated with theirs."""
    if not issubclass(group, RunRequest):
        hints = get_type_hints(group, include_extras=True)
        for one in fields(group):
            kind = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(one.name, kind, default=one.default, annotation=hints[one.name])
        return
    for name, default, declared in options_of(group):
        shown: dict[str, Any] = {
            "help": declared.help,
            "rich_help_panel": declared.panel or None,
            "show_default": False,
        }
        listed = default is None or isinstance(default, tuple)
        taken: Any = list[str] | None if listed else type(default) if isinstance(default, bool | int) else str
        flag = default is True
        spelled = [f"{one}/--no-{one[2:]}" if flag else one for one in declared.names]
        if not isinstance(default, bool):
            shown["metavar"] = (
                "LIST" if listed and not declared.repeated else "N" if isinstance(default, int) else "TEXT"
            )
        if isinstance(default, int) and not isinstance(default, bool):
            shown["min"] = 0
        info = typer.Argument(**shown) if declared.argument else typer.Option(*spelled, **shown)
        value = inspect.Parameter.empty if declared.argument else None if listed else default
        value = str(value) if isinstance(value, Path) else value
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=Annotated[taken, info])
