"""A store of their own for the tests of training."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend.store.store import Store


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory."""
    with Store.open("mem://") as opened:
        yield opened
