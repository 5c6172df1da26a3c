"""What the tests of several processes share: the account of the gateways that they start is in the environment."""

from __future__ import annotations

import pytest

from tests.backend.store.servers import CREDENTIALS


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
