"""Settings that were once called otherwise, or that there are no more.

A TOML file and `--set` are the user's own text: a former key there is an error that says what to write instead. The
configuration of a stored run, of an export or of a team's folder is a record: `brought_up_to_date` renames its keys, so
that old runs stay readable and can be continued. A removed setting is left out of such a record. Where its value was
not the default, the run cannot be continued as it was: `not_continuable` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Keys of [training] that are in [training.experimental] now.
_EXPERIMENTAL = (
    "per_role",
    "models",
    "ratio",
    "policy_loss",
    "aggregation",
    "constant_length",
    "importance",
    "importance_cap",
    "group",
    "min_group",
    "scale_rewards",
    "reward_aggregation",
    "credit",
    "alignment_target",
    "alignment_window",
    "alpha_end",
    "beta_end",
    "overlong_length",
    "overlong_buffer",
    "mask_truncated",
    "dynamic_rounds",
    "hard_share",
    "detrend",
    "outcome_scale",
    "staleness",
    "collapse_margin",
    "max_skipped",
    "auto_stop",
)
# Former key or section -> what it is called now, as dotted paths. They apply in this order.
RENAMED: Mapping[str, str] = {
    "specialise": "sft",
    "sft.waver": "sft.random_share",
    "training.futures_paths": "training.scenario_paths",
    "training.futures_from": "training.scenario_source",
    "training.optimiser": "training.optimizer",
    "training.quantisation": "training.quantization",
    "training.schedule": "training.lr_schedule",
    "training.unsynchronised": "training.experimental.newest_weights",
    "team.schemas_in_prompt": "team.prompts",
    "nano.hidden": "nano.hidden_size",
    "nano.intermediate": "nano.intermediate_size",
    **{f"training.{key}": f"training.experimental.{key}" for key in _EXPERIMENTAL},
}
# Key -> its former values, and what each is called now.
VALUES: Mapping[str, Mapping[str | bool, str]] = {
    "team.prompts": {False: "short", True: "full"},
    "engine.kind": {"transformers": "local"},
}
# Settings that are newer than some records, with the value under which a run goes on as it was recorded. A record that
# has the section and not the setting was written before.
ADDED: Mapping[str, Any] = {
    "team.prompts": "short",
    "guard.on_loss": "freeze",
    "guard.max_daily_turnover": 0.0,
}
# Former defaults that said in full what a word says today.
WRITTEN_OUT: Mapping[str, tuple[list[str], list[str]]] = {
    "training.lora_targets": (
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        ["all-linear"],
    ),
}
_MISSING = object()


@dataclass(frozen=True)
class Removed:
    """A setting that there is no more: what it defaulted to, and what to do instead."""

    default: Any
    instead: str


REMOVED: Mapping[str, Removed] = {
    "training.alternate": Removed(
        0, "all roles learn in every step; to train some of them alone, use training.freeze in one run after the other"
    ),
}


def former_name(key: str, value: object = None) -> str | None:
    """What to write instead of `key` with `value`; None for one that is no former key or value.

    >>> former_name("training.futures_paths")
    'training.scenario_paths'
    >>> former_name("specialise.waver")
    'sft.random_share'
    >>> former_name("training.per_role.trader.kl")
    'training.experimental.per_role.trader.kl'
    >>> former_name("engine.kind", "transformers")
    "engine.kind = 'local'"
    """
    present = key
    for former, now in RENAMED.items():
        if f"{present}.".startswith(f"{former}."):
            present = now + present[len(former) :]
    if present != key:
        value = VALUES.get(present, {}).get(value) if isinstance(value, str | bool) else None
        return present if value is None else f"{present} = '{value}'"
    known = VALUES.get(key, {}).get(value) if isinstance(value, str) else None
    return None if known is None else f"{key} = '{known}'"


def not_continuable(document: Mapping[str, Any]) -> list[str]:
    """Why a run with this stored configuration cannot be continued, a sentence each; empty where it can."""
    data = _copied(document)
    problems = []
    for name, removed in REMOVED.items():
        value = _taken(data, name.split("."))
        if value is not _MISSING and value != removed.default:
            problems.append(
                f"{name} = {value!r}: this version has no such setting and cannot continue a run that used it "
                f"({removed.instead}); continue it with the version that wrote it, or train anew"
            )
    return problems


def brought_up_to_date(document: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration (section -> key -> value) with the keys and values that it would be written with today.

    Where a document has a key under both names, the present one stands. Removed settings are left out; those that came
    later get the value that does what was done then.
    """
    data: dict[str, Any] = _copied(document)
    for former, present in RENAMED.items():
        value = _taken(data, former.split("."))
        if value is not _MISSING:
            _put(data, present.split("."), value)
    for name in REMOVED:
        _taken(data, name.split("."))
    for name, (former_list, word) in WRITTEN_OUT.items():
        *sections, key = name.split(".")
        keys = _section(data, sections)
        if keys is not None and isinstance(keys.get(key), list | tuple) and list(keys[key]) == former_list:
            keys[key] = word
    for name, value in ADDED.items():
        *sections, key = name.split(".")
        keys = _section(data, sections)
        if keys:
            keys.setdefault(key, value)
    for name, values in VALUES.items():
        *sections, key = name.split(".")
        keys = _section(data, sections)
        if keys is not None and isinstance(keys.get(key), str | bool):
            keys[key] = values.get(keys[key], keys[key])
    return data


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _section(data: dict[str, Any], path: list[str]) -> dict[str, Any] | None:
    """The table at `path`; None where there is none."""
    table: Any = data
    for part in path:
        table = table.get(part) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else None


def _taken(data: dict[str, Any], path: list[str]) -> Any:
    """The value at `path`, which is taken out of `data`; `_MISSING` where it is not there."""
    keys = _section(data, path[:-1])
    return _MISSING if keys is None else keys.pop(path[-1], _MISSING)


def _put(data: dict[str, Any], path: list[str], value: Any) -> None:
    """Put `value` at `path`; into a table that is there already, and in the place of nothing."""
    for part in path[:-1]:
        inner = data.setdefault(part, {})
        data = inner if isinstance(inner, dict) else {}  # what is no table is refused later, by its type
    there = data.setdefault(path[-1], value)
    if isinstance(there, dict) and isinstance(value, dict):
        data[path[-1]] = value | there
