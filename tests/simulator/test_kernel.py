"""The kernel alone: an account does not notice its neighbours, and the log may be read in any portions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import kernel
from simulator.compiled import compiled


def random_tape(rng: np.random.Generator, paths: int, bars: int, symbols: int) -> kernel.FloatArray:
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.05, (paths, bars, symbols)), axis=1))
    tape = np.zeros((paths, bars, symbols, kernel.TAPE_FIELDS))
    tape[..., kernel.CLOSE] = close
    tape[..., kernel.OPEN] = close * np.exp(rng.normal(0.0, 0.03, close.shape))
    tape[..., kernel.HIGH] = np.maximum(close, tape[..., kernel.OPEN]) * 1.02
    tape[..., kernel.LOW] = np.minimum(close, tape[..., kernel.OPEN]) * 0.98
    tape[..., kernel.HALF_SPREAD] = rng.uniform(0.0, 0.01, close.shape)
    tape[..., kernel.FUNDING_INSIDE] = rng.normal(0.0, 0.01, close.shape) * (rng.random(close.shape) < 0.2)
    tape[..., kernel.FUNDING_CLOSE] = rng.normal(0.0, 0.01, close.shape) * (rng.random(close.shape) < 0.2)
    tape[rng.random(close.shape) < 0.1, : kernel.CLOSE + 1] = np.nan
    return tape


def random_state(rng: np.random.Generator, accounts: int, symbols: int, rows: int, bars: int) -> kernel.State:
    state = kernel.new_state(accounts, symbols, rows, 1_000.0)
    state.positions[:, :, kernel.MARK] = 100.0
    for n in range(accounts):
        for row in range(rows):
            quantity, price = rng.normal(0.0, 10.0), 100.0
            side = np.sign(quantity)
            state.orders[n, row] = (
                1.0, row, rng.integers(0, symbols), quantity, price * (1 - side * rng.uniform(0.0, 0.2)),
                price * (1 + side * rng.uniform(0.0, 0.2)), rng.integers(0, bars), rng.random() < 0.2, 0.0,
            )  # fmt: skip
    state.accounts[:, kernel.PENDING] = rows
    return state


def copy_of(state: kernel.State, rows: slice = slice(None)) -> kernel.State:
    return kernel.State(state.accounts[rows].copy(), state.positions[rows].copy(), state.orders[rows].copy())


def advance(
    tape: kernel.FloatArray, state: kernel.State, log_room: int, first_bar: int = 0
) -> tuple[kernel.FloatArray, kernel.FloatArray]:
    """Run to the end of the tape; returns all log rows and the record."""
    record = np.zeros((len(state.accounts), tape.shape[1], 1 + tape.shape[2]))
    log = np.zeros((log_room, kernel.LOG_FIELDS))
    pieces, at = [], 0
    while at < tape.shape[1]:
        at, logged = kernel.advance(
            tape, at, tape.shape[1], first_bar, state.accounts, state.positions, state.orders, log,
            kernel.log_rows(state), record, 0.001, 1.0, 3.0,
        )  # fmt: skip
        pieces.append(log[:logged].copy())
    return np.concatenate(pieces), record


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), accounts=st.integers(2, 6), symbols=st.integers(1, 3), shared=st.booleans())
def test_an_account_alone_equals_itself_in_a_batch(seed: int, accounts: int, symbols: int, shared: bool) -> None:
    rng = np.random.default_rng(seed)
    tape = random_tape(rng, 1 if shared else accounts, 12, symbols)
    start = random_state(rng, accounts, symbols, 5, 12)
    batch = copy_of(start)
    log, record = advance(tape, batch, 10_000)
    for n in range(accounts):
        alone = copy_of(start, slice(n, n + 1))
        own_log, own_record = advance(tape if shared else tape[n : n + 1], alone, 10_000)
        assert alone.accounts.tobytes() == batch.accounts[n : n + 1].tobytes()
        assert alone.positions.tobytes() == batch.positions[n : n + 1].tobytes()
        assert alone.orders.tobytes() == batch.orders[n : n + 1].tobytes()
        assert own_record.tobytes() == record[n : n + 1].tobytes()
        mine = log[log[:, kernel.LOG_ACCOUNT] == n]
        mine[:, kernel.LOG_ACCOUNT] = 0.0
        assert own_log.tobytes() == mine.tobytes()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), symbols=st.integers(1, 3))
def test_a_small_log_loses_nothing(seed: int, symbols: int) -> None:
    rng = np.random.default_rng(seed)
    tape = random_tape(rng, 1, 20, symbols)
    start = random_state(rng, 2, symbols, 6, 20)
    roomy, tight, silent = copy_of(start), copy_of(start), copy_of(start)
    log, record = advance(tape, roomy, 10_000)
    pieces, tight_record = advance(tape, tight, kernel.log_rows(start))
    nothing, silent_record = advance(tape, silent, 0)
    assert len(log) > 0
    assert pieces.tobytes() == log.tobytes()
    assert len(nothing) == 0
    assert record.tobytes() == tight_record.tobytes() == silent_record.tobytes()
    assert roomy.accounts.tobytes() == tight.accounts.tobytes() == silent.accounts.tobytes()


def test_bars_are_named_from_the_first_bar() -> None:
    tape = random_tape(np.random.default_rng(1), 1, 10, 1)
    tape[0, :, 0, kernel.CLOSE] = np.nan_to_num(tape[0, :, 0, kernel.CLOSE], nan=100.0)
    tape[0, :, 0, kernel.OPEN] = 100.0
    state = kernel.new_state(1, 1, 1, 1_000.0)
    state.orders[0, 0] = (1.0, 7.0, 0.0, 1.0, np.nan, np.nan, 503, 0.0, 0.0)
    state.accounts[0, kernel.PENDING] = 1
    log, _ = advance(tape, state, 100, first_bar=500)
    fills = log[log[:, kernel.KIND] == kernel.FILL_ORDER]
    assert fills[:, [kernel.LOG_BAR, kernel.LOG_ORDER]].tolist() == [[503.0, 7.0]]


def test_compiles_without_a_place_for_the_cache() -> None:
    """A function without a source file is such a case: numba cannot cache it anywhere."""
    space: dict[str, object] = {}
    exec("def double(x):\n    return 2 * x\n", space)
    double = space["double"]
    assert callable(double)
    assert compiled(double)(21) == 42
