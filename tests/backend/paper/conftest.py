"""What holds for all tests of paper sessions."""

from collections.abc import Iterator

import pytest

from backend.paper import switch


@pytest.fixture(autouse=True, scope="session")
def switch_is_read_at_every_bar() -> Iterator[None]:
    """Recorded bars pass faster than the switch's files are looked at, so a stop would come a bar earlier or later with
    the speed of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(switch, "_LOOK_SECONDS", 0.0)
        yield
