"""A masked headline names nobody, no place, no date and no price level; how many of them do is measured."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cryptosentinel.conversation.headlines import masked_headline
from cryptosentinel.conversation.masking import Mask
from simulator.market.coins import COINS
from simulator.synthetic.generator import NEGATIVE, NEUTRAL, POSITIVE
from tests.labelled_headlines import measured, news_folder

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


@pytest.mark.parametrize("enabled", [True, False])
def test_without_a_mask_a_headline_is_as_it_was(enabled: bool) -> None:
    mask = Mask(COINS_HERE, enabled)
    said = mask.headline("Vitalik Buterin praises BTC again today")
    assert said == ("ENTITY praises C1 again today" if enabled else "Vitalik Buterin praises BTC again today")
    assert mask.hides_levels == enabled


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


@given(st.text(max_size=80), st.sampled_from(sorted(COINS)))
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
    assert (recall.headlines, recall.clean, recall.spans.total(), recall.caught.total()) == (160, 156, 433, 429)
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
