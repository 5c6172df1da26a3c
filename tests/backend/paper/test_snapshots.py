"""A session that goes on from a snapshot is the one that takes its whole journal again, and it forgets what is past."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.builders.market import limits_of
from backend.paper.journal import SLOTS, entries_of
from backend.paper.parity import check_parity
from backend.paper.records.stored import newest_entries
from backend.paper.snapshots import Shortening, newest_snapshot, shortening
from backend.store import Store
from backend.store.records import JournalRecord
from simulator.exchange.costs import Costs
from simulator.exchange.orders import Cancel, Order, OrderRequest, Target
from simulator.live.bar_assembly import LiveBar
from simulator.live.broker import SimulatedBroker
from simulator.market.growing import part_of
from tests.backend.paper import paper_scenes as scene

KEEPS = Shortening(4, 132)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], int]:
    with Store.open("mem://") as store:
        scene.begin(store, tmp_path_factory.mktemp("session"), KEEPS)
        entries = entries_of(store, scene.RUN)
        return scene.books(entries), len(entries)


def live_bar(index: int) -> LiveBar:
    """Bar `index` of the scene."""
    market = scene.market()
    columns = [getattr(market, name)[index] for name in ("open", "high", "low", "close", "volume")]
    candles: dict[str, Any] = {
        symbol: tuple(float(one[place]) for one in columns)
        for place, symbol in enumerate(market.symbols)
        if market.present[index, place]
    }
    opened = int(market.open_time[index])
    close = opened + market.interval
    settled = tuple(
        (symbol, one.time, one.rate)
        for symbol, events in market.funding.items()
        for one in events
        if opened < one.time <= close
    )
    spreads = {symbol: float(market.half_spread[index, market.column(symbol)]) for symbol in candles}
    return LiveBar(opened, close, candles, spreads, settled)


REQUESTS = st.one_of(
    st.builds(Target, st.sampled_from(scene.SYMBOLS), st.floats(-0.5, 0.5)),
    st.builds(Order, st.sampled_from(scene.SYMBOLS), st.floats(-500.0, 500.0), stop=st.none(), delay=st.integers(0, 2)),
    st.builds(
        Order, st.sampled_from(scene.SYMBOLS), st.floats(-500.0, 500.0).filter(bool), kind=st.just("limit"),
        limit=st.floats(50.0, 200.0), group=st.sampled_from(["one", "other", "third"]),
    ),
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(REQUESTS, max_size=2), min_size=12, max_size=12),
    st.integers(1, 11),
    st.sampled_from(["quote", "base"]),
)
def test_an_account_that_forgot_its_past_goes_on_as_one_that_did_not(
    requests: list[list[OrderRequest]], after: int, fee_currency: Any
) -> None:
    """Whatever is held and waits: an account made from a saved state fills, refuses and earns the same as one that
    keeps everything, and what each symbol earned is what its trades say."""
    costs = Costs(impact=1.0, participation=0.02, latency_ms=250, fee_currency=fee_currency)
    history = part_of(scene.market(), 0, scene.START + 1, scene.market().kinds)
    account = scene.ACCOUNT
    terms = (account.cash, costs, account.max_leverage, account.venue)
    whole, short = SimulatedBroker(history, *terms), SimulatedBroker(history, *terms)
    for number, sent in enumerate(requests):
        for broker in (whole, short):
            broker.submit(sent, [0] * len(sent))
        if number == after:
            short.keep(60)
            fresh = SimulatedBroker(short.market, *terms)
            fresh.go_on(short.state())
            assert fresh.state() == short.state()
            short = fresh
        bar = live_bar(scene.START + 1 + number)
        assert whole.extend(bar) == short.extend(bar)
        assert whole.account() == short.account() and whole.index == short.index
    assert len(short.market) < len(whole.market)
    traded = dict.fromkeys(scene.SYMBOLS, 0.0)
    for trade in whole.result(1).trades:
        traded[trade.symbol] += trade.pnl
    assert short.earned() == pytest.approx(traded, rel=1e-9, abs=1e-6)


def test_what_an_account_notes_does_not_grow_with_its_orders() -> None:
    """Each bar brings an order of a group of its own, which is withdrawn at the next one."""
    history = part_of(scene.market(), 0, scene.START + 1, scene.market().kinds)
    account = scene.ACCOUNT
    broker = SimulatedBroker(history, account.cash, account.costs, account.max_leverage, account.venue)
    sizes = []
    for number in range(20):
        name = f"order {number:02d}"
        order = Order("BBBUSDT", 1.0, kind="limit", limit=1.0, group=f"group {number:02d}", id=name)
        broker.submit([Cancel(f"order {number - 1:02d}"), order], [0, 0])
        broker.extend(live_bar(scene.START + 1 + number))
        broker.keep(60)
        sizes.append(len(json.dumps(broker.state())))
    assert sizes[-1] <= sizes[2] + 20, "some digits more"


def test_missed_decisions_are_counted_on_from_a_snapshot(tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        with pytest.raises(scene.StruckError):
            scene.begin(store, tmp_path, KEEPS, strike_at=20)
        snapshot, _ = newest_entries(store, scene.RUN)
        assert snapshot is not None and snapshot.state["missed"] == 0
        [slot] = [
            one for one in store.journal_between(scene.RUN, min(SLOTS), 0) if one.document["after"] == snapshot.after
        ]
        state = {**slot.document["state"], "missed": 2}
        digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
        document = {**slot.document, "state": state, "digest": digest}
        store.add_journal(JournalRecord(scene.RUN, slot.ordinal, "snapshot", slot.time, document))
        assert scene.go_on(store, tmp_path).missed == 2


@pytest.mark.parametrize("share", [0.55, 0.95])
def test_a_resume_from_a_snapshot_has_the_books_of_the_undisturbed_session(
    undisturbed: tuple[list[Any], int], tmp_path: Path, share: float
) -> None:
    """It reads the journal only from the snapshot on, and what came of all of the session is there at the end."""
    expected, writes = undisturbed
    with Store.open("mem://") as store:
        with pytest.raises(scene.StruckError):
            scene.begin(store, tmp_path, KEEPS, strike_at=int(share * writes))
        snapshot, tail = newest_entries(store, scene.RUN)
        assert snapshot is not None and sum(entry.kind == "bar" for entry in tail) < KEEPS.every
        outcome = scene.go_on(store, tmp_path)
        entries = entries_of(store, scene.RUN)
        assert scene.books(entries) == expected
        assert outcome.bars == scene.STOP - scene.START
        [stored] = store.backtests(scene.RUN)
        assert len(stored.result["equity"]) == outcome.bars + 1 and len(stored.result["fills"]) == outcome.fills
        team, limits = scene.named_team(), limits_of(scene.settings().guard)
        assert check_parity(entries, team.team, team.engine, scene.ACCOUNT, limits, scene.SEED).differences == ()


@pytest.mark.parametrize("damage", ["state", "entry", "shape"])
def test_a_damaged_snapshot_is_left_out(undisturbed: tuple[list[Any], int], tmp_path: Path, damage: str) -> None:
    """Then the one before it serves, and without any the whole journal: the books are the same."""
    expected, writes = undisturbed
    with Store.open("mem://") as store:
        with pytest.raises(scene.StruckError):
            scene.begin(store, tmp_path, KEEPS, strike_at=writes - 2)
        newest = newest_snapshot(store, scene.RUN)
        assert newest is not None
        for slot in store.journal_between(scene.RUN, min(SLOTS), 0):
            document = dict(slot.document)
            if damage == "state":
                document["state"] = {**document["state"], "bars": 1}
            elif damage == "entry":
                document["entry"] = "0" * 64
            else:
                document = {"after": "x"}
            store.add_journal(JournalRecord(scene.RUN, slot.ordinal, "snapshot", slot.time, document))
            remaining = newest_snapshot(store, scene.RUN)
            assert remaining is None or remaining.after != slot.document["after"]
        assert newest_snapshot(store, scene.RUN) is None
        scene.go_on(store, tmp_path)
        assert scene.books(entries_of(store, scene.RUN)) == expected


def test_what_a_session_keeps() -> None:
    """Enough for the account's rules where bars are short, and the view of a replay begins where the session's did."""
    assert shortening(500, 500, "1m") == Shortening(500, 2882)
    assert shortening(500, 500, "4h").bars == 500
    keeps = Shortening(10, 25)
    assert [keeps.first_bar(30, index) for index in (30, 39, 40, 49, 50)] == [0, 0, 16, 16, 26]
