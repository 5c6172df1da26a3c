"""Config: presets, overrides, and the message for each mistake."""

from __future__ import annotations

import ast
import math
import re
import tomllib
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.builders.market import limits_of
from backend.config import prices
from backend.config.load import config_from_dict, describe, load_config, parse_toml, presets
from backend.config.market import CostsConfig, MarketConfig, VenueConfig
from backend.config.prices import prices_date, shipped_price
from backend.config.schema import Config, ConfigError, GuardConfig
from backend.config.training import DEFAULT_RATE, TrainingConfig
from backend.training.algorithm.alignment import AlignmentMethod
from backend.training.chosen_recipe import recipe_of
from backend.training.rl_job import check_trainable
from backend.training.rollout.collect import RolloutSettings
from benchmarks.run import TREND_MARKET
from cryptosentinel.conversation.budget import Price
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.llm.endpoint.providers import PROVIDERS
from cryptosentinel.llm.engine import Usage
from cryptosentinel.team_settings import Section, TeamConfig
from simulator.documents import MOST_DEPTH
from simulator.exchange.costs import Costs
from simulator.exchange.venue import Venue
from simulator.market.timeframes import parse_time
from simulator.synthetic.config import SyntheticConfig


@pytest.mark.parametrize("preset", presets())
def test_presets_load_and_come_back_from_json(preset: str) -> None:
    config = load_config(preset)
    assert config_from_dict(config.to_dict()) == config


def test_presets_that_train_charge_only_what_training_scores() -> None:
    for preset in presets():
        costs = load_config(preset).costs.costs()
        realistic = (costs.impact, costs.participation) == (1.0, 0.1)
        assert realistic == (preset == "recorded"), preset
        assert realistic or (costs.impact, costs.participation) == (0.0, None)


# Fields of the simulator's that no setting reaches: conventions for comparisons with other engines, and constants.
CONVENTIONS = {"fill", "sizing", "fee_currency", "spread_multiplier", "latency_ms", "missing_funding_rate",
               "delisting_haircut", "latency_bars", "borrow_rate"}  # fmt: skip


def test_every_option_of_the_exchange_can_be_set() -> None:
    changed = CostsConfig(taker_fee=0.001, maker_fee=-0.001, impact=0.5, participation=0.2).costs()
    same = {one.name for one in fields(Costs) if getattr(changed, one.name) == getattr(Costs(), one.name)}
    assert same == CONVENTIONS
    assert {one.name for one in fields(Venue)} - {"depth", "isolated", "mark"} == {*VenueConfig.model_fields}


def test_a_file_sets_what_it_names_and_an_override_wins(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[training]\nseed = 4\nkl = 1\n[market]\nsymbols = ['A', 'B']\n")
    config = load_config(path, ["training.seed=5", "training.alignment=none", "training.beta=[0.25, 0.5, 0.25]"])
    assert (config.training.seed, config.training.kl, config.market.symbols) == (5, 1.0, ("A", "B"))
    assert (config.training.alignment, config.training.beta) == ("none", (0.25, 0.5, 0.25))


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("market.symbols=BTCUSDT,ETHUSDT", "symbols", ("BTCUSDT", "ETHUSDT")),
        ("market.symbols=BTCUSDT", "symbols", ("BTCUSDT",)),
        ('market.symbols=["A"]', "symbols", ("A",)),
        ("market.data=../data/a=b", "data", "../data/a=b"),
        ("market.edge=false", "edge", False),
        (" market.bars = 300", "bars", 300),
    ],
)
def test_overrides_are_read_as_they_are_typed(override: str, key: str, value: object) -> None:
    assert getattr(load_config("quick", [override]).market, key) == value


@pytest.mark.parametrize("name", ["gpt-5.4", "meta-llama/llama-3.3-70b", "qwen3:8b", "plain"])
@pytest.mark.parametrize("quote", ['"', "'"])
def test_a_name_with_dots_stands_in_quotes_as_in_a_file(name: str, quote: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(f'[budget.prices]\n"{name}" = [1.0, 0.5, 2.0]\n')
    assert (
        load_config("quick", [f"budget.prices.{quote}{name}{quote}=[1.0, 0.5, 2.0]"]).budget
        == load_config(tmp_path / "own.toml").budget
    )


@pytest.mark.parametrize("key", ['budget.prices."a', "budget..prices", 'budget."".x', 'budget."a"b.c', ".a.b", "a.b."])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=r"write it as section\.key=value"):
        load_config("quick", [f"{key}=1"])


