"""The providers that are known by name: their address, the variable of their key, and which API they speak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

ProviderName = Literal["openai", "anthropic", "google", "openrouter", "ollama", "vllm", "llama_cpp"]
Api = Literal["openai_api", "anthropic_api"]


@dataclass(frozen=True)
class Provider:
    """One provider.

    Attributes:
        api: the engine that speaks with it.
        url: base of its API.
        key_variables: environment variables that usually hold its key, the likeliest first; none: it wants no key.
        key_prefixes: how its keys begin.
        paid: whether its answers cost money; a server of one's own costs none.
        newer_limit: whether the limit of an answer's tokens is called `max_completion_tokens` there.
        hint: what a user mostly has to know of it; a sentence without its end, or nothing.
    """

    name: ProviderName
    title: str
    api: Api
    url: str
    key_variables: tuple[str, ...] = ()
    key_prefixes: tuple[str, ...] = ()
    paid: bool = False
    newer_limit: bool = False
    hint: str = ""


_ALL = (
    Provider(
        "openai", "OpenAI", "openai_api", "https://api.openai.com/v1", ("OPENAI_API_KEY",),
        ("sk-", "sk-proj-", "sk-svcacct-", "sk-admin-"),
        paid=True, newer_limit=True,
    ),
    Provider(
        "anthropic", "Anthropic", "anthropic_api", "https://api.anthropic.com", ("ANTHROPIC_API_KEY",), ("sk-ant-",),
        paid=True,
    ),
    Provider(
        "google", "Google", "openai_api", "https://generativelanguage.googleapis.com/v1beta/openai",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"), ("AIza",), paid=True,
    ),
    Provider(
        "openrouter", "OpenRouter", "openai_api", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",), ("sk-or-",),
        paid=True, hint="models are named VENDOR/MODEL there",
    ),
    Provider(
        "ollama", "Ollama", "openai_api", "http://localhost:11434/v1",
        hint="a prompt longer than its context is cut without a word: start it with OLLAMA_CONTEXT_LENGTH=32768",
    ),
    Provider(
        "vllm", "vLLM", "openai_api", "http://localhost:8000/v1",
        hint="it calls tools when started with --enable-auto-tool-choice --tool-call-parser NAME",
    ),
    Provider(
        "llama_cpp", "llama.cpp", "openai_api", "http://localhost:8080/v1",
        hint="llama-server calls tools when started with --jinja",
    ),
)  # fmt: skip
PROVIDERS: dict[str, Provider] = {one.name: one for one in _ALL}


def provider_at(url: str) -> Provider | None:
    """The provider whose own host `url` names; None for any other, and for this very machine."""
    host = urlsplit(url).hostname
    return next((one for one in _ALL if one.paid and urlsplit(one.url).hostname == host), None)


def owner_of(key: str) -> Provider | None:
    """The provider whose keys look like `key`; None where nobody's do."""
    fitting = [(len(prefix), one) for one in _ALL for prefix in one.key_prefixes if key.startswith(prefix)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None
