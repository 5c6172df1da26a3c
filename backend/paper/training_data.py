"""A session's record as data for the next training: the bars that it saw, and the states in which it decided.

The market is rebuilt from the journal, as parity does it, so it does not matter where the data came from. It is written
into the session's folder as a data folder, named by its hash: what a training read stays what it was, also when the
session continues.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from backend.config.load import config_from_dict, load_config
from backend.config.schema import Config
from backend.paper.feeds import rules_from_json
from backend.paper.journal import bar_from_json, entries_of, history_from_json
from backend.paper.sessions import session_record
from backend.runs.requests import RECORDED_TRAINING, TrainRequest
from backend.store.records import JournalRecord
from backend.store.run_record import stored_config
from backend.store.store import Store
from backend.training.curriculum.queries import WARM_UP_BARS
from backend.training.curriculum.recorded_states import RecordedStates
from simulator.data.archive import SYMBOL, write_market
from simulator.data.venue import INSTRUMENTS_FILE, RULES_FILE, write_instruments, write_rules
from simulator.errors import UserError
from simulator.files import whole_folder
from simulator.live.broker import session_market
from simulator.market.growing import part_of
from simulator.market.market import Market
from simulator.market.timeframes import format_time

FOLDER, STATES_FILE = "recorded", "states.json"
LEAST_TRAINING, LEAST_VALIDATION = 8, 2  # states with a whole horizon after them
_DIGITS = 12  # of the hash, in the folder's name


@dataclass(frozen=True)
class SessionData:
    """What a session recorded. `market` has names of files as symbols, `begun` is its first bar at whose close was
    decided, `held` the exposures by bar, `rules` those of a live exchange."""

    session: str
    market: Market
    begun: int
    held: Mapping[int, Mapping[str, float]]
    rules: Mapping[str, Any]


def train_request_of(session: str, request: TrainRequest, store: Store, runs: Path) -> TrainRequest:
    """`request` on what the session `session` recorded: its bars, its costs, and its states as queries.

    The shares of training and validation are of the bars since the session began; those before are history. Costs that
    the request itself sets stand above those of the session. An empty `config` is the preset `recorded_training`.

    Raises:
        UserError: an unknown session, one that still runs, one with too few decisions, or a request that names data of
            its own.
    """
    own = [name for name in ("data", "symbols", "timeframe", "resample") if getattr(request, name)]
    if own or request.resume:
        named = "--resume" if request.resume else f"--{own[0]}"
        raise UserError(
            f"--from-paper {session} brings its own data, and {named} names other data or another run: leave one of "
            "them out"
        )
    record = session_record(store, session)
    if record.status == "running":
        raise UserError(
            f"session {session} still runs, so that its record grows: stop it first with `cryptosentinel paper stop "
            f"{session}`, or wait for its end"
        )
    traded = stored_config(record)
    data = session_data(session, entries_of(store, session))
    stated = request.on(request.config or RECORDED_TRAINING)
    folder = runs / session / FOLDER / data.market.content_hash[:_DIGITS]
    config = _on(stated, request, data, traded, folder)
    _check_enough(config, data)  # before anything is written
    written = _write(folder, data, config.guard.max_gross_exposure)
    origin = {
        "session": session,
        "data_hash": written.data_hash,
        "states": len(written.held),
        "first": format_time(min(written.held)),
        "last": format_time(max(written.held)),
    }
    return replace(request, config=config, overrides=(), origin=origin)


def session_data(session: str, entries: Sequence[JournalRecord]) -> SessionData:
    """What the journal `entries` has of a session. Raises `UserError` for one that has no bar or no decision yet."""
    start = entries[0].document
    history = history_from_json(start["history"])
    bars = [bar_from_json(entry.document["bar"]) for entry in entries if entry.kind == "bar"]
    decided = [int(entry.document["bar"]) for entry in entries if entry.kind == "decision"]
    if not bars or not decided:
        raise UserError(
            f"session {session} recorded {len(bars)} bars and {len(decided)} decisions: there is nothing to train on"
        )
    whole = session_market(history, bars)
    there = np.flatnonzero(whole.present.any(axis=1))
    first, last = int(there[0]), int(there[-1])
    market = part_of(whole, first, last + 1, whole.kinds)
    accounts = {int(entry.document["bar_index"]): entry.document["account"] for entry in entries if entry.kind == "bar"}
    names = file_names(market.symbols)
    held = {}
    for bar in decided:
        account = accounts.get(bar, {"equity": start["cash"], "positions": {}})
        if not first <= bar <= last or account["equity"] <= 0.0:
            continue
        view = market.view(bar - first)
        marks = {symbol: view.last_close(symbol) for symbol in account["positions"]}
        held[bar - first] = {
            names[symbol]: quantity * marks[symbol] / account["equity"]
            for symbol, quantity in account["positions"].items()
            if quantity and math.isfinite(marks[symbol])
        }
    renamed = replace(
        market, symbols=tuple(names.values()), kinds={names[symbol]: kind for symbol, kind in market.kinds.items()},
        funding={names[symbol]: events for symbol, events in market.funding.items()},
    )  # fmt: skip
    rules = rules_from_json(start["rules"]) if start.get("rules") else {}
    return SessionData(
        session, renamed, len(history) - 1 - first, held, {names[symbol]: one for symbol, one in rules.items()}
    )


def file_names(symbols: Sequence[str]) -> dict[str, str]:
    """A name for each symbol that may stand in a file's: BTCUSDT of BTC/USDT, with the settlement behind it where two
    symbols would have the same."""
    short = {symbol: symbol.partition(":")[0].replace("/", "") for symbol in symbols}
    if len(set(short.values())) < len(symbols) or not all(SYMBOL.fullmatch(name) for name in short.values()):
        return {symbol: "".join(one if SYMBOL.fullmatch(one) else "-" for one in symbol) for symbol in symbols}
    return short


def _on(stated: Config, request: TrainRequest, data: SessionData, traded: Config, folder: Path) -> Config:
    """The configuration of a training on `data`."""
    document = stated.to_dict()
    market = data.market
    bars, since = len(market), len(market) - data.begun
    cuts = [data.begun + round(share * since) for share in (stated.market.shares[0], sum(stated.market.shares))]
    # Half a bar, so that no rounding moves the cut.
    shares = ((cuts[0] + 0.5) / bars, (cuts[1] - cuts[0]) / bars)
    if cuts[1] == cuts[0] or cuts[1] >= bars:
        raise _too_few(data.session, f"{since} bars, which cannot be divided")
    document["market"] |= {
        "data": str(folder), "symbols": list(market.symbols), "timeframe": market.timeframe, "resample": "",
        "start": "", "end": "", "funding_dir": "", "news": "", "shares": shares,
    }  # fmt: skip
    document["costs"] = traded.to_dict()["costs"]
    document["training"]["states"] = str(folder / STATES_FILE)
    costs = [one for one in request.overrides if one.strip().startswith("costs.")]
    return load_config(config_from_dict(document, "the options"), costs, name="the options")


def _check_enough(config: Config, data: SessionData) -> None:
    """Raise `UserError` where too few states have their history and their horizon within a part."""
    horizon, bars = config.team.horizon_bars, len(data.market)
    cuts = [int(bars * share) for share in (0.0, config.market.shares[0], sum(config.market.shares))]
    counted = [
        sum(max(start, WARM_UP_BARS) <= bar < stop - horizon for bar in data.held) for start, stop in pairwise(cuts)
    ]
    if counted[0] < LEAST_TRAINING or counted[1] < LEAST_VALIDATION:
        raise _too_few(
            data.session,
            f"{len(data.held)} decisions, of which {counted[0]} are for training and {counted[1]} for validation with "
            f"{WARM_UP_BARS} bars of history before them and a horizon of {horizon} bars after them; at least "
            f"{LEAST_TRAINING} and {LEAST_VALIDATION} are needed",
        )


def _too_few(session: str, what: str) -> UserError:
    return UserError(
        f"session {session} recorded too little to train on: {what}. Let it run on with `cryptosentinel paper resume "
        f"{session}`, decide more often, or set a shorter team.horizon_bars"
    )


def _write(folder: Path, data: SessionData, most: float) -> RecordedStates:
    """Write bars and states into `folder`, whole or not at all; the states as they are there. An account may hold more
    than `most` where prices have moved: states are scaled to it."""
    market = data.market
    held = {int(market.open_time[bar]): _within(exposures, most) for bar, exposures in data.held.items()}
    states = RecordedStates(data.session, market.content_hash, held)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(folder) as unfinished:
            write_market(market, unfinished)
            write_instruments(unfinished / INSTRUMENTS_FILE, market.kinds)
            if data.rules:
                write_rules(unfinished / RULES_FILE, data.rules)
    states.write(folder / STATES_FILE)
    return states


def _within(exposures: Mapping[str, float], most: float) -> dict[str, float]:
    gross = math.fsum(abs(one) for one in exposures.values())
    scale = most / gross if gross > most else 1.0
    return {symbol: float(np.trunc(1e4 * scale * one) / 1e4) + 0.0 for symbol, one in exposures.items()}
