"""The warm start: it learns what is masked, the same way every time, and sees every example."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from backend.builders.loaded_team import scripted_team, team_settings
from backend.builders.teams import model_team
from backend.config.schema import NanoConfig
from backend.config.training import TrainingConfig
from backend.policies.build import role_policies
from backend.policies.logprobs import token_logps
from backend.processes import ALONE, Workers, started
from backend.statistics.mean_interval import mean_interval
from backend.training.curriculum.queries import QueryPool
from backend.training.rollout.collect import collect
from backend.training.sft import warm_start as warm_start_module
from backend.training.sft.role_scores import RoleScores, compare_roles, score_roles
from backend.training.sft.sft_trainer import (
    Example,
    SftSettings,
    SupervisedTrainer,
    _batches,
    _mixed_batches,
    learning_rate,
    warm_start,
)
from backend.training.sft.spoken_markets import spoken_markets
from backend.training.sft.warm_start import transcribe
from backend.training.validation import validation_of
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.conversation.masking import Mask
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.nano import nano_config, new_nano
from cryptosentinel.llm.scripted import ScriptedEngine, ScriptedPolicy
from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.scripted_team import expert_policies, novice_policies
from cryptosentinel.teachers import Teacher
from cryptosentinel.tools.context import ToolContext
from cryptosentinel.tools.market import funding, news
from simulator.market.market import Market
from tests.copying_helper import CopyingHelper
from tests.small_world import HORIZON, TRAIN, VALIDATION, rollout_settings, small_config, small_market, small_nano, tree
from tests.team_scenes import account_in, synthetic

SETTINGS = SftSettings(steps=30, batch_tokens=60, learning_rate=1e-2, warmup_steps=3, weight_decay=0.01, seed=0)
# Steps in parts: the gradient of the whole batch, and equal bits with one process and with two.
IN_PARTS = SftSettings(
    steps=3, batch_tokens=256, learning_rate=1e-3, warmup_steps=1, weight_decay=0.01, seed=1, parts=2
)


def examples(count: int = 12) -> list[Example]:
    """The token after a prompt of random length is its first token plus one: learnable, from the prompt only."""
    rng = np.random.default_rng(0)
    rows: list[Example] = []
    for number in range(count):
        ids = rng.integers(20, 40, 4 + number % 5).astype(np.int32)
        ids[0], ids[-1] = number % 4, number % 4 + 4
        mask = np.zeros(len(ids), np.bool_)
        mask[-1] = True
        rows.append((ids, mask))
    return rows


def test_it_learns_and_says_so(tiny: Qwen3ForCausalLM) -> None:
    seen: list[tuple[int, float]] = []
    losses = warm_start(tiny, examples(), SETTINGS, lambda step, loss: seen.append((step, loss)))
    assert seen == list(enumerate(losses, 1))
    assert len(losses) == SETTINGS.steps
    assert np.mean(losses[-5:]) < 0.3 * np.mean(losses[:3])
    assert not tiny.training


def test_only_masked_tokens_are_learnt(tiny: Qwen3ForCausalLM) -> None:
    """The first loss is the mean over masked tokens of one batch, whatever the others are."""
    rows = examples(3)
    twin = copy.deepcopy(tiny)
    loss = warm_start(tiny, rows, replace(SETTINGS, steps=1, batch_tokens=1000, learning_rate=2e-3, warmup_steps=30))[0]
    want = []
    for ids, mask in rows:
        logps, _ = token_logps(twin, torch.from_numpy(ids).long()[None], torch.from_numpy(mask)[None])
        want.append(-logps.sum().item())
    assert loss == pytest.approx(np.mean(want), rel=1e-5)


@settings(max_examples=50)
@given(
    st.sampled_from([_batches, _mixed_batches]),
    st.lists(st.integers(2, 30), min_size=1, max_size=200),
    st.integers(20, 90),
    st.integers(0, 99),
)
def test_every_example_is_seen_once_before_any_is_seen_again(
    cut: Callable[[list[int], int, np.random.Generator], Iterator[list[int]]],
    lengths: list[int],
    budget: int,
    seed: int,
) -> None:
    batches = cut(lengths, budget, np.random.default_rng(seed))
    for _ in range(2):
        left = set(range(len(lengths)))
        while left:
            batch = next(batches)
            assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget
            assert batch and set(batch) <= left
            left -= set(batch)


def test_the_rate_warms_up_and_falls_to_a_tenth() -> None:
    rates = [learning_rate(step, SETTINGS) for step in range(SETTINGS.steps)]
    assert rates[:3] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2])
    assert rates[3] == pytest.approx(1e-2)
    assert rates[-1] == pytest.approx(1e-3)
    assert rates[3:] == sorted(rates[3:], reverse=True)


def test_nothing_to_learn_is_refused(tiny: Qwen3ForCausalLM) -> None:
    ids, mask = examples(1)[0]
    for rows in ([], [(ids, np.zeros_like(mask))], [(ids, np.ones_like(mask))], [(ids, mask[1:])]):
        with pytest.raises(ValueError, match="examples"):
            warm_start(tiny, rows, SETTINGS)


def test_divergence_is_an_error_with_a_way_out(tiny: Qwen3ForCausalLM) -> None:
    with torch.no_grad():
        tiny.model.norm.weight.fill_(torch.inf)
    with pytest.raises(ValueError, match="lower the learning rate"):
        warm_start(tiny, examples(), SETTINGS)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 7))
def test_it_goes_on_bit_for_bit(stop: int) -> None:
    config = Qwen3Config(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    torch.manual_seed(1)
    start = Qwen3ForCausalLM(config)

    def trainer(model: Qwen3ForCausalLM) -> SupervisedTrainer:
        sft = replace(SETTINGS, steps=8, batch_tokens=30, learning_rate=2e-3, warmup_steps=2)
        return SupervisedTrainer(
            list(model.parameters()), lambda ids, mask: token_logps(model, ids, mask)[0], examples(), sft
        )

    whole = copy.deepcopy(start)
    through = trainer(whole)
    losses = [through.step() for _ in range(8)]
    half = copy.deepcopy(start)
    before = trainer(half)
    first = [before.step() for _ in range(stop)]
    other = copy.deepcopy(half)
    after = trainer(other)
    after.resume(before.done, before.optimizer_state())
    assert first + [after.step() for _ in range(8 - stop)] == losses
    for mine, theirs in zip(other.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def random_examples() -> list[Example]:
    rng = np.random.default_rng(0)
    made = []
    for length in rng.integers(8, 40, size=30):
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        made.append((rng.integers(0, 64, size=length).astype(np.int32), mask))
    return made


def trained(settings: SftSettings, workers: Workers = ALONE) -> tuple[list[float], list[Tensor]]:
    model = new_nano(
        1, nano_config(64, hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, intermediate_size=32)
    )
    losses = warm_start(model, random_examples(), settings, workers=workers)
    return losses, [parameter.detach() for parameter in model.parameters()]


def test_a_step_in_parts_is_the_step_of_the_whole_batch_up_to_rounding() -> None:
    losses, weights = trained(IN_PARTS)
    whole_losses, whole = trained(replace(IN_PARTS, parts=1))
    assert losses == pytest.approx(whole_losses, rel=1e-5)
    for one, other in zip(weights, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_helpers_change_no_bit_of_a_warm_start() -> None:
    alone = trained(IN_PARTS)
    with started(2) as workers:
        losses, weights = trained(IN_PARTS, workers)
    assert losses == alone[0]
    assert all(torch.equal(one, other) for one, other in zip(weights, alone[1], strict=True))


POOL = QueryPool(small_market(), *TRAIN, HORIZON)
TEAM = team_settings(small_config().team, 1.0)


def test_transcripts_are_valid_seeded_and_of_every_role() -> None:
    codec = make_byte_codec()
    first = transcribe(codec, [POOL], TEAM, 30, 0.3, 1)
    assert first == transcribe(codec, [POOL], TEAM, 30, 0.3, 1)
    assert first != transcribe(codec, [POOL], TEAM, 30, 0.3, 2)
    assert all(one.valid and any(one.mask) for one in first)
    assert {one.role for one in first} == {"manager", "market_analyst", "risk_analyst", "trader"}


def test_the_teacher_is_the_one_that_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    whole = warm_start_module.expert_policies

    def policies(*args: Any, teacher: Teacher, **options: Any) -> dict[str, ScriptedPolicy]:
        asked.append(teacher)
        return whole(*args, teacher=teacher, **options)

    monkeypatch.setattr(warm_start_module, "expert_policies", policies)
    assert get_args(NanoConfig.model_fields["teacher"].annotation) == get_args(Teacher)
    nano = NanoConfig(teacher="random_all", hidden_size=16, layers=1, decisions=10, steps=1)
    warm_start_module.make_nano(tmp_path / "nano", [POOL], TEAM, nano, 11, lambda what, done, total: None)
    assert set(asked) == {"random_all"}


def test_helpers_share_the_transcripts_and_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start_module, "_DECISIONS_AT_ONCE", 2)
    learnt: list[list[Example]] = []

    def noted(model: object, examples: list[Example], *rest: object) -> list[float]:
        learnt.append(examples)
        return []

    monkeypatch.setattr(warm_start_module, "warm_start", noted)
    nano = NanoConfig(hidden_size=16, layers=1, decisions=16, teacher_share=0.7, steps=1)
    helper = CopyingHelper()
    for name, workers in (("alone", ALONE), ("shared", Workers([helper]))):
        warm_start_module.make_nano(tmp_path / name, [POOL], TEAM, nano, 11, lambda *_: None, workers=workers)
    codec = ChatCodec(Tokenizer.from_file(str(tmp_path / "alone" / "tokenizer.json")))
    said = transcribe(codec, [POOL], TEAM, 16, 0.7, 11, nano.teacher)
    for examples in learnt:
        assert [(ids.tolist(), mask.tolist()) for ids, mask in examples] == [
            (list(one.ids), list(one.mask)) for one in said
        ]
    assert helper.tasks > 0 and tree(tmp_path / "alone") == tree(tmp_path / "shared")


def test_the_same_seed_makes_the_same_nano(tmp_path: Path) -> None:
    one, other = (small_nano(tmp_path / name, hidden=32, steps=3, decisions=10) for name in ("one", "other"))
    assert tree(one) == tree(other)


def test_the_warm_start_teaches_the_format(nano: Path, tmp_path: Path) -> None:
    config = small_config(validation_queries=6)

    def valid(base: Path) -> float:
        policies, codec = role_policies(base, TrainingConfig(lora_rank=2))
        loaded = model_team("x", policies, codec, config.team, 1.0, config.training.precision)
        queries = QueryPool(small_market(), *VALIDATION, HORIZON).draw(1, 0, 6, easy=False)
        groups = collect(loaded.team, loaded.engine, queries, rollout_settings(config), 1)
        return validation_of(groups).valid["manager"]

    assert valid(nano) > 0.2
    assert valid(small_nano(tmp_path / "raw", hidden=32, steps=1, decisions=10)) == pytest.approx(0.0)


BARS = range(40, 320, 3)


def recorded() -> Market:
    """Bars of which nothing hidden is known, with headlines and funding in the last third only."""
    whole = synthetic()
    late = int(whole.open_time[210])
    return replace(
        whole,
        truth=None,
        news=tuple(item for item in whole.news if item.known_at >= late),
        funding={name: tuple(e for e in events if e.time >= late) for name, events in whole.funding.items()},
    )


def told(market: Market) -> list[dict[str, Any]]:
    """What the two tools say about every coin at some bars."""
    mask = Mask(market.symbols, True)
    said = []
    for bar in BARS:
        view, account = market.view(bar), account_in(synthetic(), bar)
        for name in market.symbols:
            context = ToolContext(view, account, mask, market.symbols, 12, 1.0, name)
            said.append(news(context, NoArguments()) | funding(context, NoArguments()))
    return said


def test_a_generated_market_is_spoken_about_as_it_is() -> None:
    assert spoken_markets(synthetic(), 1) == [synthetic()]


def test_recorded_bars_are_also_spoken_about_with_everything_and_with_nothing() -> None:
    itself, full, bare = spoken_markets(recorded(), 1)
    assert itself == recorded()
    for one in (full, bare):
        assert np.array_equal(one.close, itself.close, equal_nan=True) and one.symbols == itself.symbols
    assert all(one == {"tone": "not available", "funding": "not available"} for one in told(bare))
    said = told(full)
    assert np.mean([one["tone"] != "not available" for one in said]) > 0.95
    assert {one["tone"] for one in said} >= {"mixed", "good", "bad"}
    assert all("funding_bps" in one for one in said)
    assert {one["funding"] for one in said} == {"longs pay", "shorts pay", "balanced"}
    shown = [item["text"] for one in said for item in one.get("news", [])]
    assert len(set(shown)) > 100 and 0.0 < np.mean([text == "withheld" for text in shown]) < 0.3


def test_nothing_of_the_recorded_headlines_is_in_the_made_ones_and_a_seed_repeats_them() -> None:
    _, full, _ = spoken_markets(recorded(), 1)
    assert not {item.text.lower() for item in full.news} & {item.text.lower() for item in recorded().news}
    assert spoken_markets(recorded(), 1)[1].news == full.news != spoken_markets(recorded(), 2)[1].news


NAN = float("nan")


def scores(*rows: list[float], valid: bool = True) -> dict[str, RoleScores]:
    table = np.array(rows)
    return {role: RoleScores(table, np.full(table.shape, valid)) for role in ROLES}


def test_the_difference_is_taken_where_every_team_was_measured() -> None:
    before = scores([0.2, 0.4], [0.5, NAN], [NAN, NAN], [0.1, 0.1])
    after = scores([0.6, 0.6], [0.5, 0.7], [0.9, 0.9], [0.3, 0.5])
    reference = scores([0.7, 0.7], [0.8, 0.8], [0.9, 0.9], [NAN, NAN])
    found = compare_roles(before, after, reference, 200, 1)["trader"]
    assert found["states"] == 2
    assert (found["before"], found["after"]) == pytest.approx((0.4, 0.6))
    assert found["reference"] == pytest.approx(0.75)
    assert found["difference"]["mean"] == pytest.approx(0.2)
    low, high = found["difference"]["ci95"]
    assert (low + high) / 2.0 == pytest.approx(0.2)
    assert (low, high) == pytest.approx(mean_interval([0.3, 0.1], 200, 1)), (
        "of the two states that all were measured in"
    )


def test_the_expert_beats_novices_and_ties_with_itself() -> None:
    queries = QueryPool(small_market(), *VALIDATION, HORIZON).draw(1, 0, 20, easy=False)
    settings, codec = rollout_settings(small_config(rollouts_per_query=3)), make_byte_codec()
    expert = scripted_team(small_config().team)
    seen: list[tuple[int, int]] = []

    def of(**own: Any) -> dict[str, RoleScores]:
        """Of novices, but for roles of their own."""
        engine = ScriptedEngine(codec, {**novice_policies(), **own})
        loaded = expert.__class__("w", expert.team, engine)
        return score_roles(loaded, queries, settings, 1, lambda done, total: seen.append((done, total)))

    experts = expert_policies()
    steady, mixed, wild = of(**experts), of(manager=experts["manager"]), of()
    assert seen == [(16, 20), (20, 20)] * 3
    own = score_roles(expert, queries, settings, 1, lambda done, total: None)
    for role in ROLES:
        np.testing.assert_array_equal(own[role].score, steady[role].score)
        assert own[role].valid.all()
        assert own[role].score.shape == (20, 3)
    found = compare_roles(wild, steady, mixed, 200, 1)
    assert found["market_analyst"]["difference"]["mean"] > 0.01
    assert compare_roles(own, steady, own, 200, 1)["trader"]["difference"]["ci95"] == [0.0, 0.0]


def test_an_invalid_answer_scores_nothing() -> None:
    queries = QueryPool(small_market(), *VALIDATION, HORIZON).draw(1, 0, 2, easy=False)
    expert = scripted_team(small_config().team)
    policies = {**expert_policies(), "trader": lambda messages, seed: "no call"}
    mute = expert.__class__("m", expert.team, ScriptedEngine(make_byte_codec(), policies))
    found = score_roles(mute, queries, rollout_settings(small_config()), 1, lambda done, total: None)
    assert not found["trader"].valid.any()
    assert (found["trader"].score == 0.0).all()
    assert found["risk_analyst"].valid.all()
