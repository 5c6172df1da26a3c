"""A Ray cluster to train on: one of its own on this machine, or one that is there. Connecting has bounds.

Ray itself waits minutes for an address where nothing answers, and ends the process that uses it when its control
service (GCS) has been away for a minute. So both are checked before Ray does.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from backend.config.schema import ConfigError
from backend.policies.temporary import temporary_folder
from simulator.errors import RunFailed, UserError

ADDRESS = "RAY_ADDRESS"
LOCAL = "local"
_ANSWER = 30.0  # seconds in which a cluster has to say that it is well
_CONNECT = 5.0
_STORE = 128 * 2**20  # bytes of a cluster of our own for objects: what travels there is small
_LONGEST = 40  # characters: Ray adds 65, and a Unix socket's path has at most 107


def cluster_address(asked: str, store: str) -> str:
    """The cluster that `--ray-address` or the environment names, `local` for one that this process starts.

    Raises `ConfigError` where Ray is not installed or the address cannot be used, and for a store that the cluster's
    machines cannot reach.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--launch ray needs Ray, which is not installed: install cryptosentinel[ray]")
    address = asked or os.environ.get(ADDRESS, "") or LOCAL
    if address == LOCAL:
        return address
    named = "--ray-address" if asked else ADDRESS
    if "://" in address or (address != "auto" and not address.rpartition(":")[2].isdigit()):
        raise ConfigError(
            f"{named} {address}: give HOST:PORT of the cluster's head, as `ray start` prints it, from a machine that "
            "has joined it; or auto, for the one that this machine is in"
        )
    if not store.startswith(("ws://", "wss://")):
        raise ConfigError(
            f"the machines of the cluster at {address} cannot open the folder --store {store}: start a SurrealDB "
            "server that all of them reach (deploy/compose.yaml), and give its ws:// address as --store"
        )
    return address


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """Ray, connected for a block to the cluster at `address`; `local` is started before it and ended after it.

    Raises `UserError` for a cluster that does not answer, or has another version of Ray or Python.
    """
    with _environment({"RAY_DEDUP_LOGS_SKIP_REGEX": "."}):  # who watches the actors tells of their deaths
        import ray
        from ray.exceptions import RayError

    logging.getLogger("ray").setLevel(logging.ERROR)
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    main = threading.current_thread() is threading.main_thread()
    former = signal.getsignal(signal.SIGTERM)
    temporary = None
    try:
        if address == LOCAL:
            temporary = temporary_folder("ray", prefix="cs-", inside=_short_folder)
            with _environment(_own_environment()):
                ray.init(LOCAL, include_dashboard=False, object_store_memory=_STORE, _temp_dir=str(temporary), **quiet)
        else:
            _require_answer(address)
            ray.init(address, **quiet)
        if main:
            signal.signal(signal.SIGTERM, former)  # Ray has put its own there
        yield
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        if ray.is_initialized() or isinstance(error, (UserError, RunFailed)):
            raise
        raise UserError(f"the Ray cluster at {address} cannot be used: {_first_line(error)}") from error
    finally:
        ray.shutdown()
        if main:
            signal.signal(signal.SIGTERM, former)
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def require_alive() -> None:
    """Raise `RunFailed` if the cluster that we are connected to has gone."""
    import ray

    address = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    for _ in range(3):
        with socket.socket() as probe:
            probe.settimeout(_CONNECT)
            if probe.connect_ex((host, int(port))) == 0:
                return
    raise RunFailed(f"the Ray cluster at {address} has ended")


def _require_answer(address: str) -> None:
    """Raise `UserError` for a cluster that does not say within `_ANSWER` seconds that it is well."""
    host, _, port = address.rpartition(":")
    if host:
        try:
            socket.create_connection((host, int(port)), _CONNECT).close()
        except OSError as error:
            raise UserError(
                f"no Ray cluster answers at {address} ({error}): is it running (`ray status` on its head), and does "
                "this machine reach it?"
            ) from error
    asking = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    try:
        asked = subprocess.run(
            asking + (["--address", address] if host else []), capture_output=True, text=True, timeout=_ANSWER
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"what listens at {address} has not answered as a Ray cluster for {_ANSWER:.0f} s") from error
    if asked.returncode:
        lines = (asked.stderr or asked.stdout).strip().splitlines()
        raise UserError(
            f"the Ray cluster at {address} is not well: {lines[-1][:300] if lines else 'it gave no reason'}"
        )


def _short_folder() -> str:
    """Where a cluster's files may lie such that the paths of its sockets are short enough."""
    own = tempfile.gettempdir()
    return own if len(own) + len("/cs-ray-12345678") <= _LONGEST else "/tmp"


def _own_environment() -> dict[str, str]:
    """What the processes of a cluster of our own inherit, where the user has not said otherwise."""
    own = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    own |= {"RAY_USAGE_STATS_ENABLED": "0"}
    if not any(name.startswith("RAY_AUTH_") for name in os.environ):  # else Ray leaves one in the home folder
        own |= {"RAY_AUTH_TOKEN": cluster_token()}
    return own


@cache
def cluster_token() -> str:
    """What the processes of a cluster of our own know each other by. The same for all clusters of this process, since
    Ray reads it once."""
    return secrets.token_hex(32)


@contextmanager
def _environment(own: dict[str, str]) -> Iterator[None]:
    former = {name: os.environ.get(name) for name in (*own, "RAY_AUTH_MODE")}  # which Ray sets itself
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:400]
