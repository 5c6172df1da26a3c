"""What users add without a change of the package: named as `module:NAME`, or installed as an entry point.

| group of entry points | what it names |
| --- | --- |
| `cryptosentinel.roles` | a `SubAgent`, by the role's key |
| `cryptosentinel.strategies` | a class or a function that makes a strategy |

A `module:NAME` runs code, so it comes from the user's own configuration or command line only, never from a team's
folder or a stored run of somebody else (`backend/config/artefacts.py`). An entry point was installed by the user.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from backend.config.schema import Config
from cryptosentinel.agents.registry import ROLES, register
from cryptosentinel.agents.role import SubAgent
from simulator.errors import UserError

_ROLES = "cryptosentinel.roles"


def load_plugins(config: Config) -> None:
    """Make the user's roles known: those of `plugins.roles`, and those that `team.roles` names and that are installed.
    Raises `UserError` for what is none or cannot be imported."""
    for text in config.plugins.roles:
        register(_role(imported_attribute(text, "role", "my_module:ROLE")[1], text))
    for key in config.team.roles:
        point = installed(_ROLES, key) if key not in ROLES else None
        if point is not None:
            register(_role(loaded(point), point.value))


def _role(found: Any, text: str) -> SubAgent:
    if not isinstance(found, SubAgent):
        raise UserError(f"{text} is a {type(found).__name__} and no role: give a cryptosentinel.SubAgent")
    return found


def installed(group: str, name: str) -> EntryPoint | None:
    """The entry point of this name that an installed package has; None where there is none."""
    return next(iter(entry_points(group=group, name=name)), None)


def loaded(point: EntryPoint) -> Any:
    """What an entry point names. Raises `UserError` where it cannot be imported."""
    try:
        return point.load()
    except Exception as error:  # whatever importing an installed plug-in raises
        raise UserError(
            f"the installed plug-in '{point.name}' ({point.value}) cannot be imported: {describe_failure(error)}"
        ) from error


def imported_attribute(text: str, what: str, example: str) -> tuple[ModuleType, Any]:
    """The user's module that `text` (`module:attribute`) names, and its attribute, None where it has none.

    The module is looked for in the current folder first. `what` and `example` are for the message of the `UserError`.
    """
    module_name, _, attribute = text.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(f"'{text}' is no {what}: write {example.replace('my_module', 'module')}, like {example}")
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
            f"module '{module_name}' cannot be imported: {describe_failure(error)}; mend it first"
        ) from error
    return module, getattr(module, attribute, None)


def describe_failure(error: Exception) -> str:
    """What a user's own code raised, with the file and the line."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({os.path.basename(frame.filename)}, line {frame.lineno})"
