"""A training of a model that thinks, whose template drops thoughts: it is interrupted,
resumed, and ends where an undisturbed one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.builders.loaded_team import team_settings
from backend.config.schema import Config
from backend.store.store import Store
from backend.training.curriculum.queries import QueryPool
from backend.training.sft.conversations import encode, messages_of
from backend.training.sft.sft_trainer import SftSettings, warm_start
from backend.training.sft.warm_start import transcribe
from cryptosentinel.llm.chat_codec import CHAT_TEMPLATE, ChatCodec
from cryptosentinel.llm.nano import TEMPLATE_FILE, load_model, save_model
from cryptosentinel.llm.templates import chat_format
from cryptosentinel.protocol.tool_calls import render_thought
from simulator.errors import Interrupted
from tests.small_world import HORIZON, RUN, TRAIN, small_config, small_market, train_as_told, tree

STEPS, BUDGET = 3, 32
# Nano's template, which opens a thought in every answer, as DeepSeek-R1's does, and drops it from what was said before.
_CLOSED = "{%- if enable_thinking is defined and enable_thinking is false %}{{- '"
TEMPLATE = CHAT_TEMPLATE.replace(f"{_CLOSED}<think>\\n", f"{{{{- '<think>\\n' }}}}{_CLOSED}").replace(
    "(message.content or '')", "((message.content or '').split('</think>\\n\\n')[-1])"
)
THOUGHTS = ("up", "It is down 1.5", "flat, or up")


@pytest.fixture(scope="module")
def thinker(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nano, taught for some steps to think of a word or two before each of its answers."""
    folder = tmp_path_factory.mktemp("thinker") / "base"
    model, tokenizer = load_model(nano)
    said = transcribe(
        ChatCodec(tokenizer), [QueryPool(small_market(), *TRAIN, HORIZON)], team_settings(small_config().team, 1.0),
        60, 0.3, 1,
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    codec = chat_format(tokenizer, folder, think=True)
    assert codec.thoughts is not None and codec.thoughts.begun
    examples = []
    for number, one in enumerate(said):
        messages = [dict(message) for message in messages_of(ChatCodec(tokenizer), one)]
        for turn in messages[2::2]:
            turn["content"] = render_thought(THOUGHTS[number % len(THOUGHTS)], turn["content"])
        examples.append(encode(codec, messages, None))
    warm_start(model, examples, SftSettings(90, 1024, 4e-3, 5, 0.0, 1), lambda step, loss: None)
    save_model(folder, model, tokenizer)
    (folder / TEMPLATE_FILE).write_text(TEMPLATE)
    return folder


def config_of(base: Path) -> Config:
    config = small_config(base_model=str(base), stage2_steps=STEPS - 1)
    return config.model_copy(update={"team": config.team.model_copy(update={"thinking_tokens": BUDGET})})


def trajectories(store: Store) -> list[Any]:
    return [one for step in range(STEPS) for one in store.trajectories(RUN, step)]


@pytest.mark.slow
def test_a_training_with_thoughts_that_is_resumed_ends_bit_equal(thinker: Path, tmp_path: Path) -> None:
    config = config_of(thinker)
    with Store.open("mem://") as store:
        train_as_told(config, tmp_path / "whole", store)
        said = trajectories(store)
    assert any(one.valid for one in said)
    assert all(one.thought_tokens for one in said)
    with Store.open("mem://") as store:
        with pytest.raises(Interrupted):
            train_as_told(config, tmp_path / "halved", store, stop_after=2)
        train_as_told(config, tmp_path / "halved", store)
        assert trajectories(store) == said
    assert tree(tmp_path / "halved") == tree(tmp_path / "whole")
