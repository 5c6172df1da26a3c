"""The records of a run as Parquet files, one for each kind, for pandas, DuckDB, Polars or `datasets`.

| file | a row is |
| --- | --- |
| `conversations` | a conversation of a team in a backtest: who, its `messages` (role, content), answer, usage |
| `decisions` | a decision: time, coins, return until the next one |
| `orders` | an order that a decision sent, after the guard |
| `fills`, `trades`, `rejections` | what the exchange made of orders: executions, round trips, refusals |
| `equity` | the account at a close |
| `metrics`, `rollouts`, `rewards` | of a training: a step, a rollout, a reward with its parts and its advantage |

Times are UTC. Files of what a run has none of are not written. What has no fixed columns (an answer, the parts of a
reward) is a text of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from backend.decisions.backtest_document import RejectionDocument, StoredBacktest, read_backtests
from backend.decisions.document import StoredDecision, read_decisions
from backend.store.errors import StoreError
from backend.store.store import Store
from simulator.files import whole_folder

_Row = dict[str, Any]
_TIMES = ("time", "entry_time", "exit_time")
_TIME = pa.timestamp("ms", tz="UTC")


def export_parquet(store: Store, run: str, folder: Path) -> dict[str, int]:
    """Write the records of a run to `folder`, whole or not at all, and return the number of rows of each file.

    Raises `StoreError` where there is no such run, it is still running, or the folder is there already.
    """
    if store.run(run).status == "running":
        raise StoreError(f"run {run} is still running: export it when it has ended")
    if folder.exists():
        raise StoreError(f"{folder} exists already: give another folder, or remove it")
    decisions, backtests = read_decisions(store, run), read_backtests(store, run)
    tables: Mapping[str, Iterable[_Row]] = {
        "conversations": _conversations(decisions),
        "decisions": _decisions(decisions),
        "orders": _orders(decisions),
        "fills": _of_backtests(backtests, lambda one: map(asdict, one.document.fills)),
        "trades": _of_backtests(backtests, lambda one: map(asdict, one.document.trades)),
        "rejections": _of_backtests(backtests, lambda one: map(_refused, one.document.rejections)),
        "equity": _of_backtests(backtests, _equity),
        "metrics": ({"step": one.step, **one.values} for one in store.metrics(run)),
        "rollouts": (_plain(asdict(one)) for one in store.rollouts(run)),
        "rewards": (_plain(asdict(one)) for one in store.rewards(run)),
    }
    counts = {}
    with whole_folder(folder) as unfinished:
        for name, rows in tables.items():
            table = _table(list(rows))
            if table is not None:
                pq.write_table(table, unfinished / f"{name}.parquet")
                counts[name] = table.num_rows
    return counts


def _conversations(decisions: Iterable[StoredDecision]) -> Iterator[_Row]:
    for one in decisions:
        for number, said in enumerate(one.document.conversations):
            usage = said.usage.model_dump()
            yield {
                "team": one.backtest,
                "decision": one.ordinal,
                "time": one.time,
                "conversation": number,
                "role": said.role,
                "policy_version": _text(said.policy_version),
                "asked": _json(said.asked),
                "messages": [{"role": turn.role, "content": _text(turn.content)} for turn in said.messages],
                "answer": None if said.answer is None else _json(said.answer),
                "problem": None if said.problem is None else _text(said.problem),
                **{name: usage.get(name) for name in ("prompt", "sampled", "turns", "cost")},
            }


def _decisions(decisions: Iterable[StoredDecision]) -> Iterator[_Row]:
    for one in decisions:
        document = one.document
        yield {
            "team": one.backtest,
            "decision": one.ordinal,
            "time": one.time,
            "symbols": list(document.symbols),
            "conversations": len(document.conversations),
            "orders": len(document.orders),
            "clamps": len(document.clamps),
            "equity_before": document.equity_before,
            "equity_after": document.equity_after,
            "net_return": document.net_return,
            "thinking_ms": document.thinking_ms,
        }


def _orders(decisions: Iterable[StoredDecision]) -> Iterator[_Row]:
    for one in decisions:
        for order in one.document.orders:
            yield {"team": one.backtest, "decision": one.ordinal, "time": one.time, **asdict(order)}


def _of_backtests(
    backtests: Iterable[StoredBacktest], rows: Callable[[StoredBacktest], Iterable[_Row]]
) -> Iterator[_Row]:
    return ({"team": one.name, **row} for one in backtests for row in rows(one))


def _refused(rejection: RejectionDocument) -> _Row:
    return _plain(rejection.model_dump()) | {"symbol": rejection.symbol}


def _equity(backtest: StoredBacktest) -> Iterator[_Row]:
    document = backtest.document
    for time, equity, exposure in zip(document.times, document.equity, document.exposure, strict=True):
        held = {f"exposure_{name}": part for name, part in zip(document.symbols, exposure, strict=True)}
        yield {"time": time, "equity": equity, **held}


def _table(rows: list[_Row]) -> pa.Table | None:
    """The rows as a table: the columns of all of them, in the order in which they first come."""
    if not rows:
        return None
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        columns[name] = pa.array(values, type=_TIME) if name in _TIMES else pa.array(values)
    return pa.table(columns)


def _plain(row: _Row) -> _Row:
    """A row whose tables are texts."""
    return {name: _json(value) if isinstance(value, dict) else value for name, value in row.items() if name != "run"}


def _json(value: Any) -> str:
    return json.dumps(value)


def _text(text: str) -> str:
    """Half a surrogate pair, which a model may have said, is not UTF-8."""
    return text.encode("utf-8", "replace").decode()
