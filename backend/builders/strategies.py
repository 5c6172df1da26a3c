"""Strategies by name, or from the user's own module, for `backtest` and `check`."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, cast

from backend import TOP_PACKAGES
from backend.config.base import suggestion
from backend.config.plugins import (
    STRATEGY,
    as_module,
    describe_failure,
    imported_attribute,
    installed,
    loaded,
    remember,
)
from simulator import strategies
from simulator.backtest.run import Strategy
from simulator.errors import UserError
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import OrderRequest
from simulator.market.market import MarketView

Make = Callable[[], Strategy]


@dataclass(frozen=True)
class NamedStrategy:
    """A strategy to test: `make` returns a new one for each run.

    `load` is there for a user's own: it imports the user's code again, so that its strategies share no state of a
    module with any other run. `code` is the class or function that a script or notebook gave.
    """

    name: str
    make: Make
    load: Callable[[], Make] | None = None
    code: Callable[..., Any] | None = None


@dataclass
class FunctionStrategy:
    """A function `decide(view)` or `decide(view, account)` as a strategy."""

    function: Callable[..., Sequence[OrderRequest]]
    takes_account: bool = field(init=False)

    def __post_init__(self) -> None:
        self.takes_account = len(_positional(self.function)) > 1

    def decide(self, view: MarketView, account: AccountView) -> Sequence[OrderRequest]:
        """What the function decides."""
        return self.function(view, account) if self.takes_account else self.function(view)


def named_strategies() -> dict[str, type[Strategy]]:
    """The strategies of the simulator that need no arguments, by their names."""
    found: dict[str, type[Strategy]] = {}
    for one in vars(strategies).values():
        name = getattr(one, "name", None)
        if isinstance(one, type) and isinstance(name, str) and callable(_decide_of(one)) and not _required(one):
            found[name] = one
    return dict(sorted(found.items()))


def named_strategy(text: str) -> NamedStrategy:
    """The strategy `text`: the name of one, of the simulator or installed as a plug-in, or `module:attribute` (also
    `file.py:attribute`), and behind another colon arguments for it, as `ema_cross:fast=10,slow=50`.

    The module is looked for in the current folder first. The attribute is a class or a function, and is called with
    these arguments alone. Raises `UserError` for anything that makes no strategy.
    """
    known = named_strategies()
    text = as_module(text)
    name, _, arguments = text.partition(":")
    if arguments and (name in known or ("=" in arguments and installed(STRATEGY.group, name))):
        return with_arguments(named_strategy(name), arguments)
    if text.count(":") == 2:
        place, _, arguments = text.rpartition(":")
        return with_arguments(named_strategy(place), arguments)
    if ":" not in text:
        if text in known:
            return NamedStrategy(text, known[text])
        point = installed(STRATEGY.group, text)
        if point is not None:
            return _installed_strategy(text, point)
        raise UserError(
            f"no strategy '{text}'{suggestion(text, list(known))}; there are {', '.join(known)}, or give your own "
            "as module:Class, like my_module:MyStrategy"
        )
    module = text.partition(":")[0]
    return NamedStrategy(
        text, _maker_of(text, _attribute(text)), lambda: _loaded_anew(text, module, lambda: _attribute(text))
    )


def given_strategy(given: object) -> NamedStrategy:
    """The strategy that a script or notebook has: a class with a method `decide(view, account)`, an object of one, or a
    function `decide(view)` or `decide(view, account)`. Its name is that of the class or function. Each run gets a new
    object, or a copy of the one that was given.

    Raises `UserError` for anything else, a class that needs arguments, and a name that a shipped strategy has.
    """
    code = given if isinstance(given, type) or not callable(_decide_of(given)) else type(given)
    name = getattr(code, "__name__", type(given).__name__)
    if name in named_strategies():
        raise UserError(f"{name} is the name of a shipped strategy: give yours another one")
    if isinstance(given, type):
        if not callable(_decide_of(given)):
            raise UserError(f"the class {name} has no method decide(view, account); add it")
        make: Make = _maker_of(name, given)
    elif callable(_decide_of(given)):
        make = functools.partial(copy.deepcopy, cast(Strategy, given))
    elif inspect.isroutine(given) and 1 <= len(_positional(given)) <= 2:
        make = cast(Make, functools.partial(FunctionStrategy, given))
    else:
        raise UserError(
            f"{given!r:.80} is not a strategy: give a name, a class with a method decide(view, account), an object of "
            "one, or a function decide(view)"
        )
    return NamedStrategy(name, make, lambda: make, code if callable(code) else None)


def _positional(function: Callable[..., Any]) -> list[str]:
    """The arguments that a function takes by their places."""
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    return [one.name for one in inspect.signature(function).parameters.values() if one.kind in plain]


def _installed_strategy(text: str, point: EntryPoint) -> NamedStrategy:
    """The strategy that an entry point names. Raises `UserError` for one that makes none."""

    def attribute() -> Callable[..., Any]:
        made: Callable[..., Any] = loaded(point, STRATEGY)
        if not callable(made):
            raise UserError(
                f"the installed plug-in '{text}' ({point.value}) is a {type(made).__name__} and makes no strategy: its "
                "entry point must name a class or a function"
            )
        return made

    return NamedStrategy(text, _maker_of(text, attribute()), lambda: _loaded_anew(text, point.module, attribute))


def made_ready(strategy: NamedStrategy) -> tuple[NamedStrategy, int]:
    """The strategy with its first instance made already, and how many bars must lie before its first decision: its
    attribute `warmup`, 0 without one. Raises `UserError` where it fails or that is not a number of bars."""
    try:
        first = strategy.make()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{strategy.name} failed: {describe_failure(error)}; fix it first") from error
    bars = getattr(first, "warmup", 0)
    if isinstance(bars, bool) or not isinstance(bars, int) or bars < 0:
        raise UserError(f"{strategy.name}: its warmup is {bars!r}; give a whole number of bars, from 0 up")
    waiting = [first]  # a module may count its instances, so none is made for this alone
    return replace(strategy, make=lambda: waiting.pop() if waiting else strategy.make()), bars


def with_arguments(strategy: NamedStrategy, text: str) -> NamedStrategy:
    """A strategy called with arguments, as `fast=10,slow=50`. Raises `UserError` for an argument that it does not take,
    a value of another type, and values that it refuses."""
    given: dict[str, float | int] = {}
    taken = arguments_of_strategy(strategy)
    for part in text.split(","):
        key, equals, value = (one.strip() for one in part.partition("="))
        if not equals or key not in taken:
            raise UserError(
                f"{strategy.name}: '{part.strip()}' is not an argument of it{suggestion(key, list(taken))}; write "
                f"{', '.join(f'{name}=NUMBER' for name in taken) or 'none: it takes no number'}"
            )
        try:
            given[key] = int(value) if isinstance(taken[key], int) else float(value)
        except ValueError:
            kind = "a whole number" if isinstance(taken[key], int) else "a number"
            raise UserError(f"{strategy.name}: {key} = '{value}' is not {kind}") from None
    return _called_with(strategy, f"{strategy.name}:{text}", given)


def arguments_of_strategy(strategy: NamedStrategy) -> dict[str, float | int]:
    """The arguments of a strategy that are numbers, with their defaults."""
    parameters = inspect.signature(strategy.make).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        one.name: one.default
        for one in parameters
        if one.kind in plain and isinstance(one.default, int | float) and not isinstance(one.default, bool)
    }


def _called_with(strategy: NamedStrategy, name: str, given: dict[str, float | int]) -> NamedStrategy:
    def bound(make: Make) -> Make:
        return functools.partial(make, **given)

    load = strategy.load
    called = NamedStrategy(name, bound(strategy.make), None if load is None else lambda: bound(load()))
    called.make()  # values that it refuses are refused now
    return called


def _maker_of(text: str, made: Callable[..., Any]) -> Make:
    required = _required(made)
    if required:
        history = (
            " No strategy is handed the market: what is learned from the past is learned in a method fit(self, view), "
            "which is called once before the first decision."
            if "market" in required
            else ""
        )
        raise UserError(
            f"{text} needs the arguments {', '.join(required)}, which nothing fills.{history} Give each argument a "
            "default, or name a function without arguments that makes the strategy"
        )

    @functools.wraps(made, updated=())
    def make(**given: float) -> Strategy:
        strategy: Strategy = made(**given)
        if not callable(_decide_of(strategy)):
            raise UserError(f"{text} makes a {type(strategy).__name__} without a method decide(view, account); add it")
        return strategy

    return make


def _loaded_anew(text: str, module_name: str, attribute: Callable[[], Callable[..., Any]]) -> Make:
    """The strategy `text` from modules that are imported again: `module_name`, where `attribute` finds it, and those
    beside it. The modules that were there come back afterwards."""
    kept = sys.modules[module_name]
    folder = os.path.dirname(os.path.abspath(getattr(kept, "__file__", None) or "x")) + os.sep
    own = {name: module for name, module in sys.modules.items() if module is kept or _lies_in(module, folder)}
    for name in own:
        del sys.modules[name]
    try:
        return _maker_of(text, attribute())
    finally:
        sys.modules.update(own)


def _lies_in(module: ModuleType, folder: str) -> bool:
    """Whether a module is the user's: its file lies beside or below that of the strategy."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or module.__name__.partition(".")[0] in (*TOP_PACKAGES, "__main__"):
        return False
    return file.startswith(folder) and file.endswith(".py") and "site-packages" not in file


def _attribute(text: str) -> Callable[..., Any]:
    """The class or function that `module:attribute` names."""
    module, made = imported_attribute(text, STRATEGY.word, STRATEGY.example)
    module_name, _, attribute = text.partition(":")
    if not callable(made):
        known = [name for name, one in vars(module).items() if isinstance(one, type) and callable(_decide_of(one))]
        raise UserError(
            f"module '{module_name}' has no class or function '{attribute}'; its classes with a method decide are "
            f"{', '.join(known) or 'none'}"
        )
    remember(STRATEGY, text)
    return made


def _decide_of(one: Any) -> Any:
    return getattr(one, "decide", None)


def _required(made: Callable[..., Any]) -> list[str]:
    """The arguments that `made` cannot be called without."""
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY)
    parameters = inspect.signature(made).parameters.values()
    return [one.name for one in parameters if one.kind in plain and one.default is inspect.Parameter.empty]
