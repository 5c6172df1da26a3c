"""The document of a stored backtest: its bars, trades, costs and metrics, and what a team's inference took.

It lies beside the decisions, below evaluation and reporting: the evaluation and the runs write it, a decision's tree
looks for its fills in it, and reports read it.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from operator import lt
from typing import Annotated, Any, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_validator,
)

from backend.store.records import BacktestRecord, StoredDocument
from backend.store.store import Store
from cryptosentinel.conversation.budget import Ledger
from cryptosentinel.scheduler import Throughput
from simulator.backtest.run import REFUSED, BacktestResult, OrderRefusal, refusal_text
from simulator.backtest.trades import Trade
from simulator.checks.verdict import LookaheadVerdict
from simulator.exchange.exchange_records import Fill
from simulator.exchange.orders import Order
from simulator.tables import EARLIEST, LATEST

Number = int | float  # an integer in JSON stays one
_LONG = 2_000  # bars from which the curves are written as bytes, so that they are read thirty times as fast
_FORMS = {"i8": np.dtype("<i8"), "f8": np.dtype("<f8")}  # on every machine: little-endian


def packed(numbers: Sequence[Any], form: str) -> str:
    """Integers (`form` "i8") or floats ("f8"), (n,) or (n, k), row after row, as the form and the base64 of their
    bytes: half as long as digits, and the very same numbers."""
    return f"{form}:{base64.b64encode(np.asarray(numbers, _FORMS[form]).tobytes()).decode('ascii')}"


def unpacked(text: str, form: str) -> np.ndarray[Any, np.dtype[Any]]:
    """(n,): the numbers of `packed`. Raises `ValueError` for any other text, and for NaN and the infinities."""
    stated, _, content = text.partition(":")
    if stated != form:
        raise ValueError(f"numbers as a text must be {form}, not {stated[:8]!r}")
    try:
        numbers = np.frombuffer(base64.b64decode(content, validate=True), _FORMS[form])
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"numbers as a text cannot be read: {error}") from None
    if not np.isfinite(numbers).all():
        raise ValueError("numbers as a text hold one that is not finite")
    return numbers


class RoleInference(BaseModel):
    """What requests took: how many they were, tokens read and sampled, seconds waited, and money."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    calls: int
    tokens: int
    seconds: float
    money: float


class InferenceCost(RoleInference):
    """What a team's inference took in a backtest, in all and by role. `exhausted` conversations ended for want of
    budget; `engine` is `Throughput.metrics`, empty where a recording answered. Where the model's price was not known,
    `priced` is False and the money, which is 0, says nothing."""

    roles: dict[str, RoleInference]
    engine: dict[str, Number]
    priced: bool = True


class RejectionDocument(BaseModel):
    """A request, or the part of it that `detail` names, that was not executed.

    `order` has the fields of the request (`simulator.exchange.orders`); a quantity that was not a number is None.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    bar: int
    order: dict[str, str | bool | int | float | None]
    reason: str
    detail: str
    quantity: float | None = None  # what was not executed, base units; None where it is not known

    @property
    def symbol(self) -> str:
        """The coin, empty for a request that names an order by its id."""
        return str(self.order.get("symbol", ""))

    def is_of(self, order: Order) -> bool:
        """Whether `order` is what was not executed."""
        fields = asdict(order)
        return all(fields[name] == value for name, value in self.order.items() if name in fields)


class BacktestDocument(StoredDocument):
    """The result of one strategy or team over one window, as `BacktestResult` describes it.

    `inference` is None for what has no model. `lookahead` is there for a user's own strategy.
    """

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
    lookahead: LookaheadVerdict | None = None

    @field_validator("times", "equity", "exposure", mode="wrap")
    @classmethod
    def _read_curve(cls, value: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """A curve as lists, or `packed`, whose numbers need no further look."""
        if not isinstance(value, str):
            return read(value)
        numbers = unpacked(value, "i8" if info.field_name == "times" else "f8")
        if info.field_name == "exposure":
            numbers = numbers.reshape(-1, len(info.data.get("symbols", ())) or 1)
        return numbers.tolist() or read([])  # which is refused

    @field_validator("metrics", mode="before")
    @classmethod
    def _read_infinity(cls, metrics: Any) -> Any:
        """JSON has no infinity: None stands for it, as the profit factor without a loss."""
        if not isinstance(metrics, Mapping):
            return metrics
        return {name: math.inf if value is None else value for name, value in metrics.items()}

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
        if not set(map(len, self.exposure)) <= {len(self.symbols)}:
            raise ValueError("exposure is not of every symbol")
        in_order = all(map(lt, self.times, islice(self.times, 1, None)))  # a tenth of a loop's time
        if not EARLIEST <= self.times[0] <= self.times[-1] < LATEST or not in_order:
            raise ValueError("times are not milliseconds since 1970, one after the other")
        if self.lookahead is not None and not self.lookahead.trusted and not self.lookahead.findings:
            raise ValueError(f"a verdict of {self.lookahead.status} without a finding")
        if not self.equity[0] > 0.0:
            raise ValueError("the equity does not begin above 0")
        return self

    @classmethod
    def of(
        cls,
        result: BacktestResult,
        inference: InferenceCost | None = None,
        lookahead: LookaheadVerdict | None = None,
    ) -> BacktestDocument:
        """The document of a result."""
        return cls.model_validate({**result.to_dict(), "inference": inference, "lookahead": lookahead})

    @field_serializer("metrics")
    def _write_infinity(self, metrics: dict[str, Number]) -> dict[str, Number | None]:
        return {name: value if math.isfinite(value) else None for name, value in metrics.items()}

    def to_json(self) -> dict[str, Any]:
        """See `StoredDocument`. The curves of a long window are `packed`."""
        if len(self.times) < _LONG:
            return super().to_json()
        curves = {"times": packed(self.times, "i8"), "equity": packed(self.equity, "f8"),
                  "exposure": packed(self.exposure, "f8")}  # fmt: skip
        return {**self.model_dump(exclude=set(curves)), **curves}

    @property
    def total_return(self) -> float:
        """Net of all costs of trading."""
        return float(self.metrics["total_return"])

    @property
    def refused(self) -> str:
        """How many requests were refused and why, see `refusal_text`; empty where none was."""
        return refusal_text(
            OrderRefusal(one.reason, one.symbol, one.detail)
            for one in self.rejections
            if one.reason in REFUSED and one.quantity is None
        )

    @property
    def inference_money(self) -> float:
        """Money that inference took; 0 where none was recorded."""
        return 0.0 if self.inference is None else self.inference.money

    @property
    def return_after_inference(self) -> float:
        """Total return minus what inference cost, as a share of the equity at the start."""
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
    store: Store,
    run: str,
    name: str,
    result: BacktestResult,
    inference: InferenceCost | None = None,
    lookahead: LookaheadVerdict | None = None,
) -> None:
    """Add the result of a backtest to the store."""
    store.put(StoredBacktest(run, name, BacktestDocument.of(result, inference, lookahead)).record())


def inference_cost(ledger: Ledger, throughput: Throughput, replayed: bool = False) -> InferenceCost | None:
    """What a team's inference took; None for a team of rules, which has none. How busy the engine was says nothing of
    a team that a recording answers."""
    if not ledger.run.tokens:
        return None
    return InferenceCost(
        **asdict(ledger.run),
        roles={role: RoleInference(**asdict(spending)) for role, spending in ledger.roles.items()},
        priced=ledger.price is not None,
        engine={} if replayed else throughput.metrics(),
    )
