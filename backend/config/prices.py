"""What well-known models cost at their providers: the table that is shipped, with its date.

Prices change. A user's own entries (`budget.prices`) come before the table, and a model that neither knows has no
price: never 0.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from cryptosentinel.conversation.budget import Price

_TABLE = Path(__file__).with_name("prices.toml")
_DATED = re.compile(r"(?:-\d{4}-\d{2}-\d{2}|-\d{8}|@\d{8}|-latest)\Z")  # how providers name a version of a model


def shipped_price(provider: str, model: str) -> Price | None:
    """The price of a model at a provider in USD, which counts as quote currency; None where the table has none."""
    name = model.removeprefix("models/")
    if provider == "openrouter":  # it passes on the prices of the vendor that it names
        vendor, _, name = name.partition("/")
        if name.partition(":")[2] == "free":
            return Price()
        provider, name = vendor, name.partition(":")[0]
        if vendor == "anthropic":  # it writes claude-opus-4.5 where Anthropic writes claude-opus-4-5
            name = name.replace(".", "-")
    rows = _table().get(provider, {})
    row = rows.get(name) or rows.get(_DATED.sub("", name))
    return None if row is None else Price(*row)


def prices_date() -> str:
    """The day on which the table was made, as 2026-11-22."""
    return str(_document()["date"])


@cache
def _document() -> dict[str, Any]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))


def _table() -> dict[str, dict[str, list[float]]]:
    return {name: rows for name, rows in _document().items() if isinstance(rows, dict)}
