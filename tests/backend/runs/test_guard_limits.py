"""The guard's section of the configuration."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest

from backend.builders.market import limits_of
from backend.config.load import load_config
from backend.config.schema import ConfigError, GuardConfig


def test_what_is_not_set_is_no_limit() -> None:
    limits = asdict(limits_of(GuardConfig()))
    unlimited = {"max_net_exposure", "max_order_rate", "price_band", "max_order_notional", "max_symbol_notional"}
    unlimited |= {"drawdown_pause_hours"}
    assert {name for name, value in limits.items() if value == math.inf} == unlimited
    given = {"price_band": 0.1, "max_order_rate": 9, "max_symbol_notional": 5e4, "shutdown_drawdown": 0.3}
    assert asdict(limits_of(GuardConfig.model_validate(given))) == {**limits, **given}


@pytest.mark.parametrize("wrong", ["max_order_rate=1", "max_order_rate=-1", "price_band=2", "rate_hours=0"])
def test_a_limit_that_cannot_be_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"guard.{wrong.partition('=')[0]}|{wrong.partition('=')[0]} = "):
        load_config("demo", [f"guard.{wrong}"])
