"""Two network namespaces of this machine with a cable between them: processes in them reach each other by it alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


class NoNamespaces(Exception):
    """This machine lets this user make none; the message says why."""


@dataclass(frozen=True)
class Machines:
    """The namespaces `first` and `second`, and their addresses."""

    first: str
    second: str
    first_address: str
    second_address: str

    def inside(self, namespace: str, command: Sequence[str]) -> list[str]:
        """A command that runs another one in a namespace."""
        return ["ip", "netns", "exec", namespace, *command]

    def pull_cable(self) -> None:
        """From now on no packet passes, and nobody is told."""
        _ip("-n", self.second, "link", "set", "cable", "down")

    def plug_cable(self) -> None:
        """Packets pass again."""
        _ip("-n", self.second, "link", "set", "cable", "up")


@contextmanager
def two_machines() -> Iterator[Machines]:
    """Two namespaces for a block. Raises `NoNamespaces`."""
    if shutil.which("ip") is None:
        raise NoNamespaces("there is no `ip` command")
    if os.geteuid() != 0:
        raise NoNamespaces("network namespaces need root")
    number = os.getpid() % 200
    first, second = f"cs-{os.getpid()}-1", f"cs-{os.getpid()}-2"
    machines = Machines(first, second, f"10.77.{number}.1", f"10.77.{number}.2")
    made: list[str] = []
    try:
        for name in (first, second):
            _ip("netns", "add", name)
            made.append(name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second)
        for name, address in ((first, machines.first_address), (second, machines.second_address)):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            _ip("-n", name, "link", "set", "cable", "up")
    except subprocess.CalledProcessError as error:
        _remove(made)
        raise NoNamespaces(f"`ip` refused: {error.stderr.strip()}") from error
    try:
        yield machines
    finally:
        _remove(made)


def _remove(names: Sequence[str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
