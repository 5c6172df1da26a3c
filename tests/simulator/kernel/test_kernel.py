"""The kernel alone: an account does not notice its neighbours, and the log may be read in any portions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.arrays import FloatArray
from simulator.exchange.costs import Costs
from simulator.exchange.rules import MarginTier, SymbolRules
from simulator.exchange.tape import terms_of
from simulator.exchange.venue import Venue
from simulator.kernel import jit as compiling
from simulator.kernel import kernel
from simulator.kernel import layout as at
from simulator.kernel.jit import compiled, is_compiled
from simulator.kernel.layout import KernelState, Tape, Terms

HOUR = 3_600_000
SYMBOLS = ("A", "B", "C")
TERMS = terms_of(
    SYMBOLS, ("perpetual", "spot", "perpetual"), HOUR,
    Costs(0.001, participation=0.5, impact=1.0), 3.0,
    Venue(
        {"A": SymbolRules(tiers=(MarginTier(0.0, 0.01, 20.0), MarginTier(1e3, 0.05, 5.0)), liquidation_fee=0.01),
         "B": SymbolRules(kind="spot", lot=0.001)},
        {"C": 2.0},
    ),
)  # fmt: skip


def terms_for(symbols: int) -> Terms:
    return TERMS._replace(rules=TERMS.rules[:symbols].copy())


def random_tape(rng: np.random.Generator, paths: int, bars: int, symbols: int) -> Tape:
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.05, (paths, bars, symbols)), axis=1))
    first = close * np.exp(rng.normal(0.0, 0.03, close.shape))
    high, low = np.maximum(close, first) * 1.02, np.minimum(close, first) * 0.98
    absent = rng.random(close.shape) < 0.1
    for array in (first, high, low, close):
        array[absent] = np.nan
    volume = rng.uniform(0.0, 20.0, close.shape)
    spread = rng.uniform(0.0, 0.01, close.shape)
    inside = rng.normal(0.0, 0.01, close.shape) * (rng.random(close.shape) < 0.2)
    settled = rng.normal(0.0, 0.01, close.shape) * (rng.random(close.shape) < 0.2)
    missing = np.full(close.shape, 0.001) * (rng.random(close.shape) < 0.2)
    sigma = np.full(close.shape, 0.05)
    delisted = np.full(symbols, at.NEVER)
    for s in np.flatnonzero(rng.random(symbols) < 0.3):
        delisted[s] = int(rng.integers(0, bars))
        for array in (first, high, low, close):
            array[:, delisted[s] :, s] = np.nan
    return Tape(first, high, low, close, volume, spread, low, high, close, sigma, inside, settled, missing, delisted)


def path_of(tape: Tape, n: int) -> Tape:
    """One account's own path."""
    own = {name: getattr(tape, name)[n : n + 1] for name in Tape._fields if name != "delisted"}
    return Tape(**own, delisted=tape.delisted)


def random_state(rng: np.random.Generator, accounts: int, symbols: int, rows: int, bars: int) -> KernelState:
    state = at.new_state(accounts, symbols, rows, 1_000.0)
    state.accounts[:, at.TAKER_FEE] = 0.001
    state.positions[:, :, at.MARK] = 100.0
    for order in state.orders.reshape(-1, at.ORDER_FIELDS):
        quantity = float(rng.normal(0.0, 10.0))
        side = float(np.sign(quantity))
        order[at.LIVE], order[at.ORDER_ID] = 1.0, rng.integers(0, 1000)
        order[at.SYMBOL], order[at.TYPE] = rng.integers(0, symbols), rng.integers(0, 6)
        order[at.AMOUNT], order[at.TRAIL] = quantity, rng.uniform(0.01, 0.2)
        order[at.LIMIT], order[at.TRIGGER] = 100.0 * rng.uniform(0.8, 1.2), 100.0 * rng.uniform(0.8, 1.2)
        order[at.ORDER_STOP] = 100.0 * (1.0 - side * rng.uniform(0.0, 0.2))
        order[at.ORDER_TARGET] = 100.0 * (1.0 + side * rng.uniform(0.0, 0.2))
        order[at.ACTIVE] = rng.integers(0, bars)
        order[at.EXPIRES] = order[at.ACTIVE] + rng.integers(1, bars)
        order[at.CAUSE] = at.DROP_EXPIRED
        order[at.IN_FORCE] = rng.integers(0, 4) if order[at.TYPE] in (at.LIMIT_ORDER, at.STOP_LIMIT_ORDER) else at.GTC
        order[at.REDUCE_ONLY] = rng.random() < 0.2
        order[at.GROUP], order[at.HOLD], order[at.MET] = rng.integers(0, 3), rng.integers(0, 5), -1.0
    state.accounts[:, at.WAITING] = rows
    return state


def copy_of(state: KernelState, rows: slice = slice(None)) -> KernelState:
    return KernelState(*(array[rows].copy() for array in state))


