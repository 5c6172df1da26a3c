"""What holds for all tests."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test fails by the clock, and none by a draw: examples are the same in every run, and none are kept from an earlier
# one. `make test-all` draws others each time, from a seed that it prints, and twice as many.
_PROFILE = settings(deadline=None, database=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeated", _PROFILE, derandomize=True, max_examples=50)
settings.register_profile("drawn", _PROFILE)
settings.load_profile("drawn" if os.environ.get("EVERY_EXAMPLE") else "repeated")

# Containers often forbid bytecode. Then every worker rewrites all tests anew, and each of the many processes that tests
# start compiles the whole program: together a minute and more.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell that puts a command into the background lets it ignore Ctrl-C, which tests send to themselves and to others.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# `nohup` lets it ignore the end of its terminal, which they send too.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_MEMORY = Path("/dev/shm")
_ROOM = 4 * 2**30  # bytes; the fast tests never had a fiftieth of it at once


def pytest_configure(config: pytest.Config) -> None:
    """Fast tests keep their folders in memory where that has room: databases wait for the disk at each write, and
    tests for them, nearly half their time. Slow tests write gigabytes, and stay where pytest puts them."""
    if config.option.markexpr == "not slow" and has_room(_MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and all that they import are more than a million objects, which stay to the end: Python need
    not look through them again and again while they are gathered, nor in each of its collections afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def has_room(folder: Path) -> bool:
    """Whether tests may work there: it can be written to, has room, and lets programs be started."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    return shutil.disk_usage(folder).free >= _ROOM and not os.statvfs(folder).f_flag & os.ST_NOEXEC


@pytest.fixture(scope="session", autouse=True)
def _own_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs of tests are signed with a key of their own, never with that of whoever runs them."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_STATE_HOME", str(Path(tmp_path_factory.mktemp("state"))))
