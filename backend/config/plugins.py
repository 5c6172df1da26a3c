"""What users add without a change of the package: named as `module:NAME`, or installed as an entry point.

| kind | group of entry points | where it is named |
| --- | --- | --- |
| role | `cryptosentinel.roles` | `plugins.roles`; an installed one by its key in `team.roles` |
| strategy | `cryptosentinel.strategies` | wherever a team is named |
| tool | `cryptosentinel.tools` | `team.tools` |
| reward | `cryptosentinel.rewards` | `training.reward` |
| recipe | none | `training.recipe` |
| credit | none | `training.credit` |
| engine | none | `engine.kind` |
| source | none | `market.source` |

A name with a colon is looked up as a module, any other as an entry point of the group, where the kind has one. Both run
code, so each of these settings is the user's alone: nothing that a team's folder, an imported run or a recording names
is looked up here, but for the roles and strategies that the user has installed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, entry_points, packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from backend.config.base import suggestion
from simulator.errors import UserError

_REFUSED = "CRYPTOSENTINEL_REFUSE_OWN_MODULES"  # in the environment, so that processes that are started have it too
_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class PluginKind:
    """A kind of plug-in: its word, its group of entry points or "", an example, and in words what must be given."""

    word: str
    group: str
    example: str
    is_what: str


ROLE = PluginKind("role", "cryptosentinel.roles", "my_module:ROLE", "a cryptosentinel.SubAgent")
STRATEGY = PluginKind(
    "strategy", "cryptosentinel.strategies", "my_module:MyStrategy", "a class or a function that makes a strategy"
)
TOOL = PluginKind("tool", "cryptosentinel.tools", "my_module:TOOL", "a cryptosentinel.Tool")
REWARD = PluginKind("reward", "cryptosentinel.rewards", "my_module:reward", "a function (net_returns, volatility)")
ENGINE = PluginKind("engine", "", "my_module:engine", "a function (settings, codec)")
DATA_SOURCE = PluginKind("source", "", "my_module:load", "a function without arguments that gives a market or tables")
RECIPE = PluginKind("recipe", "", "my_module:MyRecipe", "a subclass of recipes.Recipe")
CREDIT = PluginKind("credit", "", "my_module:MyCredit", "a class with shares(value, players)")
PLUGIN_KINDS = (ROLE, STRATEGY, TOOL, REWARD, ENGINE, DATA_SOURCE, RECIPE, CREDIT)


@dataclass(frozen=True)
class Plugin:
    """A plug-in that was imported. `package` and `version` are empty where its module belongs to none; `digest` is the
    beginning of the SHA-256 of the file of its module."""

    kind: str
    name: str
    place: str
    package: str = ""
    version: str = ""
    digest: str = ""


_IMPORTED: dict[tuple[str, str], Plugin] = {}  # by kind and name: what this process has imported


def plugin(kind: PluginKind, name: str) -> Any:
    """What a user's `name` names: `module:NAME`, or the name of an entry point of this kind.

    Raises `UserError` where there is none or it cannot be imported.
    """
    if ":" in name:
        module, value = imported_attribute(name, kind.word, kind.example)
        if not hasattr(module, name.partition(":")[2]):
            raise UserError(f"module '{module.__name__}' has no {kind.word} '{name.partition(':')[2]}'")
        _remember(kind, name, name, module.__name__)
        return value
    if not kind.group:
        raise UserError(f"'{name}' is not a {kind.word}: write module:NAME for one of your own, like {kind.example}")
    point = installed(kind.group, name)
    if point is None:
        known = sorted(one.name for one in entry_points(group=kind.group))
        raise UserError(
            f"no {kind.word} '{name}'{suggestion(name, known)} is installed: {kind.group} has "
            f"{', '.join(known) or 'none'}; write module:NAME for one of your own, like {kind.example}"
        )
    return loaded(point, kind)


def function(kind: PluginKind, name: str) -> Callable[..., Any]:
    """As `plugin`, and it must be callable. What it raises when it is called is a `UserError` with its name."""
    value = plugin(kind, name)
    if not callable(value):
        raise UserError(f"{name} is a {type(value).__name__} and no {kind.word}: give {kind.is_what}")
    return guarded(f"the {kind.word} {name}", value)


def guarded(what: str, call: Callable[_P, _R]) -> Callable[_P, _R]:
    """`call`, whose own exceptions become one sentence that names it, the file and the line."""

    @functools.wraps(call)
    def guard(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return call(*arguments, **named)
        except UserError:
            raise
        except Exception as error:  # whatever a user's own code raises
            raise UserError(f"{what} failed: {describe_failure(error)}; fix it first") from error

    return guard


def installed(group: str, name: str) -> EntryPoint | None:
    """The entry point of this name that an installed package has; None where there is none. Raises `UserError` where
    two packages have one."""
    points = list({(point.value, _package(point)): point for point in entry_points(group=group, name=name)}.values())
    if len(points) > 1:
        both = " and ".join(f"{_package(point) or 'a package'} ({point.value})" for point in points)
        raise UserError(f"'{name}' in {group} is of several installed packages, {both}: uninstall all but one")
    return points[0] if points else None


def loaded(point: EntryPoint, kind: PluginKind) -> Any:
    """What an entry point names. Raises `UserError` where it cannot be imported."""
    try:
        value = point.load()
    except Exception as error:  # whatever importing an installed plug-in raises
        raise UserError(
            f"the installed plug-in '{point.name}' ({point.value}) cannot be imported: {describe_failure(error)}"
        ) from error
    _remember(kind, point.name, point.value, point.module, point)
    return value


def refuse_own_modules(refused: bool) -> None:
    """Whether from now on `module:NAME` is refused by this process and those that it starts."""
    os.environ[_REFUSED] = "1" if refused else ""


def own_modules_refused() -> bool:
    """Whether this process refuses to import `module:NAME`."""
    return bool(os.environ.get(_REFUSED))


def check_own_code(what: str) -> None:
    """Raise `UserError` where this process refuses the user's own code: `what` is a module or a program of it."""
    if own_modules_refused():
        raise UserError(
            f"{what} is not run: the page runs no code that a field names. Start it with `cryptosentinel ui "
            "--allow-plugins`, or give the command in a terminal"
        )


