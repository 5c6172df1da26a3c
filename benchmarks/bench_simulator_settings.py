"""What the settings of costs and limits do: the scripted team on generated markets, with a setting and without it.

Each row is the mean over the same windows. The value is the return (in percent) or, for the limits, what they bound;
`against` is the same with the setting off. A row is met if the setting does what its description says: a cost lessens
the return, a limit lessens what it bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import numpy as np

from backend.builders.loaded_team import scripted_team
from backend.builders.market import limits_of
from backend.config.market import CostsConfig
from backend.config.schema import Config, GuardConfig
from backend.reporting.result_stats import busiest_day
from benchmarks.run import Result
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.scheduler import run_all
from simulator.backtest.run import BacktestResult, BacktestRun, Window
from simulator.exchange.rules import SymbolRules
from simulator.exchange.venue import Venue
from simulator.market.instruments import MarketKind
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

SEEDS = range(4)
COINS = ("AAAUSDT", "BBBUSDT")
WINDOW = Window(150, 400, 6)
SLIDE = 0.97  # factor of the prices from bar to bar, where loss limits are looked at


@dataclass(frozen=True)
class Scene:
    """A setting, what it is compared with, and where.

    `options` are what the setting and its absence share; `measure` is what is shown of a result.
    """

    name: str
    on: dict[str, Any]
    off: dict[str, Any]
    unit: str
    measure: Callable[[BacktestResult], float]
    kind: MarketKind = "perpetual"
    change: Callable[[Market], Market] | None = None
    options: tuple[tuple[str, Any], ...] = ()


def run() -> list[Result]:
    """The rows `simulator.settings.*`."""
    rows = []
    for scene in SCENES:
        on, off = (mean(_played(scene, chosen, seed) for seed in SEEDS) for chosen in (scene.on, scene.off))
        rows.append(
            Result(
                name=f"simulator.settings.{scene.name}", value=on, unit=scene.unit, against=f"{off:.4g} without",
                ratio=None, target="less", met=on < off,
            )
        )  # fmt: skip
    return rows


def _played(scene: Scene, chosen: dict[str, Any], seed: int) -> float:
    """What the scripted team's run on the market of `seed` comes to."""
    options = {**dict(scene.options), **chosen}
    market = generate(SyntheticConfig(bars=WINDOW.stop + 1, seed=seed, symbols=COINS))
    if scene.kind == "spot" or "missing_funding_rate" in options:
        market = replace(market, funding={})
    if scene.change is not None:
        market = scene.change(market)
    thinking = float(options.pop("thinking_time", 0.0))
    guard = {name: options.pop(name) for name in list(options) if name in GuardConfig.model_fields}
    config = CostsConfig(**options)
    venue = Venue(rules=dict.fromkeys(COINS, SymbolRules(kind=scene.kind)))
    game = BacktestRun(market, WINDOW, config.cash, config.costs(), config.max_leverage, venue=venue)
    loaded = scripted_team(Config().team)
    task = play(loaded.team, game, limits_of(GuardConfig(**guard)), seed, thinking_time=thinking)
    [episode] = run_all([task], loaded.engine)
    if not isinstance(episode, EpisodeResult):
        raise RuntimeError(f"simulator.settings.{scene.name}: {episode}")
    return scene.measure(episode.result)


def _return(result: BacktestResult) -> float:
    return 100.0 * (float(result.equity[-1] / result.equity[0]) - 1.0)


def _drawdown(result: BacktestResult) -> float:
    equity = result.equity
    return 100.0 * float(np.max(1.0 - equity / np.maximum.accumulate(equity)))


def _busiest(result: BacktestResult) -> float:
    return busiest_day(result.times.tolist(), result.equity.tolist(), result.fills)


def _exposed(result: BacktestResult) -> float:
    return 100.0 * float(np.mean(np.abs(result.exposure).sum(axis=1) > 1e-6))


def _sliding(market: Market) -> Market:
    """From the window's middle on each coin falls by 3 % a bar."""
    middle = (WINDOW.start + WINDOW.stop) // 2
    factor = SLIDE ** np.maximum(0, np.arange(len(market)) - middle)[:, None]
    arrays = {name: getattr(market, name) * factor for name in ("open", "high", "low", "close")}
    return replace(market, **arrays, truth=None)


SCENES = (
    Scene("thinking_time", {"thinking_time": 600.0}, {}, "% return, 10 minutes a decision", _return),
    Scene("borrow_rate", {"borrow_rate": 0.3}, {"borrow_rate": 0.0}, "% return, 30 % a year on spot", _return, "spot"),
    Scene("max_daily_turnover", {"max_daily_turnover": 0.5}, {}, "x equity traded in the busiest day", _busiest),
    Scene(
        "on_loss", {"on_loss": "flatten"}, {"on_loss": "freeze"}, "% drawdown in a slide of 3 % a bar", _drawdown,
        change=_sliding, options=(("daily_loss", 0.03), ("max_drawdown", 0.1)),
    ),
    Scene(
        "daily_loss_pause_hours", {"daily_loss_pause_hours": 96.0}, {"daily_loss_pause_hours": 4.0},
        "% of the bars with a position", _exposed, options=(("daily_loss", 0.02),),
    ),
    Scene(
        "drawdown_pause_hours", {"drawdown_pause_hours": 240.0}, {"drawdown_pause_hours": 4.0},
        "% of the bars with a position", _exposed, options=(("max_drawdown", 0.05),),
    ),
)  # fmt: skip
