"""What holds for all tests."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's affair: no test fails by the clock.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

# A shell that puts a command into the background lets it ignore Ctrl-C, which tests send to themselves and to others.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs of tests are signed with a key of their own, never with that of whoever runs them."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_STATE_HOME", str(Path(tmp_path_factory.mktemp("state"))))
