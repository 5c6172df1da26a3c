"""The team: its roles, what they see (tools), say (protocol) and think with (LLM engines), and the hard guard.

It is also the program's front door: `import cryptosentinel as cs` has the public names of all layers, such as
`cs.backtest` and `cs.Market`. They are looked up when they are first used, so that nothing heavy is imported before;
the layers themselves never use them. `__init__.pyi` has the same names for type checkers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Where each public name is. Strings, because most of these layers lie above this one.
_PLACES = {
    "backend.api": ("backtest", "compare", "demo", "evaluate", "optimize", "sft", "train"),
    "backend.decision_env": ("DecisionEnv", "TrlDecisionEnv", "DecisionTurn"),
    "backend.reporting.comparison": ("ComparisonOutcome",),
    "backend.config.load": ("load_config",),
    "backend.config.schema": ("Config",),
    "backend.runs.optimize": ("OptimizeOutcome",),
    "backend.runs.outcomes": ("BacktestOutcome", "EvaluationOutcome", "SftOutcome", "TrainOutcome"),
    "backend.training.algorithm.recipes": ("Recipe",),
    "cryptosentinel.agents.manager": ("AskAboutPosition", "AskAnalyst"),
    "cryptosentinel.agents.role": ("SubAgent", "Tool"),
    "cryptosentinel.llm.chat_format": ("ChatFormat",),
    "cryptosentinel.llm.engine": ("Completion", "Engine", "Request"),
    "cryptosentinel.protocol.tool_calls": ("Arguments", "NoArguments"),
    "cryptosentinel.tools.context": ("ToolContext",),
    "simulator.data.archive": ("write_market",),
    "simulator.backtest.run": ("Strategy", "Window", "orders_for_target"),
    "simulator.env.trading_env": ("EnvConfig", "TradingEnv", "TradingVectorEnv"),
    "simulator.errors": ("UserError",),
    "simulator.exchange.exchange_records": ("AccountView",),
    "simulator.exchange.orders": ("Cancel", "Order", "OrderRequest", "Target"),
    "simulator.live.exchange_feed": ("ExchangeFeed",),
    "simulator.live.listener": ("FeedSettings",),
    "simulator.market.market": ("Bars", "Market", "MarketView"),
}
_MODULES = {"mgrpo": "backend.training.algorithm.mgrpo"}
_PUBLIC = {name: place for place, names in _PLACES.items() for name in names}
__all__ = sorted({**_PUBLIC, **_MODULES})  # noqa: PLE0605 - the names are those of the table


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used, or the version of the program."""
    if name == "__version__":
        from importlib.metadata import version  # it takes its time

        return version("cryptosentinel")
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _PUBLIC:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
