"""The providers that are known by name, and their keys. The settings need this, so no HTTP client is imported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from simulator.errors import UserError

ProviderName = Literal[
    "openai", "anthropic", "google", "openrouter", "ollama", "vllm_chat", "llama_cpp", "lm_studio"
]  # fmt: skip
OWN_KEY = "CRYPTOSENTINEL_API_KEY"  # holds the key of an endpoint that is no provider's
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SECRET_CHARS = 8  # a shorter key, like the "none" that local servers ask for, is not a secret


@dataclass(frozen=True)
class Provider:
    """One provider with an API of the OpenAI kind.

    Attributes:
        url: base of its API.
        key_variables: environment variables that usually hold its key, the likeliest first; none: it needs no key.
        hint: what users most often need to know; a sentence without its end, or nothing.
    """

    name: ProviderName
    title: str
    url: str
    key_variables: tuple[str, ...] = ()
    hint: str = ""

    @property
    def paid(self) -> bool:
        """Whether its answers cost money; your own server's cost none."""
        return bool(self.key_variables)


_ALL = (
    Provider("openai", "OpenAI", "https://api.openai.com/v1", ("OPENAI_API_KEY",)),
    Provider("anthropic", "Anthropic", "https://api.anthropic.com/v1", ("ANTHROPIC_API_KEY",)),
    Provider(
        "google", "Google", "https://generativelanguage.googleapis.com/v1beta/openai",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
    Provider(
        "openrouter", "OpenRouter", "https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",),
        hint="models are named VENDOR/MODEL there",
    ),
    Provider(
        "ollama", "Ollama", "http://localhost:11434/v1",
        hint="it silently cuts a prompt longer than its context: start it with OLLAMA_CONTEXT_LENGTH=32768",
    ),
    Provider(
        "vllm_chat", "vLLM", "http://localhost:8000/v1",
        hint="it calls tools when started with --enable-auto-tool-choice --tool-call-parser NAME",
    ),
    Provider(
        "llama_cpp", "llama.cpp", "http://localhost:8080/v1", hint="llama-server calls tools when started with --jinja"
    ),
    Provider("lm_studio", "LM Studio", "http://localhost:1234/v1", hint="start its server on the Developer tab"),
)  # fmt: skip
PROVIDERS: dict[str, Provider] = {one.name: one for one in _ALL}


def provider_at(url: str) -> Provider | None:
    """The provider whose own host is in `url`; None for any other, and for this machine."""
    host = urlsplit(url).hostname
    return next((one for one in _ALL if one.paid and urlsplit(one.url).hostname == host), None)


def check_url(url: str) -> str:
    """`url` as the base of an endpoint, without a slash at its end. Raises `UserError` for one that cannot be used."""
    form = "write it like http://localhost:11434/v1"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"the endpoint's URL must name scheme and host: {form}")
    # These could hold a secret, and the URL is shown.
    if "@" in parts.netloc:
        raise UserError(f"the endpoint's URL names a user or a password: leave out what stands before the '@', {form}")
    if parts.query or parts.fragment:
        raise UserError(f"the endpoint's URL has something behind '?' or '#': leave it out, {form}")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether `url` names this machine."""
    try:
        return urlsplit(url).hostname in _LOOPBACK
    except ValueError:
        return False


def is_secret(key: str) -> bool:
    """Whether `key` must never be shown."""
    return len(key) >= _SECRET_CHARS


def key_variable_of(provider: Provider | None) -> str:
    """The environment variable that holds the key for `provider`, the first of its usual ones that is set; for an
    address that is not a provider's `OWN_KEY` where it is set; "" for an endpoint without a key."""
    usual = (OWN_KEY,) if provider is None else provider.key_variables
    there = next((name for name in usual if os.environ.get(name, "").strip()), "")
    return there or (usual[0] if provider is not None and usual else "")


def read_key(variable: str, url: str) -> str:
    """The key that the environment holds for the endpoint at `url`, "" where `variable` is "".

    Raises `UserError`, which does not show the key: it is not set, cannot be sent, or is a provider's and `url` is
    another provider's or would carry it unencrypted over a network.
    """
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(
            f"the environment variable {variable}, which should hold the endpoint's key, is not set: export it, or "
            f"use engine.kind=openai_api for an endpoint without a key, or with one in {OWN_KEY}"
        )
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"the environment variable {variable} contains characters that no key has: set it again")
    owner, there = next((one for one in _ALL if variable in one.key_variables), None), provider_at(url)
    unencrypted = urlsplit(url).scheme == "http" and not is_loopback(url)
    if owner is not None and (unencrypted or there not in (None, owner)):
        problem = "would carry it unencrypted" if there in (None, owner) else "is another provider's"
        raise UserError(
            f"{variable} holds a key of {owner.title}, and {url} {problem}: nothing was sent; "
            f"use https, or engine.kind=openai_api with that server's own key in {OWN_KEY}"
        )
    return key
