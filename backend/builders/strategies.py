"""Strategies by name, or from the user's own module, for `backtest` and `check`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.config.base import suggestion
from simulator import strategies
from simulator.backtest.run import Strategy
from simulator.errors import UserError
from simulator.market.market import Market

Make = Callable[[Market], Strategy]


@dataclass(frozen=True)
class NamedStrategy:
    """A strategy to test: `make` returns a new one for each run."""

    name: str
    make: Make


def named_strategies() -> dict[str, type[Strategy]]:
    """The strategies of the simulator that need no arguments, by their names."""
    found: dict[str, type[Strategy]] = {}
    for one in vars(strategies).values():
        name = getattr(one, "name", None)
        if isinstance(one, type) and isinstance(name, str) and callable(_decide_of(one)) and not _required(one):
            found[name] = one
    return dict(sorted(found.items()))


def strategy_maker(text: str) -> Make:
    """A function that makes a new strategy for a market. `text` is a strategy's name, or `module:attribute`; the module
    is looked for in the current folder first.

    The attribute is a class or a function. It is called without arguments, or with the market of the run if it requires
    an argument `market`. Raises `UserError` for anything that makes no strategy.
    """
    if ":" not in text:
        known = named_strategies()
        if text not in known:
            raise UserError(
                f"no strategy '{text}'{suggestion(text, list(known))}; there are {', '.join(known)}, or give your own "
                "as module:Class, like my_module:MyStrategy"
            )
        return lambda market: known[text]()
    made = _attribute(text)
    required = _required(made)
    if required not in ([], ["market"]):
        raise UserError(
            f"{text} needs the arguments {', '.join(required)}; give a class or function that needs none, or only "
            "`market`"
        )

    def make(market: Market) -> Strategy:
        strategy: Strategy = made(market=market) if required else made()
        if not callable(_decide_of(strategy)):
            raise UserError(f"{text} makes a {type(strategy).__name__} without a method decide(view, account); add it")
        return strategy

    return make


def describe_failure(error: Exception) -> str:
    """What a user's own code raised, with the file and the line."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({os.path.basename(frame.filename)}, line {frame.lineno})"


def _attribute(text: str) -> Callable[..., Any]:
    """The class or function that `module:attribute` names."""
    module_name, _, attribute = text.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(f"'{text}' is no strategy: write module:Class, like my_module:MyStrategy")
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
    made = getattr(module, attribute, None)
    if not callable(made):
        known = [name for name, one in vars(module).items() if isinstance(one, type) and callable(_decide_of(one))]
        raise UserError(
            f"module '{module_name}' has no class or function '{attribute}'; its classes with a method decide are "
            f"{', '.join(known) or 'none'}"
        )
    return made


def _decide_of(one: Any) -> Any:
    return getattr(one, "decide", None)


def _required(made: Callable[..., Any]) -> list[str]:
    """The arguments that `made` cannot be called without."""
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY)
    parameters = inspect.signature(made).parameters.values()
    return [one.name for one in parameters if one.kind in plain and one.default is inspect.Parameter.empty]
