"""The document of a stored backtest: its bars, trades, costs and metrics, and what a team's inference took.

It lies beside the decisions, below evaluation and reporting: the evaluation and the runs write it, a decision's tree
looks for its fills in it, and reports read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from backend.store.records import BacktestRecord
from backend.store.store import Store
from backend.store.versioned import Upgrade, VersionedDocument
from cryptosentinel.conversation.budget import Ledger
from cryptosentinel.scheduler import Throughput
from simulator.backtest.run import BacktestResult
from simulator.backtest.trades import Trade
from simulator.exchange.exchange_records import Fill
from simulator.exchange.orders import Order
from simulator.tables import EARLIEST, LATEST

Number = int | float  # an integer in JSON stays one


class RoleInference(BaseModel):
    """What requests took: how many they were, tokens read and sampled, seconds waited, and money."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    calls: int
    tokens: int
    seconds: float
    money: float


class InferenceCost(RoleInference):
    """What a team's inference took in a backtest, in all and by role. `exhausted` conversations ended for want of
    budget; `engine` is `Throughput.metrics`, empty where a cassette answered."""

    roles: dict[str, RoleInference]
    exhausted: int
    engine: dict[str, Number]


class RejectionDocument(BaseModel):
    """A request, or the part of it that `detail` names, that was not executed.

    `order` has the fields of the request (`simulator.exchange.orders`); a quantity that was no number is None.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    bar: int
    order: dict[str, str | bool | int | float | None]
    reason: str
    detail: str

    @property
    def symbol(self) -> str:
        """The coin, empty for a request that names an order by its id."""
        return str(self.order.get("symbol", ""))

    def is_of(self, order: Order) -> bool:
        """Whether `order` is what was not executed; a field that an older program did not write is not compared."""
        fields = asdict(order)
        return all(fields[name] == value for name, value in self.order.items() if name in fields)


def _complete(document: dict[str, Any]) -> dict[str, Any]:
    """Version 0 to 1: lists that the programs before did not always write; `thinking` is `inference`."""
    lists = {name: document.get(name) or [] for name in ("fills", "trades", "rejections")}
    return {**document, **lists, "inference": document.get("thinking")}


class BacktestDocument(VersionedDocument):
    """The result of one strategy or team over one window, as `BacktestResult` describes it.

    A result of an older program may lack some `costs` and `metrics`, and fields of its trades have their defaults.
    `inference` is None for what has no model and where it was not recorded.
    """

    LATEST: ClassVar[int] = 1
    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {0: _complete}

    symbols: tuple[str, ...]
    start: int
    decisions: int
    times: Annotated[list[int], Field(min_length=1)]
    equity: Annotated[list[float], Field(min_length=1)]
    exposure: list[list[float]]
    fills: tuple[Fill, ...]
    trades: tuple[Trade, ...]
    rejections: tuple[RejectionDocument, ...]
    costs: dict[str, Number]
    metrics: dict[str, Number]
    absent_bars: int
    inference: InferenceCost | None = None

    @field_validator("metrics")
    @classmethod
    def _has_a_return(cls, metrics: dict[str, Number]) -> dict[str, Number]:
        if "total_return" not in metrics:
            raise ValueError("there is no total_return")
        return metrics

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """One value of every curve at each time; times of this program, in their order."""
        if not len(self.times) == len(self.equity) == len(self.exposure):
            raise ValueError(
                f"there are {len(self.times)} times, {len(self.equity)} values of equity and {len(self.exposure)} of "
                "exposure"
            )
        if any(len(row) != len(self.symbols) for row in self.exposure):
            raise ValueError("exposure is not of every symbol")
        if not EARLIEST <= self.times[0] <= self.times[-1] < LATEST or any(
            later <= earlier for earlier, later in pairwise(self.times)
        ):
            raise ValueError("times are not milliseconds since 1970, one after the other")
        if not self.equity[0] > 0.0:
            raise ValueError("the equity does not begin above 0")
        return self

    @classmethod
    def of(cls, result: BacktestResult, inference: InferenceCost | None = None) -> BacktestDocument:
        """The document of a result."""
        return cls.model_validate({**result.to_dict(), "inference": inference})

    @property
    def total_return(self) -> float:
        """Net of all costs of trading."""
        return float(self.metrics["total_return"])

    @property
    def inference_money(self) -> float:
        """Money that inference took; 0 where none was recorded."""
        return 0.0 if self.inference is None else self.inference.money

    @property
    def return_after_inference(self) -> float:
        """Total return less what inference cost, as a share of the equity at the start."""
        return self.total_return - self.inference_money / self.equity[0]

    def result(self) -> BacktestResult:
        """The result as the simulator has it, but for its rejections."""
        return BacktestResult(
            symbols=self.symbols,
            start=self.start,
            decisions=self.decisions,
            times=np.array(self.times, dtype=np.int64),
            equity=np.array(self.equity, dtype=np.float64),
            exposure=np.array(self.exposure, dtype=np.float64).reshape(-1, len(self.symbols)),
            fills=self.fills,
            trades=self.trades,
            rejections=(),
            costs=dict(self.costs),
            metrics=dict(self.metrics),
            absent_bars=self.absent_bars,
        )


@dataclass(frozen=True)
class StoredBacktest:
    """The document of a backtest with its place: the run, and its `name` there."""

    run: str
    name: str
    document: BacktestDocument

    @classmethod
    def from_record(cls, record: BacktestRecord) -> StoredBacktest:
        """Read a record. Raises `StoreError`, naming it, where its document cannot be read."""
        where = f"backtest {record.name} in run {record.run}"
        return cls(record.run, record.name, BacktestDocument.from_json(record.result, where))

    def record(self) -> BacktestRecord:
        """What the store keeps."""
        return BacktestRecord(self.run, self.name, self.document.to_json())


def read_backtests(store: Store, run: str) -> list[StoredBacktest]:
    """The backtests of a run in order of name. Raises `StoreError` where one cannot be read."""
    return [StoredBacktest.from_record(record) for record in store.backtests(run)]


def write_backtest(
    store: Store, run: str, name: str, result: BacktestResult, inference: InferenceCost | None = None
) -> None:
    """Add the result of a backtest to the store."""
    store.add_backtest(StoredBacktest(run, name, BacktestDocument.of(result, inference)).record())


def inference_cost(ledger: Ledger, throughput: Throughput, from_cassette: bool = False) -> InferenceCost | None:
    """What a team's inference took; None for a team of rules, which has none. How busy the engine was says nothing of
    a team that a cassette answers."""
    if not ledger.run.tokens and not ledger.exhausted:
        return None
    return InferenceCost(
        **asdict(ledger.run),
        roles={role: RoleInference(**asdict(spending)) for role, spending in ledger.roles.items()},
        exhausted=ledger.exhausted,
        engine={} if from_cassette else throughput.metrics(),
    )
