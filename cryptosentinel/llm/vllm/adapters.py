"""Which adapter answers for which role, which are still in use, and which the server can forget."""

from __future__ import annotations

from collections import Counter


class Adapters:
    """The versions of the roles' adapters on a server. A version is named by its content, so several roles may share
    one. Not safe for threads by itself."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self._current: dict[str, str] = {}
        self._previous: dict[str, str] = {}
        self._flying: Counter[str | None] = Counter()  # requests under way; None: of the base model

    def current(self, role: str) -> str | None:
        """The version that answers for `role` now; None where it has had none."""
        return self._current.get(role)

    def switch(self, role: str, version: str) -> list[str]:
        """Answer for `role` with `version`, which is loaded, from now on. Returns what can be unloaded now."""
        before = self._current.get(role)
        self.loaded.add(version)
        if version != before:
            self._current[role] = version
            if before is not None:
                self._previous[role] = before
        return self._free()

    @property
    def base_in_use(self) -> bool:
        """Whether a request of the base model is under way."""
        return None in self._flying

    def take(self, role: str) -> str | None:
        """The version for a request that starts now, None for the base model; it stays until `give_back`."""
        version = self._current.get(role)
        self._flying[version] += 1
        return version

    def give_back(self, version: str | None) -> list[str]:
        """A request that `take` gave `version` has ended. Returns what can be unloaded now."""
        self._flying[version] -= 1
        if not self._flying[version]:
            del self._flying[version]
        return self._free()

    def _free(self) -> list[str]:
        """Loaded versions that are no role's, nor were just before, nor have a request under way."""
        kept: set[str | None] = {*self._current.values(), *self._previous.values(), *self._flying}
        free = sorted(self.loaded - kept)
        self.loaded -= set(free)
        return free
