"""What runs on a Ray cluster: a process of a training as an actor, and a look at a machine before there is any.

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

from backend.distributed.logs import Ended, Place, last_message, logged
from backend.distributed.run_files import SERVICES, CarriedFiles, Library, RunFiles
from backend.store.run_record import code_version

_ASK = 0.5  # seconds between two looks whether to stop
_PATIENCE = 30.0  # seconds in which who keeps the files must answer whether to stop


@dataclass(frozen=True)
class Machine:
    """A machine of a cluster, and whether the folder of the runs is the same there as with the driver."""

    node: str
    host: str
    code: str
    shared: bool


@dataclass(frozen=True)
class Life:
    """What an actor does until it ends: worker `number` of `workers`, or the trainer of `role`.

    `where` is the store, `runs` the folder of the runs and `folder` the working directory, both as the driver has
    them; `replaces` are the ids of the dead ones whose place it takes; `shared` is `Machine.shared`.
    """

    name: str
    where: str
    run: str
    runs: str
    folder: str
    shared: bool
    number: int = 0
    workers: int = 0
    role: str | None = None
    replaces: str = ""


def look(node: str, marker: str, token: str) -> Machine:
    """The machine that this runs on; `token` is what the driver has just written to the file `marker`."""
    try:
        shared = Path(marker).read_text() == token
    except OSError:
        shared = False
    return Machine(node, socket.gethostname(), code_version(), shared)


class Keeper(Library):
    """The library of a run as an actor on the driver's machine. It also tells the others to stop."""

    def __init__(self, folder: str, base: str) -> None:
        super().__init__(Path(folder), Path(base))
        self._stopping = False

    def stop(self) -> None:
        """From here on, the processes of the run are to end."""
        self._stopping = True

    def stopping(self) -> bool:
        """Whether they are."""
        return self._stopping


class Member:
    """A process of a run as an actor: the very worker or trainer that `serve rollout` and `serve trainer` run.

    Its method runs in the main thread of its process, as a signal can only be taken there.
    """

    def __init__(self, keeper: Any) -> None:
        self._keeper = keeper

    def hello(self) -> tuple[int, str]:
        """The id of the process, and the machine that it is on."""
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id()

    def live(self, life: Life) -> tuple[int, str]:
        """Do all of it; the exit code that the command would have had, and the last words."""
        own = Path(life.runs) if life.shared else _cache(life)
        folder = own / life.run
        log = folder / SERVICES / f"{life.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        if Path(life.folder).is_dir():
            os.chdir(life.folder)  # paths of the configuration are relative to it
        files = RunFiles(folder) if life.shared else CarriedFiles(folder, self._call)
        code, over = 0, threading.Event()
        with log.open("a", buffering=1) as output:
            _speak_into(output)
            former = signal.signal(signal.SIGTERM, _interrupt)
            watch = threading.Thread(target=self._watch, args=(over,), name="watch of the driver", daemon=True)
            watch.start()
            try:
                with logged(Place(life.run, life.name, life.role)):
                    _work(life, own, files)
            except Ended as ended:
                code = ended.code
            finally:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends already
                over.set()
                watch.join(_PATIENCE)
                signal.signal(signal.SIGTERM, former)
        words = last_message(log)
        if isinstance(files, CarriedFiles):
            files.deliver(f"{SERVICES}/{log.name}")
            files.remove()
        return code, words

    def _call(self, method: str, *arguments: Any) -> Any:
        """A method of the library; large arguments and answers go by Ray's object store."""
        import ray

        return ray.get(getattr(self._keeper, method).remote(*arguments))

    def _watch(self, over: threading.Event) -> None:
        """Interrupt the main thread when the driver wants everybody to end, or cannot be asked any more."""
        import ray
        from ray.exceptions import RayError

        heard = time.monotonic()
        while not over.wait(_ASK):
            try:
                stopping = ray.get(self._keeper.stopping.remote(), timeout=_PATIENCE)
                heard = time.monotonic()
            except RayError:
                stopping = time.monotonic() - heard > _PATIENCE
            if stopping:
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGTERM)
                return


def _work(life: Life, runs: Path, files: RunFiles) -> None:
    from backend.distributed.entrypoints import run_role, run_worker

    if life.role is None:
        run_worker(life.where, life.run, runs, life.number, life.workers, life.replaces, files)
    else:
        run_role(life.where, life.run, runs, life.role, life.replaces, files)


def _cache(life: Life) -> Path:
    """The folder of this process's own copies: the user's, so that nobody else can put anything there."""
    top = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(top) / "cryptosentinel" / "ray" / life.name


def _speak_into(output: IO[str]) -> None:
    """Let all that this process says, that of libraries in C too, go to the file."""
    sys.stdout = sys.stderr = output
    for number in (1, 2):
        os.dup2(output.fileno(), number)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
