"""Trainings of a single agent, of some roles, of a portfolio, of a model that thinks and of a user's own role: who is
there learns, a resumed run is equal, and the team that comes of it works as it was trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

import cryptosentinel as cs
from backend.builders.loaded_team import team_settings
from backend.builders.teams import load_team
from backend.config.load import config_from_dict, load_config
from backend.config.schema import Config, ConfigError, NanoConfig
from backend.models.manifest import read_manifest
from backend.policies.adapters import read_adapter
from backend.policies.tensor_files import read_tensors
from backend.store.records import QueryRecord, TrajectoryRecord
from backend.store.store import Store
from backend.training.curriculum.queries import QueryPool
from backend.training.rl_job import check_trainable
from backend.training.rollout.collect import collect
from backend.training.sft.conversations import encode, messages_of
from backend.training.sft.sft_trainer import SftSettings, warm_start
from backend.training.sft.warm_start import make_nano, transcribe
from cryptosentinel.agents import registry
from cryptosentinel.agents.registry import ROLES, STANDARD, roles_of
from cryptosentinel.llm.chat_codec import CHAT_TEMPLATE, ChatCodec, make_byte_codec
from cryptosentinel.llm.nano import TEMPLATE_FILE, load_model, save_model
from cryptosentinel.llm.templates import chat_format
from cryptosentinel.protocol.tool_calls import render_thought
from simulator.errors import UserError
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.backend.distributed.services_here import begin_run, last_parameters, open_run
from tests.small_world import (
    HORIZON,
    TRAIN,
    VALIDATION,
    records_of,
    rollout_settings,
    small_config,
    small_market,
    smaller_config,
    train_and_resume,
)

STEPS = 2


def config_of(roles: tuple[str, ...], **training: Any) -> Config:
    """A training of one step in each stage, of a team of these sub-agents."""
    options = {"stage1_max_steps": 1, "stage2_steps": 1, "validation_every": 2, "queries_per_step": 4}
    document = small_config(**options | training).to_dict()
    document["team"]["roles"] = roles
    return config_from_dict(document)


@pytest.mark.parametrize("roles", [(), pytest.param(("trader", "market_analyst"), marks=pytest.mark.slow)])
def test_a_training_of_a_smaller_team_resumes_and_works(roles: tuple[str, ...], nano: Path, tmp_path: Path) -> None:
    config, team = config_of(roles, base_model=str(nano)), roles_of(roles)
    stored = train_and_resume(config, tmp_path, 1)
    told = {one.role for one in stored if hasattr(one, "role")}
    assert "manager" in told and told <= set(team), "who speaks and is paid"
    folder = tmp_path / "whole"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert not {name.partition("/")[0] for line in lines for name in line} & (set(roles_of(STANDARD)) - set(team))
    assert lines[-1]["manager/updates"] > 0, "there was something to learn"
    policies = folder / f"checkpoints/step-{STEPS:06d}/policies"
    assert {path.stem for path in policies.iterdir()} == set(team)
    contents = [read_tensors(policies / f"{role}.safetensors")[0] for role in team]
    equal = [all((one[name] == contents[0][name]).all() for name in contents[0]) for one in contents]
    assert all(equal) == (len(team) == 1)

    loaded = load_team(str(folder), config_of(STANDARD).team, base=config.training.base_model)
    assert loaded.team.roles == team, "it works as it was trained, whatever team is configured now"
    assert loaded.team.settings.horizon_bars == HORIZON
    queries = QueryPool(small_market(), *VALIDATION, HORIZON).draw(1, 0, 8, easy=False)
    decided = collect(loaded.team, loaded.engine, queries, rollout_settings(config), 1)
    talks = [talk for group in decided for one in group for talk in one.decision.transcripts]
    assert any(talk.valid for talk in talks)
    kept = {path.name: read_adapter(path).version for path in (folder / str(read_manifest(folder).adapters)).iterdir()}
    assert {(talk.role, talk.policy_version) for talk in talks} <= set(kept.items())


def test_the_warm_start_of_a_single_agent_has_its_conversations_alone() -> None:
    settings = team_settings(config_of(()).team, 1.0)
    pool = QueryPool(small_market(), *TRAIN, HORIZON)
    found = transcribe(make_byte_codec(), [pool], settings, 20, 0.5, 1)
    assert len(found) == 20 and {one.role for one in found} == {"manager"}
    texts = [make_byte_codec().decode(list(one.ids)) for one in found]
    assert all("consult_" not in text for text in texts)
    assert all('"get_funding"' in text for text in texts[:10]), "the expert looks everything up"


@pytest.mark.parametrize(
    ("roles", "training", "said"),
    [
        (("oracle",), {}, "no role 'oracle'"),
        (("trader", "trader"), {}, "named twice"),
        (("market_analyst",), {"freeze": "trader"}, r"training\.freeze lists trader, which team\.roles"),
        (("trader",), {"freeze": "manager,trader"}, "training.freeze names every role that team.roles"),
        (("market_analyst",), {"credit": "shapley"}, r"training\.credit = 'shapley'.*team\.roles"),
        ((), {"alignment": "none"}, r"training\.alignment is about sub-agents.*team\.roles"),
        ((), {"beta": [0.2, 0.4, 0.4]}, r"training\.beta is about sub-agents.*team\.roles"),
    ],
)
def test_settings_about_who_is_not_there_are_refused(
    roles: tuple[str, ...], training: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        check_trainable(config_of(roles, **training))


def test_a_role_that_nothing_scores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.training.rl_job.STANDARD", STANDARD[:2])
    with pytest.raises(ConfigError, match=r"team\.roles = 'trader': nothing scores what trader says"):
        check_trainable(config_of(("trader",)))


COINS = ("AAAUSDT", "BBBUSDT")


@pytest.fixture(scope="module")
def two_coins() -> Market:
    return generate(SyntheticConfig(bars=400, seed=3, symbols=COINS))


@pytest.fixture(scope="module")
def portfolio_config(two_coins: Market, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Two steps with a nano that was warm-started on portfolios, and two shards."""
    folder = tmp_path_factory.mktemp("portfolio") / "nano"
    options: dict[str, Any] = {"stage1_max_steps": 1, "stage2_steps": 1, "shards": 2, "base_model": str(folder)}
    document = smaller_config(**options).to_dict()
    made = config_from_dict({**document, "team": {**document["team"], "portfolio": True}}, "portfolio")
    nano = NanoConfig(hidden_size=64, layers=2, decisions=60, steps=150)
    pool = QueryPool(two_coins, 0, 300, HORIZON, gross_limit=1.0)
    make_nano(folder, [pool], team_settings(made.team, 1.0), nano, 1, lambda what, done, total: None)
    return made