def advance(
    tape: Tape, state: KernelState, log_room: int, first_bar: int = 0, targets: FloatArray = kernel.NO_TARGETS
) -> tuple[FloatArray, FloatArray]:
    """Run to the end of the tape; returns all log rows and the equities."""
    bars = tape.open.shape[1]
    equity = np.zeros((len(state.accounts), bars))
    log = at.new_log(log_room)
    pieces, row = [], 0
    while row < bars:
        row = kernel.advance(
            tape, terms_for(tape.open.shape[2]), state, log, row, bars, first_bar, at.log_rows(state),
            targets[:, row:] if targets.shape[1] else targets, equity, kernel.NO_NOTIONAL,
        )  # fmt: skip
        pieces.append(log.rows[: log.used[0]].copy())
    return np.concatenate(pieces), equity


def random_targets(rng: np.random.Generator, accounts: int, bars: int, symbols: int) -> FloatArray:
    targets = rng.uniform(-1.0, 1.0, (accounts, bars, symbols))
    targets[rng.random(targets.shape) < 0.7] = np.nan
    return targets


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), accounts=st.integers(2, 6), symbols=st.integers(1, 3), shared=st.booleans(),
    orders=st.sampled_from([0, 1, 5]),
)  # fmt: skip
def test_an_account_alone_equals_itself_in_a_batch(
    seed: int, accounts: int, symbols: int, shared: bool, orders: int
) -> None:
    """Alone it also drifts through quiet bars by another way, see `simulator.kernel.kernel`."""
    rng = np.random.default_rng(seed)
    tape = random_tape(rng, 1 if shared else accounts, 25, symbols)
    start, targets = random_state(rng, accounts, symbols, orders, 12), random_targets(rng, accounts, 25, symbols)
    batch = copy_of(start)
    log, equity = advance(tape, batch, 10_000, targets=targets)
    for n in range(accounts):
        alone = copy_of(start, slice(n, n + 1))
        own = tape if shared else path_of(tape, n)
        own_log, own_equity = advance(own, alone, 10_000, targets=targets[n : n + 1])
        for mine, whole in zip(alone, batch, strict=True):
            assert mine.tobytes() == whole[n : n + 1].tobytes()
        assert own_equity.tobytes() == equity[n : n + 1].tobytes()
        part = log[log[:, at.LOG_ACCOUNT] == n]
        part[:, at.LOG_ACCOUNT] = 0.0
        assert own_log.tobytes() == part.tobytes()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), symbols=st.integers(1, 3))
def test_a_small_log_loses_nothing(seed: int, symbols: int) -> None:
    rng = np.random.default_rng(seed)
    tape = random_tape(rng, 1, 20, symbols)
    start = random_state(rng, 2, symbols, 6, 20)
    roomy, tight, silent = copy_of(start), copy_of(start), copy_of(start)
    log, equity = advance(tape, roomy, 10_000)
    pieces, tight_equity = advance(tape, tight, at.log_rows(start))
    nothing, silent_equity = advance(tape, silent, 0)
    assert len(log) > 0
    assert pieces.tobytes() == log.tobytes()
    assert len(nothing) == 0
    assert equity.tobytes() == tight_equity.tobytes() == silent_equity.tobytes()
    assert roomy.accounts.tobytes() == tight.accounts.tobytes() == silent.accounts.tobytes()


def test_bars_are_named_from_the_first_bar() -> None:
    tape = random_tape(np.random.default_rng(3), 1, 10, 1)
    for array in (tape.open, tape.high, tape.low, tape.close, tape.volume):
        array[:] = 100.0
    state = at.new_state(1, 1, 1, 1_000.0)
    order = state.orders[0, 0]
    order[at.LIVE], order[at.ORDER_ID], order[at.AMOUNT], order[at.ACTIVE] = 1.0, 7.0, 1.0, 503
    order[[at.ORDER_STOP, at.ORDER_TARGET]], order[at.EXPIRES], order[at.MET] = np.nan, np.inf, -1.0
    state.accounts[0, at.WAITING] = 1
    log, _ = advance(tape, state, 100, first_bar=500)
    fills = log[log[:, at.KIND] == at.FILL_ORDER]
    assert fills[:, [at.LOG_BAR, at.LOG_ORDER]].tolist() == [[503.0, 7.0]]


def test_compiles_without_a_place_for_the_cache() -> None:
    """A function without a source file is such a case: numba cannot cache it anywhere."""
    space: dict[str, object] = {}
    exec("def double(x):\n    return 2 * x\n", space)
    double = space["double"]
    assert callable(double)
    assert compiled(double)(21) == 42
    assert not is_compiled(compiled(double))


def test_cached_code_is_that_of_the_whole_package() -> None:
    """What numba keeps on disk is stamped with every compiled module, since it holds the code of its callees."""
    stamp = kernel.advance._cache._cache_file._source_stamp  # type: ignore[attr-defined]  # numba has no public name for it
    assert stamp == compiling._package_stamp()


def test_cached_code_of_a_former_version_is_never_read() -> None:
    """Its index names classes that may be gone, and to read it would raise: numba compares the version first."""
    file = kernel.advance._cache._cache_file  # type: ignore[attr-defined]  # numba has no public name for it
    former = type(file)(file._cache_path, "former_index", "former stamp")
    former.save(("a signature",), "code")
    path = Path(former._index_path)
    try:
        whole = path.read_bytes()
        path.write_bytes(whole[: whole.index(b"former stamp")] + b"not to be unpickled")
        former._version = file._version
        assert former._load_index() == {}
    finally:
        for left in path.parent.glob("former_index*"):
            left.unlink()
