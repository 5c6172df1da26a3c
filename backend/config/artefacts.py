"""What an artefact may say: the settings that are taken from a team's folder, a stored run or an export.

An artefact is made by somebody, and may have been made to do harm. It may describe: what was traded, what trading
cost, how the team decides and how it was trained. It may not say what is run, contacted or read outside itself, what
is spent, nor what a team must show before it is trusted. Those settings come from the user: a preset or file named with
--config, --set, or another option.

Every setting has its place in one of the two tables below; a test compares them with the schema. A setting that is in
neither is not taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from backend.config.base import Section
from backend.config.schema import Config, ConfigError

Effect = Literal["runs", "contacts", "reads", "removes", "spends", "admits"]

# By section, what an artefact may set. A name stands for all that is below it.
MAY_SET: Mapping[str, tuple[str, ...]] = {
    "market": (
        "symbols", "timeframe", "resample", "start", "end", "coins", "bars", "seed", "kind", "edge",
        "drift_ratio", "news_accuracy", "train_share", "validation_share", "instrument",
    ),
    "costs": (
        "taker_fee", "maker_fee", "fee_tiers", "half_spread_bps", "impact",
        "participation", "latency_bars", "thinking_time", "borrow_rate", "max_leverage", "cash",
    ),
    "venue": ("isolated", "finer"),
    "guard": (
        "max_exposure", "max_gross_exposure", "max_orders", "max_drawdown", "daily_loss", "max_stale_bars",
        "max_net_exposure", "max_order_rate", "rate_hours", "shutdown_drawdown", "price_band", "max_order_notional",
        "max_symbol_notional", "on_loss", "daily_loss_pause_hours", "drawdown_pause_hours", "max_daily_turnover",
    ),
    "team": (
        "horizon_bars", "decide_every", "mask_symbols", "headlines", "roles", "inherit_tools", "portfolio",
        "retries", "knowledge_cutoff", "prompts", "max_tokens", "thinking_tokens", "memory", "question_price",
        "veto", "timing_in_words", "pooled_trend",
    ),
    "engine": ("empty_think", "constrained", "context_tokens", "device", "precision"),
    "nano": (
        "vocab_size", "hidden_size", "layers", "intermediate_size", "decisions", "teacher_share", "teacher", "steps",
        "batch_tokens", "learning_rate", "seed",
    ),
    "training": (
        "stage1_steps", "stage1_max_steps", "stage2_steps", "tokens", "queries_per_step", "rollouts_per_query",
        "practice_queries", "practice_roles", "practice_sizes", "scenario_paths", "scenario_source", "temperature",
        "alignment", "alpha", "beta", "invalid_penalty", "clip_low", "clip_high", "kl", "entropy", "learning_rate",
        "lr_end", "warmup_steps", "minibatches", "optimizer", "scale_rewards", "advice_weight",
        "verdict_weight", "tail_weight", "tail_loss", "importance_cap",
        "max_grad_norm", "freeze", "weights", "lora_rank", "device", "precision",
        "quantization", "gradient_checkpointing", "micro_batch_tokens", "shards", "validation_every",
        "validation_queries", "gate_format", "rollback_format", "seed", "train_thoughts",
    ),
    "evaluation": (
        "windows", "decisions_per_window", "bootstrap_samples", "states", "scenario_paths", "seed", "baselines",
    ),
    "paper": ("speed", "history_bars", "snapshot_bars", "grace_seconds", "on_kill"),
    "sft": (
        "states", "rollouts", "validation_share", "steps", "batch_tokens",
        "learning_rate", "score_states", "score_samples", "seed",
    ),
    "seeds": ("confirm",),
}  # fmt: skip

# What only the user may set, and what it would do.
USER_ONLY: Mapping[str, Effect] = {
    "market.data": "reads",
    "market.funding_dir": "reads",
    "market.news": "reads",
    "venue.rules": "reads",
    "venue.mark": "reads",
    "engine.provider": "contacts",
    "engine.kind": "contacts",
    "engine.model": "reads",
    "engine.url": "contacts",
    "engine.key_variable": "contacts",
    "engine.extra_body": "contacts",
    "engine.python": "runs",
    "engine.gpu_share": "runs",
    "engine.timeout": "contacts",
    "engine.concurrency": "spends",
    "budget": "spends",
    "paper.feed": "contacts",
    "paper.url": "contacts",
    "paper.broker": "contacts",
    "paper.sandbox_url": "contacts",
    "paper.decision_timeout": "spends",
    "paper.metrics_port": "runs",
    "gate": "admits",
    "plugins": "runs",
    "team.tools": "runs",
    "training.reward": "runs",
    "training.scores": "runs",
    "training.recipe": "runs",
    "training.credit": "runs",
    "engine.plugin": "runs",
    "market.source": "runs",
    "store.keep": "removes",
    "training.base_model": "reads",
    "training.start_from": "reads",
    "training.states": "reads",
    "training.wandb_project": "contacts",
}
# What a measurement is made of: without it, the numbers would be those of something else.
_MEASURED = ("market", "venue")
_BY_NAME = ("training.recipe", "training.credit")  # one of the shipped runs nothing; module:NAME does
_NAME = re.compile(r"[\w-]*")
_OPTIONS = {"market.data": "--data", "market.funding_dir": "--funding", "market.news": "--news"}


@dataclass(frozen=True)
class Withheld:
    """A setting that an artefact named and that was not taken from it."""

    key: str
    value: Any

    @property
    def measured(self) -> bool:
        """Whether it decides what is measured."""
        return _measured(self.key)

    @property
    def option(self) -> str:
        """What the user writes to set it himself. The artefact's value is not in it: it is not to be copied unread."""
        return f"{_OPTIONS[self.key]} ..." if self.key in _OPTIONS else f"--set {self.key}=..."


