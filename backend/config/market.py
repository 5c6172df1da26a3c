"""Settings of what is traded: where the bars come from, what trading costs, and what the venue is like.

Like all sections of the configuration (`schema.py`), they are typed, bounded, frozen and hold no unknown key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from backend.config.base import Fraction, Shares
from cryptosentinel.team_settings import Names, Section
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.folders import named_data
from simulator.market.timeframes import HALF_SPREAD_BPS, TIMEFRAMES
from simulator.synthetic.defaults import DRIFT_RATIO, EDGE, KIND, NEWS_ACCURACY, TIMEFRAME, Knowledge

_COSTS = Costs()  # its own defaults
NONE = "none"  # in place of a path: not even what stands beside the bars


class MarketConfig(Section):
    """Where the bars come from: a folder of data, or the synthetic market where `data` is empty."""

    data: str = Field(
        "", description="folder of Parquet files; sample: the market that is shipped; empty: generate a synthetic one"
    )
    source: str = Field(
        "",
        description="data source of your own, my_module:load or an installed one's name, which is asked where `data` "
        "is empty; what it gives is kept in a folder, which `data` then names",
    )
    symbols: Names = Field((), description="symbols to use, as a list or 'A,B'; empty: all there are")
    timeframe: Literal["1m", "3m", "5m", "15m", "30m", "1h", "2h", "4h", "6h", "8h", "12h", "1d", "3d", "1w"] = Field(
        TIMEFRAME, description="bars to load or generate"
    )
    resample: Literal["", "3m", "5m", "15m", "30m", "1h", "2h", "4h", "6h", "8h", "12h", "1d", "3d", "1w"] = Field(
        "", description="timeframe to decide on, a multiple of `timeframe`; empty: the same"
    )
    funding_dir: str = Field("", description="folder of funding files; empty: look beside the bars")
    news: str = Field("", description="Parquet file of dated headlines; empty: look beside the bars")
    start: str = Field("", description="first day to use, UTC, as 2023-01-31; empty: from the beginning")
    end: str = Field("", description="day to stop before, UTC; empty: to the end")
    coins: int = Field(4, ge=1, le=20, description="synthetic: number of coins")
    bars: int = Field(6000, ge=200, le=1_000_000, description="synthetic: number of bars")
    seed: int = Field(7, ge=0, le=2**31 - 1, description="synthetic: seed of the generator")
    kind: Knowledge = Field(
        KIND,
        description="synthetic: what there is to know. trend: drift, which MarketAnalyst's tools show. private: also "
        "spreads that stay wide and jumps, and each role's tools show what no other's do",
    )
    edge: bool = Field(
        EDGE, description="synthetic: false gives the no-edge control, without any information about the drift"
    )
    drift_ratio: float = Field(
        DRIFT_RATIO, ge=0.0, le=2.0, description="synthetic: drift a day in bull and bear, in daily volatilities"
    )
    news_accuracy: Fraction = Field(
        NEWS_ACCURACY, description="synthetic: share of toned headlines that agree with the regime"
    )
    shares: Shares = Field(
        (0.6, 0.15),
        description="shares of the history for training and, after it, for validation; the rest is held out",
    )

    @field_validator("data")
    @classmethod
    def _named(cls, data: str) -> str:
        named = named_data(data)
        return data if not data or named == Path(data) else str(named)

    @model_validator(mode="before")
    @classmethod
    def _no_resampling(cls, values: Any) -> Any:
        """Bars that are resampled to their own timeframe stay as they are."""
        if isinstance(values, dict) and values.get("resample") == values.get("timeframe", TIMEFRAME):
            return {**values, "resample": ""}
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(self.shares) >= 1.0:
            raise ValueError(f"shares = {list(self.shares)} must sum to less than 1, or nothing is held out")
        if self.data and self.kind != KIND:
            raise ValueError(
                f"kind = '{self.kind}' is of a generated market, and market.data has bars of its own: leave "
                "market.data empty, or take a preset without this kind, such as recorded_training"
            )
        if self.resample and TIMEFRAMES[self.resample] % TIMEFRAMES[self.timeframe]:
            raise ValueError(f"resample = '{self.resample}' is not a multiple of timeframe = '{self.timeframe}'")
        return self


class CostsConfig(Section):
    """What trading costs.

    Impact and participation need the volume of the bars. Simulated scenarios have none, and the synthetic market's is
    too small to trade on, so they are off here and on in the preset for recorded bars.
    """

    taker_fee: float = Field(_COSTS.taker_fee, ge=0.0, le=0.01, description="fee as a fraction of the notional")
    maker_fee: float = Field(
        _COSTS.maker_fee,
        gt=-0.01,
        le=0.01,
        description="fee of what rested in the book, as a fraction; a rebate is negative",
    )
    half_spread_bps: float = Field(
        HALF_SPREAD_BPS, ge=0.0, le=200.0, description="half the spread in basis points, for data that has no spread"
    )
    impact: float = Field(
        _COSTS.impact,
        ge=0.0,
        le=10.0,
        description="Y of the impact Y x volatility x sqrt(share of the volume); 1 is usual",
    )
    participation: float = Field(
        0.0, ge=0.0, le=1.0, description="most of a bar's volume that orders may take, what is left waits; 0: any"
    )
    thinking_time: Literal["auto", "measured", "none"] | Annotated[float, Field(ge=0.0, le=86_400.0)] = Field(
        "auto",
        description="delay of a team's orders by the time its decision took: 'measured', 'none', seconds, or 'auto', "
        "which is measured on recorded bars and none on generated ones",
    )
    cash: float = Field(10_000.0, gt=0.0, le=1e9, description="cash at the start")

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.costs()
        except DataError as error:
            raise ValueError(str(error)) from None
        return self

    def costs(self) -> Costs:
        """The exchange's costs. Its conventions `fill` and `sizing` are not settings: they are there to agree with
        other engines, and a fill at the close that was decided on is kinder than life."""
        return Costs(
            taker_fee=self.taker_fee,
            maker_fee=self.maker_fee,
            impact=self.impact,
            participation=self.participation or None,
        )


class VenueConfig(Section):
    """Where recorded bars are traded: the venue's rules, and what happened inside a bar."""

    rules: str = Field(
        "", description="JSON file of the venue's rules; empty: rules.json beside the bars, if it is there; 'none'"
    )
    finer: Literal["", "1m", "3m", "5m", "15m", "30m", "1h", "2h", "4h", "6h", "8h", "12h", "1d"] = Field(
        "", description="finer bars that decide what came first inside a bar, where there are some; empty: none"
    )