def imported_attribute(text: str, what: str, example: str) -> tuple[ModuleType, Any]:
    """The user's module that `text` (`module:attribute`) names, and its attribute, None where it has none.

    The module is looked for in the current folder first. `what` and `example` are for the message of the `UserError`.
    """
    module_name, _, attribute = text.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(f"'{text}' is no {what}: write {example.replace('my_module', 'module')}, like {example}")
    check_own_code(f"'{text}'")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever importing a user's module raises
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(f"no module '{module_name}' in {here}: run the command from the folder it is in") from None
        raise UserError(
            f"module '{module_name}' cannot be imported: {describe_failure(error)}; fix it first"
        ) from error
    return module, getattr(module, attribute, None)


def as_module(text: str) -> str:
    """`folder/file.py:NAME` as `folder.file:NAME`; any other text as it is."""
    file, colon, rest = text.partition(":")
    if not colon or not file.endswith(".py"):
        return text
    return f"{file.removeprefix('./').removesuffix('.py').replace('/', '.')}:{rest}"


def describe_failure(error: Exception) -> str:
    """What a user's own code raised, with the file and the line."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({os.path.basename(frame.filename)}, line {frame.lineno})"


def remember(kind: PluginKind, place: str) -> None:
    """Note that the user's module of `place` (`module:NAME`) was imported by other means, for the record of a run."""
    _remember(kind, place, place, place.partition(":")[0])


def records_of(names: Iterable[str]) -> list[dict[str, str]]:
    """What a run records of those of `names` that this process has imported as plug-ins: kind, name, place, package,
    version and digest."""
    asked = set(names)
    return [asdict(one) for (_, name), one in sorted(_IMPORTED.items()) if name in asked]


def of_role(text: str, setting: str) -> tuple[str, str]:
    """The role and the plug-in of an entry `ROLE=PLUGIN` of a setting. Raises `UserError`."""
    role, equals, name = (part.strip() for part in text.partition("="))
    if not (role.isidentifier() and equals and name):
        raise UserError(f"{setting}: '{text}' is none: write ROLE=module:NAME, like market_analyst=my_module:NAME")
    return role, name


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else ""


def _remember(kind: PluginKind, name: str, place: str, module_name: str, point: EntryPoint | None = None) -> None:
    package, number = "", ""
    if point is not None and point.dist is not None:
        package, number = point.dist.name, point.dist.version
    elif "site-packages" in (getattr(sys.modules.get(module_name), "__file__", None) or ""):  # reads all packages
        owners = packages_distributions().get(module_name.partition(".")[0], [])
        if owners:
            package, number = owners[0], version(owners[0])
    file = getattr(sys.modules.get(module_name), "__file__", None)
    digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file and Path(file).is_file() else ""
    _IMPORTED[kind.word, name] = Plugin(kind.word, name, place, package, number, digest)
