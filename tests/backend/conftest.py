"""The small nano, made once for all tests of a process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.small_world import small_nano


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm-started nano, to be read only."""
    torch.set_num_threads(1)
    return small_nano(tmp_path_factory.mktemp("nano") / "nano")
