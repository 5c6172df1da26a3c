"""The market that a configuration names, and how its history is divided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from backend.config import CostsConfig, GuardConfig, MarketConfig
from cryptosentinel.guard import GuardLimits
from simulator.catalog import Catalog
from simulator.costs import Costs
from simulator.errors import DataError
from simulator.market import Market, parse_time
from simulator.synthetic import SyntheticConfig, generate


@dataclass(frozen=True)
class Split:
    """Bars of the three parts of a history, each [start, stop), one after the other: the past never learns from the
    future."""

    train: tuple[int, int]
    validation: tuple[int, int]
    held_out: tuple[int, int]


def load_market(config: MarketConfig, costs: CostsConfig) -> Market:
    """Recorded bars from `config.data`, or a synthetic market where it is empty. Raises `DataError`."""
    if config.data:
        return Catalog(config.data).load(
            config.symbols or None,
            config.timeframe,
            start=parse_time(config.start) if config.start else None,
            end=parse_time(config.end) if config.end else None,
            resample=config.resample or None,
            half_spread_bps=costs.half_spread_bps,
            funding_dir=Path(config.funding_dir) if config.funding_dir else None,
            news_path=Path(config.news) if config.news else None,
        )
    symbols = config.symbols or tuple(f"{letter * 3}USDT" for letter in "ABCDEFGHIJKLMNOPQRST"[: config.coins])
    return generate(
        SyntheticConfig(
            bars=config.bars,
            seed=config.seed,
            symbols=symbols,
            timeframe=config.timeframe,
            edge=config.edge,
            drift_ratio=config.drift_ratio,
            news_accuracy=config.news_accuracy,
        )
    )


def split(market: Market, config: MarketConfig, horizon: int) -> Split:
    """Divide the bars by the configured shares, with a horizon's distance between the parts."""
    first = int(len(market) * config.train_share)
    second = int(len(market) * (config.train_share + config.validation_share))
    parts = Split((0, first - horizon), (first, second - horizon), (second, len(market)))
    if min(stop - start for start, stop in (parts.train, parts.validation, parts.held_out)) < 1:
        raise DataError(
            f"{market.source}: {len(market)} bars are too few to divide into training, validation and held-out parts "
            f"with a horizon of {horizon} bars: use more bars or a shorter horizon"
        )
    return parts


def costs_of(config: CostsConfig) -> Costs:
    """The exchange's costs as the configuration has them."""
    return Costs(taker_fee=config.taker_fee)


def limits_of(config: GuardConfig) -> GuardLimits:
    """The guard's limits as the configuration has them."""
    return GuardLimits(**config.model_dump())
