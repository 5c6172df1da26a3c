"""Engines before a local endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cryptosentinel.llm.endpoint.engine import EndpointEngine
from tests.endpoint_scenes import KEY, VARIABLE, Make
from tests.mock_endpoint import MODEL, Endpoint
from tests.team_scenes import codec


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes engines that are closed in the end, with a key in the environment. The SDK's pauses are short."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setenv(VARIABLE, KEY)
    made: list[EndpointEngine] = []

    def build(endpoint: Endpoint | str, **settings: Any) -> EndpointEngine:
        url = endpoint if isinstance(endpoint, str) else endpoint.url
        usual: dict[str, Any] = {"model": MODEL, "key_variable": VARIABLE, "timeout": 20.0, "retries": 2}
        made.append(EndpointEngine(codec(), url, **(usual | settings)))
        return made[-1]

    yield build
    for engine in made:
        engine.close()
