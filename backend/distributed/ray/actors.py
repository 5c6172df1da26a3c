"""What runs on a Ray cluster: a process of a training as an actor, and the probe of a machine before there is one.

No secret is among the arguments: Ray keeps those. The store's credentials come from the environment of the machine.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn

from backend.distributed.files.run_files import SERVICES, CarriedFiles, Library, RunFiles
from backend.distributed.logs import Ended, Place, last_message, logged
from backend.store.run_record import code_version

_POLL = 0.5  # seconds between two questions whether to stop
_MACHINE = "machine"  # in place of a process's name: copies of all processes of a machine
_PATIENCE = 30.0  # seconds in which the file server must answer them


@dataclass(frozen=True)
class Machine:
    """A machine of a cluster, and whether the folder of the runs is the same there as with the driver."""

    node: str
    host: str
    code: str
    shared: bool


@dataclass(frozen=True)
class Incarnation:
    """What an actor is until it ends: rollout worker `number`, or the trainer of `role`.

    `where` is the store, `runs` the folder of the runs and `folder` the working directory, both as the driver has
    them; `replaces` are the ids of dead processes whose place it takes; `shared` is `Machine.shared`; `approved` is the
    digest of the configuration that the driver answers for.
    """

    name: str
    where: str
    run: str
    runs: str
    folder: str
    shared: bool
    number: int = 0
    role: str | None = None
    replaces: str = ""
    approved: str = ""


def probe(node: str, marker: str, token: str) -> Machine:
    """The machine that this runs on. It shares the driver's folder if the file `marker` holds `token`, which the driver
    has just written there."""
    try:
        shared = Path(marker).read_text() == token
    except OSError:
        shared = False
    return Machine(node, socket.gethostname(), code_version(), shared)


class FileServer(Library):
    """The files of a run, served by an actor on the driver's machine. It also tells the processes to stop."""

    def __init__(self, folder: str, base: str) -> None:
        super().__init__(Path(folder), Path(base))
        self._stopping = False

    def stop(self) -> None:
        """From here on, the processes of the run are to end."""
        self._stopping = True

    def stopping(self) -> bool:
        """Whether they are."""
        return self._stopping


class RayProcess:
    """A process of a run as an actor: the same worker or trainer that `serve rollout` and `serve trainer` run.

    Its method runs in the main thread of its process, as a signal can only be taken there.
    """

    def __init__(self, file_server: Any) -> None:
        self._file_server = file_server

    def identify(self) -> tuple[int, str]:
        """The id of the process, and the machine that it is on."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id()

    def run(self, incarnation: Incarnation) -> tuple[int, str]:
        """Work to the end; the exit code that the command would have had, and the last message of the log."""
        runs = Path(incarnation.runs) if incarnation.shared else _cache(incarnation.name)
        folder = runs / incarnation.run
        log = folder / SERVICES / f"{incarnation.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        if Path(incarnation.folder).is_dir():
            os.chdir(incarnation.folder)  # paths of the configuration are relative to it
        files = RunFiles(folder)
        if not incarnation.shared:
            files = CarriedFiles(folder, self._call, _cache(_MACHINE) / incarnation.run)
        code, over = 0, threading.Event()
        with log.open("a", buffering=1) as output:
            _redirect_output(output)
            former = signal.signal(signal.SIGTERM, _interrupt)
            watch = threading.Thread(target=self._watch, args=(over,), name="watch of the driver", daemon=True)
            watch.start()
            try:
                with logged(Place(incarnation.run, incarnation.name, incarnation.role)):
                    _work(incarnation, runs, files)
            except Ended as ended:
                code = ended.code
            finally:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends already
                over.set()
                watch.join(_PATIENCE)
                signal.signal(signal.SIGTERM, former)
        message = last_message(log)
        if isinstance(files, CarriedFiles):
            files.deliver(f"{SERVICES}/{log.name}")
            files.remove()
        return code, message

    def _call(self, method: str, *arguments: Any) -> Any:
        """A method of the library; large arguments and answers go by Ray's object store."""
        import ray

        return ray.get(getattr(self._file_server, method).remote(*arguments))

    def _watch(self, over: threading.Event) -> None:
        """Interrupt the main thread when the driver wants everybody to end, or cannot be asked any more."""
        import ray
        from ray.exceptions import RayError

        answered = time.monotonic()
        while not over.wait(_POLL):
            try:
                stopping = ray.get(self._file_server.stopping.remote(), timeout=_PATIENCE)
                answered = time.monotonic()
            except RayError:
                stopping = time.monotonic() - answered > _PATIENCE
            if stopping:
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGTERM)
                return


def _work(incarnation: Incarnation, runs: Path, files: RunFiles) -> None:
    from backend.distributed.entrypoints import run_role, run_worker

    if incarnation.role is None:
        run_worker(
            incarnation.where,
            incarnation.run,
            runs,
            incarnation.number,
            incarnation.replaces,
            files,
            incarnation.approved,
        )
    else:
        run_role(
            incarnation.where,
            incarnation.run,
            runs,
            incarnation.role,
            incarnation.replaces,
            files,
            incarnation.approved,
        )


def _cache(name: str) -> Path:
    """The folder of the copies of the process of this name: the user's, so that nobody else can put anything there."""
    top = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(top) / "cryptosentinel" / "ray" / name


def _redirect_output(output: IO[str]) -> None:
    """Send all output of this process, that of libraries in C too, to the file."""
    sys.stdout = sys.stderr = output
    for number in (1, 2):
        os.dup2(output.fileno(), number)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
