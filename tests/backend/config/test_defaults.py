"""A default is written once: what the configuration feeds has no numbers of its own."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, fields

import pytest

from backend.config.market import CostsConfig, MarketConfig
from backend.config.schema import GuardConfig
from backend.config.training import TrainingConfig
from backend.training.rollout.collect import RolloutSettings
from cryptosentinel.guard.limits import GuardLimits
from cryptosentinel.team_settings import Section, TeamConfig
from simulator.exchange.costs import Costs
from simulator.synthetic.config import SyntheticConfig

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


def written(owner: type) -> set[str]:
    """The fields whose default is a literal in the source of the class, as `x: int = 5` or `x: int = Field(5, ...)`."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        node.target.id
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_literal(node.value)
    }


def _is_literal(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return any(
            _is_literal(one) for one in (*value.args[:1], *(k.value for k in value.keywords if k.arg == "default"))
        )
    try:
        return value is not None and ast.literal_eval(value) is not MISSING
    except ValueError:
        return False


@pytest.mark.parametrize(("settings", "sections"), PAIRS, ids=[one.__name__ for one, _ in PAIRS])
def test_a_default_is_written_once(settings: type, sections: tuple[type[Section], ...]) -> None:
    fed = 0
    for section in sections:
        for field in fields(settings):
            if field.name not in section.model_fields or (settings, field.name) in DIFFERENT:
                continue
            fed += 1
            where = f"{settings.__name__}.{field.name} and {section.__name__}.{field.name}"
            assert field.name not in written(settings) & written(section), f"{where} both write their default"
            if field.default is not MISSING:
                assert field.default == section.model_fields[field.name].default, f"{where} differ"
    assert fed


def test_a_literal_is_recognised() -> None:
    assert {"clip_low", "beta", "lr_end", "lora_rank"} <= written(TrainingConfig)
    assert "learning_rate" not in written(TrainingConfig)
    assert "taker_fee" in written(Costs) and "taker_fee" not in written(CostsConfig)
