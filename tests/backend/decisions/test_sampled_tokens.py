"""What a model sampled, piece by piece with log-probabilities: as it is kept, and as it is shown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.decisions.recording import sampled_turns
from backend.decisions.tree import decision_tree
from backend.reporting.decision.token_colours import coloured_tokens, token_legend
from backend.reporting.decision_narrative import narrate
from cryptosentinel.conversation.transcript import Conversation, Transcript
from cryptosentinel.llm.engine import Completion
from tests.stored_runs import codec, full_document


def sampled(texts: list[tuple[str, float]]) -> Transcript:
    """A conversation in which the model said each of the texts, all tokens of it with one log-probability."""
    own = codec()
    conversation = Conversation(own, "manager", 0, "v", "system", "user", ())
    for number, (text, logp) in enumerate(texts):
        ids = (*own.encode_data(text), own.end_of_turn)
        conversation.add_completion(Completion(ids, (logp,) * len(ids), True))
        if number + 1 < len(texts):
            conversation.add_tool_response({"ok": 1})
    return conversation.finish({}, None, "none")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(min_size=1, max_size=12), st.floats(-20.0, -0.01)), min_size=1, max_size=3))
def test_the_pieces_are_the_words_of_each_turn(texts: list[tuple[str, float]]) -> None:
    turns = sampled_turns(codec(), sampled(texts))
    assert len(turns) == len(texts)
    for turn, (text, logp) in zip(turns, texts, strict=True):
        assert "".join(piece for piece, _ in turn).startswith(text)
        assert all(value <= 0.0 for _, value in turn)
        assert turn[0][1] == pytest.approx(logp * len(text[0].encode()), abs=0.006)


def test_rules_have_no_log_probabilities_and_what_is_certain_is_one_piece() -> None:
    assert sampled_turns(codec(), sampled([("abc", 0.0)])) == ()
    certain, unsure = sampled_turns(codec(), sampled([("abc", 0.0), ("d", -1.0)]))
    assert len(certain) == 1 and certain[0][1] == 0.0 and unsure[0] == ("d", -1.0)


def test_a_turn_is_shown_with_its_pieces_and_a_conversation_with_what_it_took() -> None:
    document = full_document()
    manager = document.conversations[0]
    turns = sum(message.role == "assistant" for message in manager.messages)
    kept = manager.model_copy(update={"tokens": ((("x", -1.0),),) * turns})
    lines = narrate(decision_tree(document.model_copy(update={"conversations": (kept, *document.conversations[1:])})))
    assert sum(bool(line.tokens) for line in lines) == turns
    assert sum("read in" in line.note for line in lines) == len(document.conversations)
    fewer = manager.model_copy(update={"tokens": ((("x", -1.0),),) * (turns - 1)})
    lines = narrate(decision_tree(document.model_copy(update={"conversations": (fewer, *document.conversations[1:])})))
    assert not any(line.tokens for line in lines), "a piece is never shown at another turn"


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.floats(max_value=0.0, allow_nan=False))
def test_no_words_become_html(text: str, logp: float) -> None:
    html = coloured_tokens(((f"<script>{text}</script><img src=x onerror=1>", logp),))
    assert set(re.findall(r"<(/?\w+)", html)) == {"div", "/div", "span", "/span"}
    assert html.count("<span") == 1


def test_the_legend_tells_the_steps_apart_without_colour() -> None:
    looks = re.findall(r'<span style="([^"]*)"', token_legend())
    assert len(set(looks)) == 4 and len({look.partition("border")[2] for look in looks}) == 3
