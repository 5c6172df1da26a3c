"""The recipe of a synthetic market."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from simulator.errors import DataError
from simulator.market.timeframes import DAY_MS, bar_start, interval_of
from simulator.synthetic.defaults import DAILY_VOLATILITY, DRIFT_RATIO, EDGE, KIND, NEWS_ACCURACY, TIMEFRAME, Knowledge
from simulator.synthetic.dynamics import Parameters


@dataclass(frozen=True)
class SyntheticConfig:
    """Recipe of a synthetic market. Same recipe, same bytes; a longer one begins with the shorter one.

    Raises `DataError` for values out of range.
    """

    bars: int
    seed: int
    symbols: tuple[str, ...] = ("AAAUSDT", "BBBUSDT", "CCCUSDT", "DDDUSDT")
    timeframe: str = TIMEFRAME
    edge: bool = EDGE
    start: int = 1_577_836_800_000  # open time of the first bar, ms; 2020-01-01
    start_price: float = 100.0
    kind: Knowledge = KIND  # "private": each role's tools show what no other's do (`simulator.synthetic.private`)
    steps: int = 8  # sub-steps of a bar, whose extremes are high and low

    regime_days: float = 15.0  # mean length of a bull or bear regime
    trend_weight: float = 0.7  # share of time in bull or bear, evenly; the rest is range
    market_share: float = 0.5  # share of the regime draws that hit all coins at once
    drift_ratio: float = DRIFT_RATIO  # |drift| a day in bull and bear, in daily volatilities

    daily_volatility: float = DAILY_VOLATILITY
    volatility_range: float = 0.2  # coins' volatilities spread evenly over 1 -+ this, times the above
    correlation: float = 0.5  # of the shocks of two coins
    tail_freedom: float = 5.0  # degrees of freedom of the Student t shocks
    scale_cap: float = 5.0  # cap of their random scale
    volatility_half_life_days: float = 6.0  # of a GARCH cluster
    volatility_reaction: float = 0.4  # of the variance to a squared shock, in units of sqrt(1 - persistence)
    storm_days: float = 6.0  # mean length of a market-wide storm
    storm_share: float = 0.25
    storm_variance: float = 2.0  # factor of the variance in a storm; the calm makes up for it

    funding_scale: float = 1e-4  # rate for a signal of one. Its mean is 0, so neither side is paid for standing still
    funding_memory: float = 0.9  # from one settlement to the next
    funding_noise: float = 1.0  # deviation around the regime's sign, in units of the scale

    news_days: float = 1.5  # mean time between two headlines about one coin
    news_neutral: float = 0.25  # share of headlines without a tone
    news_accuracy: float = NEWS_ACCURACY  # of the others in bull and bear: share whose tone agrees with the regime

    spread_base: float = 2e-4  # half spread, fraction of the price
    spread_memory: float = 0.9
    spread_noise: float = 0.25  # deviation of its log
    spike_share: float = 0.15  # share of bars in a spread spike
    spike_bars: tuple[int, int] = (2, 4)  # shortest, longest
    spike_height: tuple[float, float] = (12e-4, 30e-4)

    def __post_init__(self) -> None:
        interval = interval_of(self.timeframe)
        positive = ("bars", "steps", "start_price", "regime_days", "daily_volatility", "volatility_half_life_days",
                    "storm_days", "scale_cap", "news_days", "spread_base")  # fmt: skip
        shares = ("trend_weight", "market_share", "volatility_range", "correlation", "storm_share", "funding_memory",
                  "news_neutral", "news_accuracy", "spread_memory", "spike_share", "volatility_reaction")  # fmt: skip
        not_negative = ("seed", "drift_ratio", "funding_scale", "funding_noise", "spread_noise", "start")
        for name in positive:
            self._require(getattr(self, name) > 0, name, "above 0")
        for name in shares:
            self._require(0 <= getattr(self, name) <= 1, name, "between 0 and 1")
        for name in not_negative:
            self._require(getattr(self, name) >= 0, name, "0 or more")
        self._require(bool(self.symbols) and len(set(self.symbols)) == len(self.symbols), "symbols", "distinct")
        self._require(
            bar_start(self.start, interval) == self.start, "start", f"the open of a bar of {self.timeframe}, in ms"
        )
        self._require(self.kind in get_args(Knowledge), "kind", f"one of {', '.join(get_args(Knowledge))}")
        self._require(self.tail_freedom > 2, "tail_freedom", "above 2, for the variance to exist")
        self._require(self.storm_share < 1 and self.storm_share * self.storm_variance <= 1, "storm_variance",
                      "at most 1 / storm_share, for the calm to make up for it")  # fmt: skip
        self._require(self.storm_variance > 0, "storm_variance", "above 0")
        self._require(self.spike_share < 1, "spike_share", "below 1")
        self._require(1 <= self.spike_bars[0] <= self.spike_bars[1] <= 100, "spike_bars", "1 <= first <= second <= 100")
        self._require(0 <= self.spike_height[0] <= self.spike_height[1] < 1, "spike_height", "0 <= first <= second < 1")

    def _require(self, holds: bool, name: str, rule: str) -> None:
        if not holds:
            raise DataError(f"synthetic market: {name} is {getattr(self, name)!r}; it must be {rule}")

    @property
    def bars_per_day(self) -> float:
        return DAY_MS / interval_of(self.timeframe)

    def regime_weights(self) -> tuple[float, float, float]:
        """Long-run shares of bear, range and bull."""
        return self.trend_weight / 2, 1 - self.trend_weight, self.trend_weight / 2

    def parameters(self, symbols: tuple[str, ...]) -> Parameters:
        """The model's numbers per bar, for some of the coins. Raises `DataError` for an unknown one."""
        unknown = [symbol for symbol in symbols if symbol not in self.symbols]
        if unknown:
            raise DataError(f"synthetic market: no symbol '{unknown[0]}'; there are {', '.join(self.symbols)}")
        count = len(self.symbols)
        spread_of = np.linspace(-1, 1, count) if count > 1 else np.zeros(1)
        scale = 1 + self.volatility_range * spread_of[[self.symbols.index(symbol) for symbol in symbols]]
        daily = self.daily_volatility * scale
        # A regime of weight w that is drawn anew q times a day ends q (1 - w) times a day.
        redraws = 1 / (self.regime_days * (1 - self.trend_weight / 2)) / self.bars_per_day
        storm_redraws = 1 / (self.storm_days * (1 - self.storm_share)) / self.bars_per_day
        persistence = 0.5 ** (1 / (self.volatility_half_life_days * self.bars_per_day))
        spike_bars = (self.spike_bars[0] + self.spike_bars[1]) / 2
        return Parameters(
            redraw_market=1 - np.exp(-redraws * self.market_share),
            redraw_own=1 - np.exp(-redraws * (1 - self.market_share)),
            bear_weight=self.trend_weight / 2,
            bull_weight=self.trend_weight / 2,
            redraw_storm=1 - np.exp(-storm_redraws),
            storm_share=self.storm_share,
            calm_variance=(1 - self.storm_share * self.storm_variance) / (1 - self.storm_share),
            storm_variance=self.storm_variance,
            persistence=persistence,
            reaction=min(persistence, self.volatility_reaction * np.sqrt(1 - persistence)),
            variance_cap=10.0,
            volatility=daily / np.sqrt(self.bars_per_day),
            bull_drift=daily * self.drift_ratio * self.edge / self.bars_per_day,
            correlation=self.correlation,
            edge=self.edge,
            funding_scale=self.funding_scale,
            funding_memory=self.funding_memory,
            funding_noise=self.funding_noise,
            spread_base=self.spread_base,
            spread_memory=self.spread_memory,
            spread_noise=self.spread_noise,
            # A cycle is (1 - p) / p free bars and a spike of mean length m; p makes spikes this share of it.
            # With private knowledge, wide spreads last (`simulator.synthetic.private`) and there are no short ones.
            spike_onset=0.0
            if self.kind == "private"
            else self.spike_share / (self.spike_share + spike_bars * (1 - self.spike_share)),
            spike_shortest=self.spike_bars[0],
            spike_longest=self.spike_bars[1],
            spike_low=self.spike_height[0],
            spike_high=self.spike_height[1],
        )
