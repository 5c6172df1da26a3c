"""How new weights reach the engine that rolls out: into this process, or as adapters to a vLLM server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, runtime_checkable

from backend.policies.adapters import export_adapter
from backend.policies.role_policies import RolePolicies
from cryptosentinel.llm.engine import Engine
from cryptosentinel.llm.local.engine import LocalEngine


@runtime_checkable
class AdapterServer(Protocol):
    """An engine that reads adapters from folders: `VllmEngine`, whose package `openai` a training here does without."""

    def policy_version(self, role: str) -> str:
        """The version that answers for `role`."""
        ...

    def publish(self, role: str, version: str, folder: Path) -> None:
        """From here on, the adapter in `folder` answers for `role`, as `version`."""
        ...


class Publisher(Protocol):
    """Puts the present policies of roles where the engine answers with them."""

    def publish(self, roles: Iterable[str]) -> None:
        """From here on, the engine answers with the present weights of `roles`."""
        ...

    def forget(self) -> None:
        """From here on, what the engine samples does not depend on what it has read before, if it can promise that."""
        ...


class InProcess:
    """Merged weights, handed to the engine in this process. What follows `forget` has the same bits in a run that was
    resumed."""

    def __init__(self, engine: LocalEngine, policies: RolePolicies) -> None:
        self._engine, self._policies = engine, policies

    def publish(self, roles: Iterable[str]) -> None:
        """Merge and hand over."""
        for role in roles:
            self._engine.set_weights(role, self._policies.merged_state(role), self._policies.version(role))

    def forget(self) -> None:
        """Empty the prefix caches."""
        self._engine.forget()


class ToServer:
    """Adapters as PEFT folders below `folder`, which the server reads. Its own cache of prefixes is not emptied, and
    its batches are its own, so that a resumed run may differ in the last bits of its log-probs."""

    def __init__(self, engine: AdapterServer, policies: RolePolicies, folder: Path) -> None:
        self._engine, self._policies, self._folder = engine, policies, folder

    def publish(self, roles: Iterable[str]) -> None:
        """Export and load. A version that is served already stays as it is."""
        for role in roles:
            version = self._policies.version(role)
            if self._engine.policy_version(role) != version:
                adapter = export_adapter(self._policies, role, self._folder / version)
                self._engine.publish(role, adapter.version, adapter.folder)

    def forget(self) -> None:
        """Nothing to do: see above."""


def publisher(engine: Engine, policies: RolePolicies, folder: Path) -> Publisher:
    """The publisher that fits the engine; `folder` is for adapters that a server reads."""
    if isinstance(engine, LocalEngine):
        return InProcess(engine, policies)
    if isinstance(engine, AdapterServer):
        return ToServer(engine, policies, folder)
    raise TypeError(f"the engine '{engine.name}' takes no new weights, so nothing can be trained through it")
