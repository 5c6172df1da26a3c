"""The guard's section of the configuration."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest

from backend.builders.market import limits_of
from backend.config.load import load_config
from backend.config.schema import ConfigError, GuardConfig


def test_what_is_not_set_is_no_limit() -> None:
    limits = asdict(limits_of(GuardConfig(max_daily_turnover=0.0)))
    assert {name for name, value in limits.items() if value == math.inf} == {"max_daily_turnover"}
    given = {"max_daily_turnover": 2.0, "max_drawdown": 0.3}
    assert asdict(limits_of(GuardConfig.model_validate(given))) == {**limits, **given}


@pytest.mark.parametrize("wrong", ["max_daily_turnover=-1", "max_drawdown=2", "daily_loss=0"])
def test_a_limit_that_cannot_be_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"guard.{wrong.partition('=')[0]}|{wrong.partition('=')[0]} = "):
        load_config("demo", [f"guard.{wrong}"])
