"""What the page's server keeps from one look to the next, for all who look, such as what was read of runs that have
ended. It is kept by this process and not by a tab, so that it can be made ready before anybody asks."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Kept(Generic[Value]):
    """The newest `most` values by their key. What two ask for at once is made once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._values

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, which `make` gives where there is none yet. Raises what `make` raises."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._values:
                    return self._values[key]
            value = make()
            with self._lock:
                self._values[key] = value
                self._making.pop(key, None)
                while len(self._values) > self._most:
                    self._values.popitem(last=False)
            return value
