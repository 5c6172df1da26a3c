"""The shipped price table: every row, dated names, vendors of OpenRouter, and what is not known."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from backend.config import prices
from backend.config.load import load_config
from backend.config.prices import prices_date, shipped_price
from cryptosentinel.conversation.budget import Price
from cryptosentinel.llm.endpoint.providers import PROVIDERS
from cryptosentinel.llm.engine import Usage
from simulator.market.timeframes import parse_time

TABLE = tomllib.loads(Path(prices.__file__).with_name("prices.toml").read_text())
ROWS = [
    (provider, model, row) for provider, rows in TABLE.items() if isinstance(rows, dict) for model, row in rows.items()
]


def test_the_table_says_its_date_and_knows_providers_only() -> None:
    assert parse_time(prices_date()) > 0
    assert {provider for provider, _, _ in ROWS} <= set(PROVIDERS) and len(ROWS) > 20


@pytest.mark.parametrize(("provider", "model", "row"), ROWS)
def test_a_row_is_a_sensible_price(provider: str, model: str, row: list[float]) -> None:
    price = shipped_price(provider, model)
    assert price == Price(*row) and 0 < price.cached <= price.prompt < price.sampled < 1000
    assert shipped_price("openrouter", f"{provider}/{model}") == price
    assert shipped_price(provider, f"{model}-2025-11-01") == price


def test_what_is_not_known_has_no_price() -> None:
    assert shipped_price("openai", "gpt-99") is None and shipped_price("nobody", "gpt-4.1") is None
    assert shipped_price("openai", "gpt-4.1-minimal") is None  # no prefix is taken for the whole
    assert shipped_price("openrouter", "meta/llama:free") == Price()
    assert shipped_price("openrouter", "anthropic/claude-opus-4.5") == shipped_price("anthropic", "claude-opus-4-5")


@pytest.mark.parametrize(
    ("overrides", "price"),
    [
        (["engine.kind=openai"], Price(0.4, 0.1, 1.6)),
        (["engine.kind=openai_api"], Price(0.4, 0.1, 1.6)),
        (["engine.kind=openai", "engine.url=https://my-proxy.example/v1"], None),
        (["engine.kind=openai_api", "engine.url=https://my-proxy.example/v1"], None),
        (["engine.kind=openai_api", "engine.url=http://localhost:1/v1"], Price()),
        (["engine.kind=ollama"], Price()),
        (["engine.kind=vllm_chat", "engine.url=http://10.0.0.5:8000/v1"], Price()),
        (["engine.kind=vllm_chat"], Price()),
        ([], Price()),
    ],
)
def test_a_price_is_of_a_model_at_its_provider(overrides: list[str], price: Price | None) -> None:
    assert load_config("demo", overrides).engine.price("gpt-4.1-mini") == price


def test_what_is_read_from_a_cache_has_its_own_price() -> None:
    usage = Usage(prompt=1000, cached=600, sampled=100)
    assert Price(2.0, 0.5, 8.0).of(usage) == pytest.approx((400 * 2.0 + 600 * 0.5 + 100 * 8.0) / 1e6)
