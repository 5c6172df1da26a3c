"""Data sets: the best of each question is kept, every other conversation is counted, and what is read is what was
written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.builders.loaded_team import team_settings
from backend.training.curriculum.queries import QueryPool
from backend.training.sft.collection import ScoredConversation
from backend.training.sft.conversations import encode, messages_of
from backend.training.sft.datasets import (
    DATA_MANIFEST,
    DROP_REASONS,
    Selection,
    SftRow,
    read_data_manifest,
    read_rows,
    select,
    write_data_set,
)
from backend.training.sft.shared_data import is_data_set, shared_rows
from backend.training.sft.warm_start import transcribe
from backend.training.sft_job import DATA, run_sft
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.conversation.transcript import Conversation, Transcript
from cryptosentinel.llm.chat_codec import TURN_END, ChatCodec, make_byte_codec
from cryptosentinel.llm.engine import Completion
from cryptosentinel.llm.nano import load_model
from cryptosentinel.llm.templates import chat_format, described_format
from cryptosentinel.protocol.tool_calls import render_call, render_thought
from scripts.template_table import shipped_templates, tokenizer_for
from simulator.errors import DataError
from tests.backend.training.test_sft_job import settings
from tests.examples import tried
from tests.small_world import HORIZON, TRAIN, small_config, small_market

ANY = Selection(validation_share=0.0, seed=1)


def said(
    score: float | None, text: str = "", state: str = "0-0", role: str = "trader", valid: bool = True
) -> ScoredConversation:
    messages = [{"role": "assistant", "content": text or str(score)}] if valid else []
    return ScoredConversation(role, "scripted", state, "AAAUSDT", 7, 0.5, "AAAUSDT long 0.5", 0, valid, score, messages)


@pytest.mark.parametrize(
    ("group", "selection", "kept", "dropped"),
    [
        ([said(0.2), said(0.9), said(0.4)], ANY, [0.9], {"not_best": 2}),
        ([said(0.5, "a"), said(0.5, "b")], ANY, [0.5], {"not_best": 1}),
        ([said(0.5, "a"), said(0.5, "a")], ANY, [0.5], {"duplicate": 1}),
        ([said(None), said(0.3), said(None, valid=False)], ANY, [0.3], {"unscored": 1, "invalid": 1}),
        ([said(0.2), said(0.4)], ANY, [0.4], {"not_best": 1}),
        ([said(0.25), said(0.75)], ANY, [0.75], {"not_best": 1}),
        ([said(0.2, state="0-0"), said(0.1, state="0-1")], ANY, [0.2, 0.1], {}),
        ([said(0.2, "a", state="0-0"), said(0.2, "a", state="0-1")], ANY, [0.2, 0.2], {}),
        ([said(0.2), replace(said(0.1), question="AAAUSDT short 1.0")], ANY, [0.2, 0.1], {}),
        ([], ANY, [], {}),
    ],
)
def test_the_best_of_each_question_is_kept(
    group: list[ScoredConversation], selection: Selection, kept: list[float], dropped: dict[str, int]
) -> None:
    rows, counts = select(group, selection)
    assert [row.score for row in rows] == kept
    assert {reason: counts["trader"][reason] for reason in DROP_REASONS if counts["trader"][reason]} == dropped


def test_of_equals_the_earliest_is_kept_and_the_margin_is_over_distinct_conversations() -> None:
    rows, _ = select([said(0.4, "a"), said(0.6, "b"), said(0.6, "c"), said(0.4, "a")], ANY)
    assert rows[0].messages[0]["content"] == "b"
    assert rows[0].margin == pytest.approx(0.6 - (0.4 + 0.6 + 0.6) / 3)


SAID = st.builds(
    said,
    score=st.sampled_from([None, 0.1, 0.5, 0.5, 0.9]),
    text=st.sampled_from(["", "a", "b"]),
    state=st.sampled_from([f"0-{n}" for n in range(9)]),
    role=st.sampled_from(list(ROLES)),
    valid=st.booleans(),
)


@tried(100)
@given(st.lists(SAID, max_size=60), st.sampled_from([0.0, 0.3, 1.0]))
def test_every_conversation_has_one_fate_and_every_state_one_split(
    group: list[ScoredConversation], share: float
) -> None:
    rows, counts = select(group, replace(ANY, validation_share=share))
    for role, count in counts.items():
        assert count["collected"] == sum(one.role == role for one in group)
        assert count["collected"] == count["kept"] + sum(count[reason] for reason in DROP_REASONS)
        assert count["kept"] == count["train"] + count["validation"] == sum(row.role == role for row in rows)
    splits: dict[str, set[str]] = {}
    for row in rows:
        splits.setdefault(row.state, set()).add(row.split)
    assert all(len(split) == 1 for split in splits.values())
    if share in (0.0, 1.0):
        assert {row.split for row in rows} <= {"validation" if share else "train"}
    assert len({(row.role, row.state, row.question) for row in rows}) == len(rows)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    group = [said(0.1 * n, f"é\n<|im_end|>{n}", f"0-{n}", role) for n in range(4) for role in ROLES]
    rows, counts = select(group, replace(ANY, validation_share=0.5))
    write_data_set(tmp_path / "data", rows, {"counts": counts, "seed": 1})
    assert read_data_manifest(tmp_path / "data")["counts"] == counts
    for role in ROLES:
        own = [row for row in rows if row.role == role]
        assert read_rows(tmp_path / "data", role) == own


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "trader.parquet").write_bytes(b"something else"),
        lambda folder: (folder / "trader.parquet").unlink(),
        lambda folder: (folder / DATA_MANIFEST).unlink(),
        lambda folder: (folder / DATA_MANIFEST).write_text('{"format": 99, "sha256": {}}'),
    ],
)
def test_a_damaged_folder_is_refused_with_a_way_out(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    write_data_set(tmp_path, select([said(0.5)], ANY)[0], {})
    harm(tmp_path)
    with pytest.raises(DataError, match=r"collect a|give the folder"):
        read_rows(tmp_path, "trader")


ROW = SftRow(
    role="trader", source="elsewhere", state="0-0", symbol="AAAUSDT", bar=7, exposure=0.0, question="AAAUSDT long 0.5",
    rollout=0, score=0.75, margin=0.5, split="train", tools=None,
    messages=[{"role": "system", "content": "You are Trader."}, {"role": "user", "content": "Send it?"},
              {"role": "assistant", "content": "no"}],
)  # fmt: skip


def nothing(what: str, done: int, total: int) -> None:
    """Reports nothing."""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A data set with a row for training and one for validation."""
    folder = tmp_path / "made"
    write_data_set(folder, [ROW, replace(ROW, state="0-1", split="validation")], {})
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "test"}, "is of the split 'test'"),
        ({"score": 1.5}, "has the score 1.5"),
        ({"score": float("nan")}, "has the score nan"),
        ({"messages": []}, "has a turn without words"),
        ({"messages": [{"role": "user", "content": ""}]}, "has a turn without words"),
        ({"tools": "{"}, "has schemas of tools that are no"),
    ],
)
def test_a_row_that_cannot_be_learned_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = tmp_path / "theirs"
    write_data_set(folder, [ROW, replace(ROW, **change)], {})
    with pytest.raises(DataError, match=rf"theirs: row 2 of trader\.parquet {message}"):
        shared_rows(str(folder), ["trader"])


