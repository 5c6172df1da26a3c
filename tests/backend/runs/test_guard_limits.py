"""The guard's section of the configuration."""

from __future__ import annotations

import pytest

from backend.builders.market import limits_of
from backend.config.load import load_config
from backend.config.schema import ConfigError, GuardConfig
from cryptosentinel.guard.guard import GuardLimits


def test_what_is_not_set_is_no_limit() -> None:
    assert limits_of(GuardConfig()) == GuardLimits()
    given = GuardConfig(price_band=0.1, max_order_rate=9, max_symbol_notional=5e4, shutdown_drawdown=0.3)
    assert limits_of(given) == GuardLimits(
        price_band=0.1, max_order_rate=9, max_symbol_notional=5e4, shutdown_drawdown=0.3
    )


@pytest.mark.parametrize("wrong", ["max_order_rate=1", "max_order_rate=-1", "price_band=2", "rate_hours=0"])
def test_a_limit_that_cannot_be_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"guard.{wrong.partition('=')[0]}|{wrong.partition('=')[0]} = "):
        load_config("demo", [f"guard.{wrong}"])
