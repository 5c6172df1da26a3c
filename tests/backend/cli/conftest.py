"""What tests of the command line share: a process that runs commands and lets them be killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.killable import Killable


@pytest.fixture(scope="session")
def killable() -> Iterator[Killable]:
    with Killable() as process:
        yield process
