"""Which coin and which date it is stays hidden, in names and in headlines, and comes back as it was."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cryptosentinel.conversation.headlines import masked_headline
from cryptosentinel.conversation.masking import Mask
from simulator.market.coins import COINS as TICKERS
from simulator.synthetic.generator import NEGATIVE, NEUTRAL, POSITIVE
from tests.labelled_headlines import measured, news_folder
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


COINS_HERE = ("BTCUSDT", "ETHUSDT", "XYZUSDT")
# Written by us, in the styles of the feeds.
MASKED = [
    ("Vitalik Buterin shares updated 2024 roadmap for Ethereum", "ENTITY shares updated DATE roadmap for C2"),
    ("Bitcoin Hits $69,000 As Larry Fink Praises Halving", "C1 Hits AMOUNT As ENTITY Praises DATE"),
    ("FTX collapse: Sam Bankman-Fried to testify on Oct. 3, 2023", "ENTITY collapse: ENTITY to testify on DATE"),
    ("Solana's Mert Mumtaz leaves Helius", "COIN's ENTITY leaves ENTITY"),
    ("SOL, ADA and XYZ fall 5%", "COIN, COIN and C3 fall 5%"),
    ("The price could fall in May, may rise by June 30", "The price could fall in DATE, may rise by DATE"),
    ("Coinbase says 120,000 BTC (82m USD) moved since Q1 '24", "ENTITY says NUMBER C1 (AMOUNT) moved since DATE"),
    ("Analysts at Bank of America see a rally", "Analysts at ENTITY see a rally"),
    ("South Korea taxes traders from 1/26", "ENTITY taxes traders from DATE"),
    ("coinbase and binance sued in new york, says gensler", "ENTITY and ENTITY sued in ENTITY, says ENTITY"),
    ("WHY BITCOIN FALLS AFTER TRUMP SPEECH", "WHY C1 FALLS AFTER ENTITY SPEECH"),
    ("MiCA rules and the Merge worry traders", "ENTITY rules and ENTITY worry traders"),
    ("Tether mints 1 billion on block 840,000", "COIN mints NUMBER on block NUMBER"),
    ("Follow @someone on https://x.com/abc for $DOGE news now", "Follow ENTITY on ENTITY for COIN news now"),
    ("Bitcoin price falls again - The Daily Planet", "C1 price falls again"),
    ("Bitcoin Cash is not Bitcoin, says the report", "COIN is not C1, says the report"),
    ("Traders buy the dip as fear grows", "Traders buy the dip as fear grows"),
    ("Miners won't sell: here's why", "Miners won't sell: here's why"),
]


@pytest.mark.parametrize(("headline", "shown"), MASKED)
def test_what_would_tell_the_time_or_the_coin_is_replaced(headline: str, shown: str) -> None:
    assert Mask(COINS_HERE, True).headline(headline) == shown


def test_what_is_all_names_is_withheld() -> None:
    mask = Mask(COINS_HERE, True)
    assert mask.headline("Vitalik Buterin, Charles Hoskinson, Gavin Wood, Joseph Lubin") is None
    assert mask.headline("Биткоин упал ниже сорока тысяч долларов") is None
    assert mask.headline("比特币 价格 今天 再次 下跌 严重") is None


@pytest.mark.parametrize("phrase", POSITIVE + NEGATIVE + NEUTRAL)
def test_generated_headlines_stay_to_the_byte(phrase: str) -> None:
    """Nano has learnt these very words."""
    assert Mask(COINS_HERE, True).headline(phrase) == phrase


INVENTED = st.from_regex(r"[BDFGKLMPRTVZ][aeiou]zq[a-z]{1,5}", fullmatch=True)
ORDINARY = st.sampled_from(
    ("market", "price", "falls", "after", "report", "on", "new", "rules", "while", "traders", "buy", "more", "demand")
)


@given(
    names=st.lists(INVENTED, min_size=1, max_size=3),
    words=st.lists(ORDINARY, min_size=4, max_size=12),
    style=st.sampled_from(["sentence", "title", "small", "shouted"]),
    data=st.data(),
)
def test_a_name_that_nobody_has_heard_of_is_hidden_in_every_style(
    names: list[str], words: list[str], style: str, data: st.DataObject
) -> None:
    places = sorted(data.draw(st.integers(0, len(words))) for _ in names)
    mixed = list(words)
    for place, name in zip(reversed(places), names, strict=True):
        mixed.insert(place, name)
    styles: dict[str, Callable[[str], str]] = {
        "sentence": str,
        "title": str.title,
        "small": str.lower,
        "shouted": str.upper,
    }
    change = styles[style]
    text = " ".join(change(word) if style != "sentence" or word in words else word for word in mixed)
    shown = Mask(COINS_HERE, True).headline(text)
    assert shown is None or not any(name.lower() in shown.lower() for name in names)


@given(
    year=st.integers(2009, 2039),
    month=st.sampled_from(("January", "February", "March", "April", "June", "July", "August", "September", "December")),
    day=st.integers(1, 31),
    price=st.integers(1_000, 999_999),
    form=st.sampled_from(
        [
            "{m} {d}, {y}",
            "{d} {m} {y}",
            "{m} {y}",
            "{y}",
            "{y}-01-{d:02d}",
            "Q1 {y}",
            "${p:,}",
            "USD {p}",
            "{p}",
            "{p:,} coins",
        ]
    ),
)
def test_dates_and_levels_are_hidden(year: int, month: str, day: int, price: int, form: str) -> None:
    told = form.format(y=year, m=month, d=day, p=price)
    shown = Mask(COINS_HERE, True).headline(f"Analyst sees the market at a turn, says {told} will be remembered")
    assert shown is not None and not re.search(r"\d{2}", shown) and month not in shown


@given(st.text(max_size=80), st.sampled_from(sorted(TICKERS)))
@example("", "BTC")
def test_any_text_is_read_and_no_ticker_is_left(text: str, ticker: str) -> None:
    masked = masked_headline(f"{text} {ticker} falls")
    assert len(masked.parts) % 2 == 1
    assert ticker not in re.findall(r"\w+", masked.text({}))
    assert masked is masked_headline(f"{text} {ticker} falls"), "each headline is masked once"


def test_recall_on_headlines_that_were_labelled_by_hand() -> None:
    folder = news_folder()
    if folder is None:
        pytest.skip("no recorded news (set CRYPTOSENTINEL_SHARED to the folder that holds market-data)")
    recall = measured(folder)
    assert (recall.headlines, recall.clean, recall.spans, recall.caught) == (160, 156, 433, 429)
    assert (recall.read_later, recall.clean_later) == (160, 152)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("acme finance (acme) trading down 6.8% over last 7 days", "finance"),
        ("horizon technology finance co. declares monthly rates", "technology"),
        ("sundaram home finance expands its presence", "home"),
        ("proton mail exposing a weakness of encryption", "mail"),
        ("london finance & investment group trading 4.8% higher", "investment"),
        ("adam back says that the price will rise", "back"),
        ("Peace is far amid the Israel-Palestinian conflict, an analyst says", "Palestinian"),
        ("Movement Labs announces a new virtual machine for all of us", "Movement"),
        ("He is known as Mr. Wonderful to those who watch shows", "Wonderful"),
        ("The wallet of ln.tips will shut down its services", "tips"),
        ("btc-e operator pleads guilty to a charge of fraud", "-e"),
        ("the wallets hit 1 million1 million of them are new", "1"),
        ("more than half of the firms use zetazon’s vision pro headset", "pro"),
        ("dow jones industrial average briefly falls amid hopes for the economy", "industrial"),
        ("Zetazon Pink Moon Studios Launch A Free Mode For Their Game", "Moon"),
        ("Voyager Digital Plans to Sell Assets After a Deal Fails", "Digital"),
        ("Broad Ripple community supports a popular baker", "Broad"),
    ],
)
def test_a_name_of_common_words_is_known_by_its_place(text: str, left: str) -> None:
    shown = masked_headline(text).text({})
    assert left not in re.findall(r"[\w-]+", shown.replace("ENTITY-", "ENTITY ").replace("-", " -")), shown


@pytest.mark.parametrize(
    "text",
    [
        "Zetazon launches new products for users as price rises",
        "zetazon users praise new products, says ceo of zetazon",
        "Zetazon Price Falls As Traders Expect New Rules From Zetazon",
    ],
)
def test_what_is_said_of_a_name_stays(text: str) -> None:
    """Words that stand beside many names are no part of one, however the text is written."""
    shown = masked_headline(text).text({})
    assert shown.lower() == re.sub("zetazon", "entity", text.lower()), shown
