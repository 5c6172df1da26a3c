"""How often a property is tried.

`make test` tries the properties that take long with a third of their examples, `make test-all` with all of them
(`EVERY_EXAMPLE=1`). Which these are says `tried`.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

SHARE = 1 if os.environ.get("EVERY_EXAMPLE") else 3


def tried(times: int, **more: Any) -> settings:
    """Settings of a property that is tried so many times with `EVERY_EXAMPLE`, and otherwise a third as often."""
    return settings(max_examples=-(-times // SHARE), deadline=None, **more)
