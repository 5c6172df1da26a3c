"""Imports the database's client library without the network libraries that it needs for connections over HTTP.

`surrealdb` imports aiohttp and requests, half a second of processor time. This program never connects over HTTP: a
store is a folder, or a server behind a WebSocket. While the library is imported, stand-ins take the places of these
two: a name of theirs in an annotation is left as a reference. Afterwards the stand-ins are gone for everybody else, and
where the library uses one, the real module is imported. `backend/store/__init__.py` imports this module before all
others that use the library.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, ForwardRef

UNUSED = ("aiohttp", "requests")


class Deferred(ModuleType):
    """Stands for a module that is imported when it is used."""

    def __getattr__(self, name: str) -> Any:
        """A reference to the attribute while the stand-in is in place, the attribute itself afterwards."""
        if sys.modules.get(self.__name__) is self:
            return ForwardRef(f"{self.__name__}.{name}")  # of no other use than in an annotation
        return getattr(importlib.import_module(self.__name__), name)

    def leave(self) -> None:
        """From now on an import of the module gives itself."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


def import_without(package: str, unused: tuple[str, ...]) -> None:
    """Import a package; those of `unused` that nobody has imported yet are imported once they are used."""
    deferred = [Deferred(name) for name in unused if name not in sys.modules]
    sys.modules.update({module.__name__: module for module in deferred})
    try:
        importlib.import_module(package)
    finally:
        for module in deferred:
            module.leave()


import_without("surrealdb", UNUSED)