def test_an_override_reaches_a_role() -> None:
    training = load_config("quick", ["training.learning_rate.trader=1e-4"]).training
    assert (training.rate_of("trader"), training.rate_of("manager")) == (1e-4, DEFAULT_RATE)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.sede=1", "override 'training.sede=1': unknown key 'training.sede' (did you mean 'seed'?); known: "),
        ("trainin.seed=1", "unknown section 'trainin' (did you mean 'training'?); known: market, costs"),
        ("training.learning_rate.manger=1e-4", "training.learning_rate.manger is not allowed: expected "),
        ("training.seed=-1", "training.seed = -1 is not allowed: expected integer, at least 0, at most 2147483647"),
        ("training.seed=2001-01-01", 'training.seed = "2001-01-01" is not allowed: expected integer'),
        ("sft.steps.x=1", "with 'sft.steps.x=1': sft.steps = {\"x\": 1} is not allowed: expected integer"),
        ("training.stage1_steps.x=1", "override 'training.stage1_steps.x=1': 'stage1_steps' is not a section"),
        ("costs.cash=inf", "costs.cash = Infinity is not allowed: expected number, above 0.0"),
        ("costs.maker_fee=-0.02", "costs.maker_fee = -0.02 is not allowed: expected number, above -0.01"),
        ("costs.impact=1", "impact needs participation"),
        ("evaluation.baselines=holt", "no baseline 'holt' (did you mean 'hold'?); there are always_short"),
        ("evaluation.baselines=hold,hold", "the baseline 'hold' is named twice"),
        (
            "training.recipe=grpoo",
            "training.recipe: 'grpoo' is not a known recipe (did you mean 'grpo'?); there are mgrpo,",
        ),
        ("training.beta=[1]", "training.beta.1"),
        (
            "training.beta=[0.5, 0.6, 0]",
            "with 'training.beta=[0.5, 0.6, 0]': training: beta = [0.5, 0.6, 0.0] sums to 1.1;",
        ),
        ("training.learning_rate=1e-4", "training.learning_rate = 0.0001 is not allowed: expected table"),
        ("market.resample=5m", "resample = '5m' is not a multiple of timeframe = '4h'"),
        ("market.shares=[0.9, 0.2]", "must sum to less than 1"),
        (
            "nano.hidden_size=100",
            "nano.hidden_size = 100 is not allowed: expected integer, at least 16, at most 2048, a multiple",
        ),
        ("training.seed", "override 'training.seed': write it as section.key=value"),
    ],
)
def test_a_mistake_is_told_with_the_way_out(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("demo", [override])
    assert message in str(caught.value)


def test_every_mistake_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[training]\nseed = -1\nnope = 1\n[other]\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    told = str(caught.value).splitlines()
    assert len(told) == 3 and all(line.startswith(f"{path}: ") for line in told)


def test_a_file_that_is_no_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[training\n")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for name in ("bad.toml", "binary.toml"):
        with pytest.raises(ConfigError, match=rf"{name}: this is not valid TOML"):
            load_config(tmp_path / name)
    with pytest.raises(ConfigError, match=r"absent\.toml: no such config file; presets are demo"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match=r"no preset 'dmeo' \(did you mean 'demo'\?\); presets are demo"):
        load_config("dmeo")
    with pytest.raises(ConfigError, match="no preset ''"):
        load_config("")


@given(st.text(max_size=30))
@settings(max_examples=200)
def test_any_override_is_taken_or_told(text: str) -> None:
    for override in (text, f"training.{text}", f"training.seed={text}"):
        try:
            load_config("quick", [override])
        except ConfigError as error:
            assert str(error)


def test_every_key_is_explained() -> None:
    entries = {entry.key: entry for entry in describe()}
    assert all(entry.meaning and entry.allowed for entry in entries.values())
    assert entries["training.alignment"].default == '"fractional"'
    assert entries["market.symbols"].default == "[]"

    def keys(values: dict[str, object], prefix: str = "") -> set[str]:
        found: set[str] = set()
        for name, value in values.items():
            # An empty table is a value; a section is never empty.
            found |= keys(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {f"{prefix}{name}"}
        return found

    assert set(entries) == keys(Config().to_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"team": {"thinking_tokens": 9}}, "no thought fits into 9 tokens; give 32 or more, or 0"),
        (
            {"team": {"thinking_tokens": 64}, "engine": {"kind": "openai_api", "url": "http://localhost:1/v1"}},
            "leave it out at an endpoint",
        ),
    ],
)
def test_settings_of_thoughts_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_from_dict(changes)


