"""What holds for all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's affair: no test fails by the clock.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def _own_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs of tests are signed with a key of their own, never with that of whoever runs them."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_STATE_HOME", str(Path(tmp_path_factory.mktemp("state"))))