def test_a_file_of_one_role_under_the_name_of_another_is_refused(made: Path) -> None:
    manifest = json.loads((made / "manifest.json").read_text())
    manifest["sha256"]["manager.parquet"] = manifest["sha256"]["trader.parquet"]
    (made / "manifest.json").write_text(json.dumps(manifest))
    (made / "manager.parquet").write_bytes((made / "trader.parquet").read_bytes())
    with pytest.raises(DataError, match=r"row 1 of manager\.parquet is of the role 'trader'"):
        shared_rows(str(made), ["manager"])


def test_a_data_set_without_a_role_of_the_team_is_refused(made: Path) -> None:
    with pytest.raises(DataError, match="has no conversation of manager"):
        shared_rows(str(made), ["manager"])


@pytest.mark.slow
def test_a_fine_tuning_learns_from_one_alone_and_beside_a_team(nano: Path, tmp_path: Path) -> None:
    config = settings(nano)
    first = run_sft(config, small_market(), ("scripted",), tmp_path / "first", nothing)
    theirs = str(first.folder / DATA)
    assert is_data_set(theirs) and not is_data_set(str(first.folder)) and not is_data_set("scripted")
    alone = run_sft(config, small_market(), (theirs,), tmp_path / "alone", nothing)
    assert read_rows(alone.folder / DATA, "trader") == read_rows(first.folder / DATA, "trader")
    counts = first.manifest["counts"]["trader"]
    assert alone.manifest["counts"]["trader"]["kept"] == counts["kept"] == counts["train"] + counts["validation"]
    assert alone.scores == first.scores, "the same conversations teach the same"
    both = run_sft(config, small_market(), ("scripted", theirs), tmp_path / "both", nothing)
    assert both.manifest["counts"]["trader"]["kept"] == 2 * counts["kept"]


TEXT = st.one_of(st.text(max_size=20), st.sampled_from(["<|im_end|>", "<tool_call>", "</tool_response>\n", "\n", "é€"]))
TEMPLATES = shipped_templates()


@cache
def codec_of(nano: Path | None, empty_think: bool) -> ChatCodec:
    return make_byte_codec(empty_think=empty_think) if nano is None else ChatCodec(load_model(nano)[1])


def live(codec: ChatCodec, user: str, turns: list[tuple[str, str]], tools: list[dict[str, Any]] | None) -> Transcript:
    """A conversation as the team would hold it: what the assistant says, what a tool answers, a last answer."""
    talk = Conversation(codec, "trader", 0, "v", "Be brief.", user, tools or ())
    for said, heard in turns:
        ids = tuple(codec.encode_assistant(said))
        talk.add_completion(Completion(ids, (0.0,) * len(ids), True))
        talk.add_tool_response({"text": heard})
    ids = tuple(codec.encode_assistant("done"))
    talk.add_completion(Completion(ids, (0.0,) * len(ids), True))
    return talk.finish({}, {}, None)


