"""Imports the database's client library without the network libraries that it needs for connections over HTTP.

`surrealdb` imports aiohttp and requests, half a second of processor time, and this program never connects over HTTP.
While the library is imported, stand-ins take their places: a name of theirs in an annotation is left as a reference.
Afterwards the stand-ins are gone for everybody else, and where the library uses one, the real module is imported.
`backend/store/__init__.py` imports this module before all others that use the library.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, ForwardRef


class _Deferred(ModuleType):
    """Stands for a module that is imported when it is used."""

    def __getattr__(self, name: str) -> Any:
        """A reference to the attribute while the stand-in is in place, the attribute itself afterwards."""
        if sys.modules.get(self.__name__) is self:
            return ForwardRef(f"{self.__name__}.{name}")  # of no other use than in an annotation
        return getattr(importlib.import_module(self.__name__), name)


_deferred = [_Deferred(name) for name in ("aiohttp", "requests") if name not in sys.modules]
sys.modules.update({module.__name__: module for module in _deferred})
try:
    importlib.import_module("surrealdb")
finally:
    for _module in _deferred:
        if sys.modules.get(_module.__name__) is _module:
            del sys.modules[_module.__name__]