def effect_of(key: str, value: object = None) -> Effect | None:
    """What a setting that only the user may set would do; None for one that an artefact may set. One that takes a
    module's name too does nothing where `value` is a plain name.

    >>> effect_of("engine.python")
    'runs'
    >>> effect_of("costs.taker_fee") is None
    True
    >>> effect_of("training.credit", "shapley") is None
    True
    >>> effect_of("training.credit", "mine:Credit")
    'runs'
    """
    if key in _BY_NAME and isinstance(value, str) and _NAME.fullmatch(value):
        return None
    section, _, name = key.partition(".")
    if any(f"{name}.".startswith(f"{known}.") for known in MAY_SET.get(section, ())):
        return None
    return next((effect for known, effect in USER_ONLY.items() if f"{key}.".startswith(f"{known}.")), "runs")


def places_in(stated: Config) -> dict[str, Any]:
    """Where a configuration says that data lies, by key."""
    return {
        key: _value(stated.to_dict(), key) for key, effect in USER_ONLY.items() if effect == "reads" and _measured(key)
    }


def taken_from(
    stated: Config, given: Collection[str] = (), *, own_places: bool = False
) -> tuple[Config, tuple[Withheld, ...]]:
    """What an artefact may say of a configuration, the defaults in the place of all else, and what was withheld.

    A setting that has its default says nothing. `given` are keys that the user sets himself: they are not withheld,
    as what the artefact says of them is not used. With `own_places` the user himself has written where data lies.
    """
    known = frozenset(places_in(stated)) if own_places else frozenset[str]()
    defaults = Config().to_dict()
    withheld = [
        Withheld(key, value)
        for key, value in _leaves(stated.to_dict(), Config)
        if effect_of(key, value) is not None and key not in known and value != _value(defaults, key)
    ]
    document = stated.to_dict()
    for one in withheld:
        *path, name = one.key.split(".")
        _value(document, ".".join(path))[name] = _value(defaults, one.key)
    try:
        taken = Config.model_validate_json(json.dumps(document))
    except ValueError as error:
        raise ConfigError(
            f"without {', '.join(one.key for one in withheld)}, which an artefact may not set, its other settings "
            f"contradict each other ({error}): name a configuration of your own with --config"
        ) from error
    return taken, tuple(one for one in withheld if not any(_covers(key, one.key) for key in given))


def notice(where: str, withheld: Iterable[Withheld]) -> str:
    """One sentence on what was withheld and how the user sets it; empty where nothing was."""
    listed = list(withheld)
    if not listed:
        return ""
    named = ", ".join(f"{one.key} = {json.dumps(one.value)}" for one in listed)
    options = " ".join(one.option for one in listed)
    return (
        f"{where} says {named}. What is run, contacted, read or spent is not taken from there. If you want it so, say "
        f"it yourself: {options}"
    )


def given_keys(overrides: Iterable[str], **fields: object) -> frozenset[str]:
    """The keys that a user sets with overrides such as `engine.kind=vllm`, and with the options --data, --funding and
    --news as `fields`."""
    options = {"data": "market.data", "funding": "market.funding_dir", "news": "market.news"}
    named = {text.partition("=")[0].strip() for text in overrides}
    return frozenset(named | {options[name] for name, value in fields.items() if value})


def _measured(key: str) -> bool:
    if key == "market.source":  # what it gave is kept in a folder, which market.data names
        return False
    return key.partition(".")[0] in _MEASURED


def _covers(given: str, key: str) -> bool:
    return f"{key}.".startswith(f"{given}.")


def _leaves(values: Mapping[str, Any], model: type[Section], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Every setting of a document by its dotted key; a table by names is one setting."""
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _leaves(values[name], kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", values[name]


def _value(document: Any, key: str) -> Any:
    for part in key.split("."):
        document = document[part]
    return document
