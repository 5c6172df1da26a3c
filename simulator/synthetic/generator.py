"""A market made by a known law, so that what a strategy earns can be held against what there was to earn.

`generate` makes the history and its `Truth`. With `edge=True` hidden regimes of drift persist for days, and prices,
funding and headlines tell something about them. With `edge=False`, the no-edge twin, prices have the same volatility,
shocks and spreads and no drift at all, while funding and headlines speak of a regime that does not exist: nothing that
can be seen predicts a return. The law itself is in `simulator.synthetic.dynamics`.
"""

from __future__ import annotations

import numpy as np

from simulator.market.events import FundingEvent
from simulator.market.market import Market
from simulator.market.timeframes import interval_of
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.dynamics import STREAMS, PathState, draw, evolve, settlements_of
from simulator.synthetic.headlines import write_news
from simulator.synthetic.truth import Truth


def generate(config: SyntheticConfig) -> Market:
    """The market of `config`, with its `Truth`. About a second for 4 coins over 12,000 bars of 4h."""
    interval, count = interval_of(config.timeframe), len(config.symbols)
    law = config.parameters(config.symbols)
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(config.seed).spawn(STREAMS + 3)]
    open_time = config.start + interval * np.arange(config.bars, dtype=np.int64)
    settlements = settlements_of(open_time, interval)

    start, volume_stream, news_stream = streams[STREAMS:]
    weights = config.regime_weights()
    regime, decoy = start.choice(np.array([-1, 0, 1], np.int8), (2, 1, count), p=weights)
    signal = regime if config.edge else decoy
    state = PathState(
        regime=regime,
        signal=signal,
        storm=(start.random(1) < config.storm_share).astype(np.int8),
        variance=np.ones((1, count)),
        funding=signal.astype(np.float64),
        spread=np.zeros((1, count)),
        spike_left=np.zeros((1, count), np.int8),
        spike_height=np.full((1, count), config.spike_height[0]),
    )
    draws = draw(
        streams[:STREAMS],
        (1, config.bars, count),
        config.steps,
        settlements.shape[1],
        config.tail_freedom,
        config.scale_cap,
    )
    course = evolve(state, np.full((1, count), config.start_price), draws, law, settlements >= 0)

    funding = {
        symbol: tuple(
            FundingEvent(int(time), float(rate))
            for time, rate in zip(settlements.ravel(), course.funding_rate[0, :, column].ravel(), strict=True)
            if time >= 0
        )
        for column, symbol in enumerate(config.symbols)
    }
    # A bar is governed by the regime after the bar before it, and so are the headlines that appear in it.
    governing = np.concatenate([signal, course.signal[0, :-1]])
    # Busy bars are those with a wide range; about 1,000 units of quote currency a bar at the start.
    width = np.log(course.high[0] / course.low[0]) / law.volatility
    volume = 1000 * width * np.exp(0.3 * volume_stream.standard_normal(width.shape)) / config.start_price
    return Market(
        symbols=config.symbols,
        timeframe=config.timeframe,
        open_time=open_time,
        open=course.open[0],
        high=course.high[0],
        low=course.low[0],
        close=course.close[0],
        volume=volume,
        half_spread=course.half_spread[0],
        funding=funding,
        news=write_news(
            config.symbols,
            open_time,
            interval,
            governing,
            arrival=1 - np.exp(-1 / (config.news_days * config.bars_per_day)),
            neutral=config.news_neutral,
            accuracy=config.news_accuracy,
            stream=news_stream,
        ),
        truth=Truth(
            config=config,
            symbols=config.symbols,
            open_time=open_time,
            regime=course.regime[0],
            signal=course.signal[0],
            storm=course.storm[0],
            variance=course.variance[0],
            funding=course.funding[0],
            spread=course.spread[0],
            spike_left=course.spike_left[0],
            spike_height=course.spike_height[0],
        ),
        source=f"synthetic market (seed {config.seed}, {'edge' if config.edge else 'no edge'})",
    )