def test_interrupted_and_resumed_or_on_services_it_is_bit_equal_and_the_team_keeps_its_mode(
    portfolio_config: Config, two_coins: Market, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = train_and_resume(portfolio_config, tmp_path, 1, two_coins)
    assert {one.symbols for one in stored if isinstance(one, QueryRecord)} == {COINS}
    nano = Path(portfolio_config.training.base_model)
    with Store.open("mem://") as apart:
        begin_run(apart, portfolio_config, two_coins)
        open_run(portfolio_config, nano, tmp_path / "apart", apart, monkeypatch, market=two_coins)[0].run()
        assert records_of(apart, STEPS) == stored
    for role in ROLES:
        mine, theirs = (last_parameters(tmp_path / name, role) for name in ("whole", "apart"))
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)
    team = load_team(str(tmp_path / "whole"), Config().team, base=str(nano)).team
    assert team.settings.portfolio, "a trained team decides as it was trained to"


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


@pytest.mark.slow
def test_a_training_with_thoughts_that_is_resumed_ends_bit_equal(thinker: Path, tmp_path: Path) -> None:
    config = small_config(base_model=str(thinker), stage2_steps=2)
    config = config.model_copy(update={"team": config.team.model_copy(update={"thinking_tokens": 32})})
    said = [one for one in train_and_resume(config, tmp_path, 2) if isinstance(one, TrajectoryRecord)]
    assert any(one.valid for one in said) and all(one.thought_tokens for one in said)


EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
KEY = "range_analyst"
OWN = ("plugins.roles=own_role:ROLE", f"team.roles={','.join(STANDARD)},{KEY}")
SMALL = (
    "market.bars=900", "market.coins=1", "nano.decisions=60", "nano.steps=20", "training.queries_per_step=1",
    "training.rollouts_per_query=2", "training.validation_queries=1", "training.stage2_steps=0",
)  # fmt: skip
_TABLES: tuple[dict[str, Any], ...] = (registry._FOUND, registry.SUB_AGENTS, registry.ROLES, registry.SPEAKERS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a role of the user's own, where the commands are given; the role is forgotten afterwards."""
    shutil.copy(EXAMPLES / "own_role.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    known = [(table, dict(table)) for table in _TABLES]
    yield tmp_path
    for table, before in known:
        table.clear()
        table.update(before)


def learnt(folder: Path) -> set[str]:
    """The roles whose adapters differ from untrained ones, whose second factor is zero."""
    return {
        path.parent.name if path.stem == "adapter_model" else path.stem.removeprefix("policy-")
        for path in folder.rglob("*.safetensors")
        for name, tensor in load_file(path).items()
        if "lora_B" in name and tensor.any()
    }


@pytest.mark.slow
def test_m_grpo_moves_the_adapter_of_a_fourth_role(folder: Path) -> None:
    """The warm start is longer than that of SMALL: only valid answers are scored, and nothing is learnt without."""
    larger = ("nano.decisions=250", "nano.steps=300", "training.rollouts_per_query=4", f"training.practice={{{KEY}=4}}")
    trained = cs.train("quick", overrides=[*SMALL, *larger, *OWN], store="mem://")
    assert trained.frame()[f"{KEY}/grad_norm"].max() > 0.0
    assert KEY in learnt(trained.folder / "checkpoints")


def test_it_is_fine_tuned_and_scored(folder: Path) -> None:
    small = ("sft.states=8", "sft.steps=2", "sft.score_states=2")
    tuned = cs.sft("scripted", config="quick", overrides=[*SMALL, *OWN, *small])
    assert tuned.frame()["kept"][KEY] > 0
    assert KEY in learnt(tuned.folder / "adapters")


def test_a_role_may_not_take_the_name_of_another() -> None:
    with pytest.raises(cs.UserError, match="its key must be a name of its own"):
        registry.register(registry.SUB_AGENTS["consult_trader"])
    assert load_config("quick").team.roles == STANDARD
