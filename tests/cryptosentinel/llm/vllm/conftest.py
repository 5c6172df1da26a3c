"""A mock vLLM server, and an engine at it."""

from collections.abc import Iterator

import pytest

from cryptosentinel.llm.vllm.engine import VllmEngine
from tests.mock_vllm import MockVllm, serving
from tests.vllm_scenes import CODEC, engine_for


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's pauses before it tries again are short."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


@pytest.fixture
def mock() -> Iterator[MockVllm]:
    with serving(CODEC) as server:
        yield server


@pytest.fixture
def engine(mock: MockVllm) -> Iterator[VllmEngine]:
    engine = engine_for(mock)
    mock.bodies.clear()
    yield engine
    engine.close()
