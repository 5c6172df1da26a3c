"""A turn in the making, as a property: whatever is sampled, thought and answer each have their own room."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cryptosentinel.llm.chat_format import ThoughtFormat
from cryptosentinel.llm.engine import Request, Sampling
from cryptosentinel.llm.turn import TurnState

OPEN, MORE, CLOSE, END, BLANK, WORD = range(6)


@st.composite
def formats(draw: st.DrawFn) -> ThoughtFormat:
    return ThoughtFormat(
        opening=draw(st.sampled_from([(OPEN,), (OPEN, MORE), (OPEN, MORE, MORE)])),
        closing=CLOSE,
        begun=draw(st.booleans()),
        cut_off=draw(st.sampled_from([(CLOSE,), (BLANK, CLOSE), (BLANK, CLOSE, BLANK, BLANK)])),
        lead="",
    )


# What closes a thought goes on behind its closing token, and takes 4 of 5 tokens: one that is opened by 2 cannot fit.
TIGHT = ThoughtFormat((OPEN, MORE), CLOSE, False, (BLANK, CLOSE, BLANK, BLANK), "")


@given(thoughts=formats(), budget=st.integers(1, 12), room=st.integers(1, 6), tokens=st.lists(st.integers(0, 5)))
@example(thoughts=TIGHT, budget=5, room=3, tokens=[OPEN, MORE, WORD, WORD, WORD])
@example(thoughts=replace(TIGHT, opening=(OPEN,)), budget=5, room=3, tokens=[OPEN, WORD, WORD, WORD])
def test_thought_and_answer_have_their_own_room(
    thoughts: ThoughtFormat, budget: int, room: int, tokens: list[int]
) -> None:
    request = Request("manager", (1,), Sampling(max_tokens=room, thinking_tokens=budget), 0)
    if thoughts.begun and budget < len(thoughts.cut_off):
        with pytest.raises(ValueError, match="to close a thought takes"):
            TurnState(request, {END}, thoughts, None, lambda token: token == BLANK)
        return
    turn = TurnState(request, {END}, thoughts, None, lambda token: token == BLANK)
    drawn = 0
    following = iter([*tokens, *[WORD] * 40])
    while not turn.done:
        forced = turn.next_forced
        drawn += forced is None
        turn.take(next(following) if forced is None else forced, -1.0)
    said = turn.completion()
    thought, answer = said.ids[: said.thought], said.ids[said.thought :]
    assert len(thought) <= budget and len(answer) <= room
    assert said.finished == (said.ids[-1] == END) and END not in said.ids[:-1]
    assert drawn == len(said.ids) - said.forced == -sum(said.logps)
    if said.forced:
        assert thought[-said.forced :] == thoughts.cut_off and not any(
            said.logps[said.thought - said.forced : said.thought]
        )
        assert CLOSE not in thought[: -said.forced]
    elif thought and not said.finished:
        assert thought[-1] == CLOSE
    if thought and not thoughts.begun:
        assert tuple(one for one in thought if one != BLANK)[: len(thoughts.opening)] == thoughts.opening
    if not said.finished:
        assert len(answer) == room  # a thought took nothing of it


def test_without_a_budget_all_is_the_answer() -> None:
    thoughts = ThoughtFormat((OPEN,), CLOSE, True, (CLOSE,), "")
    turn = TurnState(Request("manager", (1,), Sampling(max_tokens=3), 0), {END}, thoughts, None, lambda _: False)
    for token in (OPEN, CLOSE, WORD):
        turn.take(token, -0.5)
    assert turn.done and turn.completion().thought == 0 and turn.completion().ids == (OPEN, CLOSE, WORD)
