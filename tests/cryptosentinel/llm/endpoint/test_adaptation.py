"""What an endpoint refuses: whatever it says, it is asked again only so often, and never without what was asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.llm.endpoint.adaptation import LIMITS, Adaptation, Refusal, is_final

WORDS = (
    "max_tokens", "max_completion_tokens", "temperature", "seed", "parallel_tool_calls", "tool_choice", "tools",
    "response_format", "top_p", "cache_control", "does not support tools", "tool use", "unsupported", "too large",
    "at most 900", "maximum context length is 4096", "3000 in the messages", "unknown", "200", "reasoning_effort",
)  # fmt: skip


def body_of(adaptation: Adaptation, room: int) -> dict[str, Any]:
    """A request as the engine builds it."""
    sent: dict[str, Any] = {"messages": [], "temperature": 0.5, "seed": 1}
    if "tools" not in adaptation.refused:
        sent |= {"tools": [], "parallel_tool_calls": False, "tool_choice": "required"}
    sent = {name: value for name, value in sent.items() if name not in adaptation.refused}
    sent |= dict.fromkeys(adaptation.chosen, 1)
    sent[adaptation.limit_name] = min(room, adaptation.cap or room)
    return sent


@given(
    text=st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join),
    status=st.sampled_from([400, 404, 422, 500, 401, 429, 503]),
    chosen=st.sets(st.sampled_from(["top_p", "reasoning_effort"])),
    room=st.integers(16, 10_000),
)
def test_an_endpoint_that_refuses_whatever_is_sent_is_left(text: str, status: int, chosen: set[str], room: int) -> None:
    adaptation = Adaptation(chosen=frozenset(chosen))
    refusal = Refusal(status, text, text)
    for _ in range(14):
        sent = body_of(adaptation, room)
        assert "messages" in sent and chosen <= set(sent) and sum(name in sent for name in LIMITS) == 1
        if not adaptation.learn(refusal, sent):
            break
    else:
        raise AssertionError(f"asked without end: {text}")
    assert len(adaptation.notes) == len(set(adaptation.notes))
    assert status not in (401, 429, 503) or not adaptation.notes


CAPS = {
    "max_tokens is too large: 9216. This model supports at most 4096 completion tokens, whereas you gave 9216.": 4096,
    "max_tokens: 9216 > 8192, which is the maximum allowed number of output tokens for claude-haiku": 8192,
    "`max_tokens` must be less than or equal to `8192`, the maximum value for this model": 8192,
    "max_tokens: the supported range is from 1 (inclusive) to 8193 (exclusive) but it is 9216": 8192,
}


@pytest.mark.parametrize(("text", "most"), CAPS.items())
def test_the_largest_limit_is_read_from_the_refusal(text: str, most: int) -> None:
    adaptation = Adaptation()
    assert adaptation.learn(Refusal(400, text, text), body_of(adaptation, 9216)) and adaptation.cap == most
    assert not adaptation.learn(Refusal(400, text, text), body_of(adaptation, 9216))


@pytest.mark.parametrize("parameter", ["seed", "temperature"])
def test_a_parameter_of_the_user_stays(parameter: str) -> None:
    adaptation = Adaptation(chosen=frozenset({parameter}))
    text = f"Unsupported parameter: '{parameter}' is not supported with this model."
    assert not adaptation.learn(Refusal(400, text, text, param=parameter), body_of(adaptation, 512))


def test_a_parameter_that_is_named_counts_and_not_what_is_quoted() -> None:
    adaptation = Adaptation()
    text = '{"error": "bad seed", "input": {"temperature": 0.5, "tool_choice": "required"}}'
    assert adaptation.learn(Refusal(400, text, text, param="seed"), body_of(adaptation, 512))
    assert adaptation.refused == {"seed"}


def test_a_server_error_that_is_a_refusal_is_not_tried_again() -> None:
    assert is_final(500, b'{"error": {"message": "tools param requires --jinja flag"}}')
    assert not is_final(500, b"out of memory") and not is_final(429, b"tool use") and not is_final(200, b"tool use")