@pytest.mark.parametrize("roles", [["market_analyst", "risk_analyst", "trader"], ["risk_analyst", "market_analyst"]])
def test_who_is_there_is_not_inherited_from(roles: list[str]) -> None:
    with pytest.raises(ConfigError, match="leave one of them out, or leave inherit_tools out"):
        config_from_dict({"team": {"roles": roles, "inherit_tools": False}})
    assert not config_from_dict({"team": {"roles": roles[:1], "inherit_tools": False}}).team.inherit_tools


@pytest.mark.parametrize("text", ["a{} = 1", "[a{}]", "a = {{ a{} = 1 }}"])
@pytest.mark.parametrize("part", [".a", '."a b"', " . 'a.b'"])
def test_a_key_of_very_many_parts_is_refused_before_it_is_parsed(
    text: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser takes minutes for 50,000 of them."""
    assert parse_toml(text.format(part * (MOST_DEPTH - 10)))
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("it was parsed"))
    with pytest.raises(ValueError, match="nested deeper than 200 levels"):
        parse_toml(text.format(part * 50_000))


PAIRS: list[tuple[type, tuple[type[Section], ...]]] = [
    (RolloutSettings, (TrainingConfig, TeamConfig, CostsConfig)),
    (GuardLimits, (GuardConfig,)),
    (Costs, (CostsConfig,)),
    (SyntheticConfig, (MarketConfig,)),
]
DIFFERENT = {  # the same name, another value: why
    (Costs, "participation"): "None is any share, which TOML writes as 0",
    (SyntheticConfig, "start"): "the configuration's is the first day to load",
    (SyntheticConfig, "symbols"): "the configuration's are those to load; none: as many as `coins`",
}


@pytest.mark.parametrize(("settings", "sections"), PAIRS, ids=[one.__name__ for one, _ in PAIRS])
def test_two_defaults_of_one_name_are_equal(settings: type, sections: tuple[type[Section], ...]) -> None:
    fed = 0
    for section in sections:
        for field in fields(settings):
            if field.name not in section.model_fields or (settings, field.name) in DIFFERENT:
                continue
            fed += 1
            where = f"{settings.__name__}.{field.name} and {section.__name__}.{field.name}"
            if field.default is not MISSING:
                assert field.default == section.model_fields[field.name].default, f"{where} differ"
    assert fed


def test_the_alignments_are_those_of_the_formulas() -> None:
    assert set(get_args(TrainingConfig.model_fields["alignment"].annotation)) == set(get_args(AlignmentMethod))


def test_every_key_is_read_somewhere() -> None:
    backend = Path(__file__).parents[3] / "backend"
    text = "\n".join(path.read_text() for path in backend.rglob("*.py") if path.parent.name != "config")
    assert [key for key in TrainingConfig.model_fields if not re.search(rf"(config|training)\.{key}\b", text)] == []


# What is set, and what the message must name.
CONTRADICTIONS: tuple[tuple[list[str], tuple[str, ...]], ...] = (
    (["credit=shapley", "beta=[0.5, 0.0, 0.5]"], ("credit", "beta")),
    (["credit=shaply"], ("credit", "shapley")),
    (["recipe=grpo", "alignment=duplicate_drop"], ("recipe", "alignment")),
    (["freeze=nobody"], ("freeze", "nobody")),
    (["precision=nf4", "lora_rank=0"], ("precision", "lora_rank")),
    (["lr_end=0.1", "stage2_steps=0"], ("lr_end", "stage2_steps")),
    (["stage1_steps=5", "stage1_max_steps=4"], ("stage1_steps", "stage1_max_steps")),
    (["reward=mine:reward", "tail_weight=0.5"], ("tail_weight", "reward")),
)


@pytest.mark.parametrize(("overrides", "keys"), CONTRADICTIONS, ids=lambda value: " ".join(value))
def test_a_contradiction_names_both_keys(overrides: list[str], keys: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(TREND_MARKET, [f"training.{one}" for one in overrides])
    [line] = str(caught.value).splitlines()
    for key in keys:
        assert re.search(rf"\b{key}\b", line.partition(": ")[2]), line


def test_beliefs_about_too_many_coins_are_refused_by_name() -> None:
    settings = ["training.scenario_source=beliefs", "market.coins=7"]
    check_trainable(load_config("quick", [*settings, "market.data=bars"]))
    with pytest.raises(ConfigError, match=r"training\.scenario_source = 'beliefs' is for 6 coins .* market\.coins = 7"):
        check_trainable(load_config("demo", settings))


ROOT = Path(__file__).resolve().parents[3]
# Declared, given to the recipe, handed to the formula, used.
WALK = {
    "backend/config/training.py",
    "backend/training/chosen_recipe.py",
    "backend/training/algorithm/recipes.py",
    "backend/training/algorithm/objective.py",
}


def names_in(path: Path) -> set[str]:
    """The names that a file's code reads, gives or declares."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for attribute in ("id", "attr", "arg"):
            name = getattr(node, attribute, None)
            found |= {name} if isinstance(name, str) else set()
    return found


def test_no_other_file_contains_the_name_of_the_clip() -> None:
    product = [
        path for part in ("backend", "cryptosentinel", "simulator", "ui") for path in (ROOT / part).rglob("*.py")
    ]
    containing = (path for path in product if "clip_high" in path.read_text(encoding="utf-8"))
    assert {path.relative_to(ROOT).as_posix() for path in containing if "clip_high" in names_in(path)} == WALK
    page = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
    assert all(f"`{path}" in page for path in (*WALK, "backend/config/load.py", "backend/cli/options.py"))


def test_what_is_set_arrives_at_the_clip() -> None:
    assert recipe_of(load_config("quick", ["training.clip_high=0.3"]).training).clip_high == 0.3


TABLE = tomllib.loads(Path(prices.__file__).with_name("prices.toml").read_text())
ROWS = [
    (provider, model, row) for provider, rows in TABLE.items() if isinstance(rows, dict) for model, row in rows.items()
]


def test_the_table_says_its_date_and_knows_providers_only() -> None:
    assert parse_time(prices_date()) > 0
    assert {provider for provider, _, _ in ROWS} <= set(PROVIDERS) and len(ROWS) > 20


@pytest.mark.parametrize(("provider", "model", "row"), ROWS)
def test_a_row_is_a_sensible_price(provider: str, model: str, row: list[float]) -> None:
    price = shipped_price(provider, model)
    assert price == Price(*row) and 0 < price.cached <= price.prompt < price.sampled < 1000
    assert shipped_price("openrouter", f"{provider}/{model}") == price
    assert shipped_price(provider, f"{model}-2025-11-01") == price


def test_what_is_not_known_has_no_price() -> None:
    assert shipped_price("openai", "gpt-99") is None and shipped_price("nobody", "gpt-4.1") is None
    assert shipped_price("openai", "gpt-4.1-minimal") is None  # no prefix is taken for the whole
    assert shipped_price("openrouter", "meta/llama:free") == Price()
    assert shipped_price("openrouter", "anthropic/claude-opus-4.5") == shipped_price("anthropic", "claude-opus-4-5")


@pytest.mark.parametrize(
    ("overrides", "price"),
    [
        (["engine.kind=openai"], Price(0.4, 0.1, 1.6)),
        (["engine.kind=openai_api"], Price(0.4, 0.1, 1.6)),
        (["engine.kind=openai", "engine.url=https://my-proxy.example/v1"], None),
        (["engine.kind=openai_api", "engine.url=https://my-proxy.example/v1"], None),
        (["engine.kind=openai_api", "engine.url=http://localhost:1/v1"], Price()),
        (["engine.kind=ollama"], Price()),
        (["engine.kind=vllm_chat", "engine.url=http://10.0.0.5:8000/v1"], Price()),
        (["engine.kind=vllm_chat"], Price()),
        ([], Price()),
    ],
)
def test_a_price_is_of_a_model_at_its_provider(overrides: list[str], price: Price | None) -> None:
    assert load_config("demo", overrides).engine.price("gpt-4.1-mini") == price


def test_what_is_read_from_a_cache_has_its_own_price() -> None:
    usage = Usage(prompt=1000, cached=600, sampled=100)
    assert Price(2.0, 0.5, 8.0).of(usage) == pytest.approx((400 * 2.0 + 600 * 0.5 + 100 * 8.0) / 1e6)


def test_what_is_not_set_is_no_limit() -> None:
    limits = asdict(limits_of(GuardConfig(max_daily_turnover=0.0)))
    assert {name for name, value in limits.items() if value == math.inf} == {"max_daily_turnover"}
    given = {"max_daily_turnover": 2.0, "max_drawdown": 0.3}
    assert asdict(limits_of(GuardConfig.model_validate(given))) == {**limits, **given}


@pytest.mark.parametrize("wrong", ["max_daily_turnover=-1", "max_drawdown=2", "daily_loss=0"])
def test_a_limit_that_cannot_be_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"guard.{wrong.partition('=')[0]}|{wrong.partition('=')[0]} = "):
        load_config("demo", [f"guard.{wrong}"])