@tried(80)
@given(
    user=TEXT,
    turns=st.lists(st.tuples(TEXT, TEXT), max_size=3),
    schemas=st.booleans(),
    kind=st.sampled_from(["byte", "think", "nano"]),
)
def test_any_conversation_comes_back_to_the_token(
    nano: Path, user: str, turns: list[tuple[str, str]], schemas: bool, kind: str
) -> None:
    codec = codec_of(nano if kind == "nano" else None, kind == "think")
    tools = list(ROLES["trader"].schemas) if schemas else None
    one = live(codec, user, turns, tools)
    ids, mask = encode(codec, messages_of(codec, one), tools)
    assert ids.tolist() == list(one.ids)
    assert mask.tolist() == list(one.mask)


@pytest.mark.skipif(not TEMPLATES, reason="TRL, which ships the templates, is not installed")
@pytest.mark.parametrize("name", ["qwen3_6", "llama3_1", "gptoss", "cohere2", "gemma", "lfm2_v2"])
def test_it_does_in_the_chat_format_of_any_template(name: str) -> None:
    codec, _ = described_format(tokenizer_for(TEMPLATES[name]), Path())
    config = small_config().team.model_copy(update={"prompts": "full"})
    said = transcribe(codec, [QueryPool(small_market(), *TRAIN, HORIZON)], team_settings(config, 1.0), 3, 1.0, 1)
    assert {one.role for one in said} == set(ROLES)
    for one in said:
        assert one.valid, one.reason
        ids, mask = encode(codec, messages_of(codec, one), [dict(tool) for tool in one.tools])
        assert ids.tolist() == list(one.ids)
        assert mask.tolist() == list(one.mask)


def test_the_mask_is_on_the_assistants_tokens_and_not_one_further() -> None:
    codec = make_byte_codec()
    messages = [
        {"role": "system", "content": "s"}, {"role": "user", "content": "u"},
        {"role": "assistant", "content": "first"}, {"role": "tool", "content": "t"},
        {"role": "assistant", "content": "second"},
    ]  # fmt: skip
    ids, mask = encode(codec, messages, None)
    assert codec.decode(ids[mask].tolist()) == f"first{TURN_END}second{TURN_END}"
    edges = np.flatnonzero(np.diff(mask.astype(int)) == 1)
    assert codec.decode(ids[: edges[0] + 1].tolist()).endswith("<|im_start|>assistant\n")


def test_the_tokenizers_own_template_reads_the_messages_alike(nano: Path) -> None:
    tokenizer: Any = load_model(nano)[1]
    codec = ChatCodec(tokenizer)
    pool = QueryPool(small_market(), *TRAIN, HORIZON)
    for one in transcribe(codec, [pool], team_settings(small_config().team, 1.0), 6, 0.5, 2):
        theirs = tokenizer.apply_chat_template(messages_of(codec, one), tokenize=True, return_dict=False)
        assert theirs == [*one.ids, *codec.encode_data("\n")]


@pytest.mark.parametrize(
    "roles",
    [
        [],
        ["system", "user"],
        ["user", "assistant", "tool"],
        ["system", "user", "assistant", "tool"],
        ["system", "user", "assistant", "assistant"],
        ["system", "user", "tool", "assistant"],
        ["system", "user", "assistant", "user", "assistant"],
    ],
)
def test_turns_in_another_order_are_refused(roles: list[str]) -> None:
    with pytest.raises(DataError, match="must begin with system and user"):
        encode(make_byte_codec(), [{"role": role, "content": "x"} for role in roles], None)


TURN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
ASKED = TURN + "{% if add_generation_prompt %}<|assistant|>{% endif %}{# <think> </think> #}"
BEGUN = TURN + "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}{# </think> #}"
THINKERS = {
    "kept": make_byte_codec(think=True),
    "dropped": chat_format(tokenizer_for(ASKED), Path(), think=True),
    "begun, dropped": chat_format(tokenizer_for(BEGUN), Path(), think=True),
}


@pytest.mark.parametrize("name", THINKERS)
def test_thoughts_come_back_in_the_branches_that_they_were_said_in(name: str) -> None:
    """Each of the assistant's tokens is learnt once, as in the live conversation, thoughts too."""
    codec = THINKERS[name]
    thoughts = codec.thoughts
    assert thoughts is not None
    talk = Conversation(codec, "trader", 0, "v", "Be brief.", "Look.", ())
    for number, thought in enumerate(("first", "", "last")):
        ids = tuple(codec.encode_assistant(render_thought(thought, render_call("look", {"size": number}))))
        length = ids.index(thoughts.closing) + 1 if thoughts.closing in ids else 0
        talk.add_completion(Completion(ids, (0.0,) * len(ids), True, thought=length))
        if number < 2:
            talk.add_tool_response({"text": number}, tool="look")
    one = talk.finish({}, {}, None)
    learned, mask = encode(codec, messages_of(codec, one), None)
    assert learned.tolist() == list(one.ids) and mask.tolist() == list(one.mask)
