"""Closed candles come out once and in order, whatever order they come in."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.live.exchange_feed.closed_candles import CandleRow, ClosedCandles

MINUTE = 60_000


def row(place: int, close: float = 2.0) -> CandleRow:
    return (place * MINUTE, 1.0, 3.0, 0.5, close, 10.0)


@given(st.permutations(range(12)), st.lists(st.integers(0, 11)), st.sets(st.integers(0, 11)))
def test_any_order_with_copies_and_holes_gives_each_once_and_in_order(
    order: list[int], copies: list[int], absent: set[int]
) -> None:
    ledger, given_ = ClosedCandles(MINUTE, 0), list[CandleRow]()
    for place in [*order, *copies]:
        if place not in absent:
            ledger.offer(row(place))
            given_ += ledger.ready()
    while ledger.missing(12 * MINUTE):
        ledger.pass_over(ledger.missing(12 * MINUTE)[-1] + MINUTE)
        given_ += ledger.ready()
    assert given_ == [row(place) for place in range(12) if place not in absent]


def test_what_is_missing_ends_at_what_waits_and_at_now() -> None:
    ledger = ClosedCandles(MINUTE, 0)
    assert list(ledger.missing(2 * MINUTE + 5)) == [0, MINUTE]
    assert ledger.offer(row(1)) == "early"
    assert list(ledger.missing(9 * MINUTE)) == [0]
    assert ledger.offer(row(0)) == "next"
    assert [one[0] for one in ledger.ready()] == [0, MINUTE]
    assert list(ledger.missing(2 * MINUTE + 5)) == []


def test_a_candle_that_comes_again_is_a_duplicate_and_one_that_differs_a_correction() -> None:
    ledger = ClosedCandles(MINUTE, 0)
    assert ledger.offer(row(0)) == "next"
    ledger.ready()
    assert ledger.offer(row(0)) == "duplicate"
    assert ledger.offer(row(0, close=2.5)) == "correction"
    assert ledger.offer(row(0, close=2.5)) == "duplicate"
    assert ledger.ready() == []
    assert ClosedCandles(MINUTE, 5 * MINUTE).offer(row(0)) == "too_late"


def test_a_start_within_a_bar_begins_with_the_next() -> None:
    assert ClosedCandles(MINUTE, 30_000).expected == MINUTE
