"""Keys: the provider's usual variable, and where none is sent."""

from __future__ import annotations

import pytest

from backend.config.load import load_config
from backend.config.schema import ConfigError
from cryptosentinel.llm.endpoint.providers import OWN_KEY, PROVIDERS, key_variable_of, read_key
from simulator.errors import UserError


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_sets_engine_address_and_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in PROVIDERS.values():
        for variable in one.key_variables:
            monkeypatch.delenv(variable, raising=False)
    config = load_config("demo", [f"engine.kind={name}", "engine.model=m"]).engine
    provider = PROVIDERS[name]
    assert config.at_endpoint and config.endpoint is provider
    expected = provider.key_variables[0] if provider.key_variables else ""
    assert key_variable_of(config.endpoint) == expected
    assert bool(provider.key_variables) == provider.paid == provider.url.startswith("https://")
    if provider.paid:
        with pytest.raises(UserError, match=f"{expected}, which should hold the endpoint's key, is not set"):
            read_key(expected, provider.url)


def test_the_second_usual_variable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "AIzaAAAAAAAAAAAAAAAA")
    assert key_variable_of(PROVIDERS["google"]) == "GOOGLE_API_KEY"


def test_another_address_gets_no_key_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-AAAAAAAAAAAAAAAA")
    monkeypatch.delenv(OWN_KEY, raising=False)
    config = load_config("demo", ["engine.kind=openai_api", "engine.url=http://elsewhere/v1"]).engine
    assert config.endpoint is None and key_variable_of(config.endpoint) == ""
    monkeypatch.setenv(OWN_KEY, "sk-1234567890")
    assert key_variable_of(config.endpoint) == OWN_KEY
    config = load_config("demo", ["engine.kind=openai_api", "engine.url=https://api.openai.com/v1"]).engine
    assert config.endpoint is PROVIDERS["openai"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://elsewhere/v1", "would carry it unencrypted"),
        ("http://api.openai.com/v1", "would carry it unencrypted"),
        ("https://api.anthropic.com/v1", "is another provider's"),
        ("https://gateway.example/v1", ""),
        ("http://localhost:8000/v1", ""),
    ],
)
def test_a_providers_key_goes_to_no_other_provider_and_nowhere_unencrypted(
    url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-AAAAAAAAAAAAAAAA")
    if not words:
        assert read_key("OPENAI_API_KEY", url) == "sk-AAAAAAAAAAAAAAAA"
        return
    with pytest.raises(UserError, match=words) as refused:
        read_key("OPENAI_API_KEY", url)
    assert "sk-A" not in str(refused.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("engine.extra_body={api_key='x'}", "would keep a secret"),
        ("engine.extra_body={temperature=2}", "decided by other settings"),
        ("engine.kind='mistral'", "'mistral' is not a known engine; there are local, vllm, openai_api, openai"),
    ],
)
def test_settings_that_make_no_sense(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config("demo", ["engine.kind=openai", override])
