"""Which coin and which date it is stays hidden, and comes back as it was."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.conversation.masking import Mask
from tests.team_scenes import COINS, SayingEngine, codec, decide, execution, submit

SYMBOLS = st.lists(st.text("ABCXYZ", min_size=1, max_size=5).map(lambda base: base + "USDT"), min_size=1, unique=True)
REAL = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "LINKUSDT", "BCHUSDT")


@given(symbols=SYMBOLS, enabled=st.booleans())
def test_names_go_both_ways(symbols: list[str], enabled: bool) -> None:
    mask = Mask(symbols, enabled)
    assert [mask.symbol(mask.alias(symbol)) for symbol in symbols] == symbols
    assert len({mask.alias(symbol) for symbol in symbols}) == len(symbols)
    assert mask.symbol("nobody") is None
    if not enabled:
        assert [mask.alias(symbol) for symbol in symbols] == symbols
        assert mask.text(f"about {symbols[0]}") == f"about {symbols[0]}"


@given(symbols=SYMBOLS, words=st.lists(st.sampled_from(["falls", "USD", "C1", "up 5%", "—"]), max_size=4))
def test_no_symbol_and_no_base_coin_is_left_in_a_text(symbols: list[str], words: list[str]) -> None:
    mask = Mask(symbols, True)
    said = " ".join(f"{word} {symbol} {symbol.removesuffix('USDT')}," for word in [*words, "x"] for symbol in symbols)
    spoken = set(re.findall(r"\w+", mask.text(said)))
    assert not spoken & {*symbols, *(symbol.removesuffix("USDT") for symbol in symbols)}
    assert {mask.alias(symbol) for symbol in symbols} <= spoken


@pytest.mark.parametrize(
    ("headline", "masked"),
    [
        ("BTC beats ETH", "C1 beats C2"),
        ("$BTC/USDT: (ETH)", "$C1/USDT: (C2)"),
        ("Bitcoin's rally; bitcoin and ETHEREUM", "C1's rally; C1 and C2"),
        ("Bitcoin Cash is not Bitcoin", "C5 is not C1"),
        ("SOLD OUT by ETHICAL miners", "SOLD OUT by ETHICAL miners"),
        ("a link to SOL, LINK and chainlink", "a link to C3, C4 and C4"),
        ("WBTCUSDT is another coin", "WBTCUSDT is another coin"),
        ("", ""),
    ],
)
def test_headlines(headline: str, masked: str) -> None:
    assert Mask(REAL, True).text(headline) == masked


def test_a_name_that_looks_like_an_alias_is_not_replaced_twice() -> None:
    assert Mask(("XUSDT", "C1USDT"), True).text("X and C1") == "C1 and C2"


def test_dates() -> None:
    assert Mask(REAL, True).date(1_600_000_000_000) == "-"
    assert Mask(REAL, False).date(1_600_000_000_000) == "2020-09-13 12:26"


@pytest.mark.parametrize("masked", [True, False])
def test_what_a_masked_team_reads_names_no_coin_and_no_date(masked: bool) -> None:
    ask = (
        submit()
        .replace("submit_decision", "consult_trader")
        .replace('"positions": []', f'"symbol": "{"C2" if masked else COINS[1]}", "side": "long", "exposure": 1.0')
    )
    engine = SayingEngine({"manager": [ask, submit()], "trader": [execution()]})
    decide(engine, mask_symbols=masked)
    read = "\n".join(
        turn["content"]
        for request in engine.requests
        for turn in codec().messages(request.ids)
        if turn["role"] in ("user", "tool")
    )
    assert any(coin in read or coin[:3] in read for coin in COINS) is not masked
    assert ("2020" in read) is not masked
    assert ("C2" in read) is masked


LIVE = ("BTC/USDT", "ETH/USDT:USDT")


def test_symbols_as_an_exchange_writes_them() -> None:
    """Unmasked they are shown as they are, and a model may name them; masked, their coins are in no text."""
    shown = Mask(LIVE, enabled=False)
    assert [shown.alias(one) for one in LIVE] == list(LIVE) == [shown.symbol(one) for one in LIVE]
    assert shown.text("BTC/USDT up") == "BTC/USDT up"
    hidden = Mask(LIVE, enabled=True)
    assert hidden.text("BTC/USDT and BTC, ETH/USDT:USDT and Ethereum") == "C1 and C1, C2 and C2"
    assert hidden.headline("BTC rises, ETH falls") == "C1 rises, C2 falls"
