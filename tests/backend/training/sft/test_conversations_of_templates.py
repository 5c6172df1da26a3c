"""What the scripted team says in the chat format of any template can be learnt: the same ids, and the same mask."""

from pathlib import Path

import pytest

from backend.builders.loaded_team import team_settings
from backend.training.curriculum.queries import QueryPool
from backend.training.sft.conversations import encode, messages_of
from backend.training.sft.warm_start import transcribe
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.templates.choose import described_format
from scripts.template_table import shipped_templates, tokenizer_for
from tests.small_world import HORIZON, TRAIN, small_config, small_market

TEMPLATES = shipped_templates()


@pytest.mark.skipif(not TEMPLATES, reason="TRL, which ships the templates, is not installed")
@pytest.mark.parametrize("name", ["qwen3_6", "llama3_1", "gptoss", "cohere2", "gemma", "lfm2_v2"])
def test_what_the_team_said_comes_back_to_the_token(name: str) -> None:
    codec, _ = described_format(tokenizer_for(TEMPLATES[name]), Path())
    config = small_config().team.model_copy(update={"prompts": "full"})
    said = transcribe(codec, [QueryPool(small_market(), *TRAIN, HORIZON)], team_settings(config, 1.0), 3, 1.0, 1)
    assert {one.role for one in said} == set(ROLES)
    for one in said:
        assert one.valid, one.reason
        ids, mask = encode(codec, messages_of(codec, one), [dict(tool) for tool in one.tools])
        assert ids.tolist() == list(one.ids)
        assert mask.tolist() == list(one.mask)
