"""The server process: how it is started, that it ends with us, and how its end is reported. The process is a
stand-in that takes vLLM's command line, answers /health and fails as a test says."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cryptosentinel.llm.vllm.server import MODEL, VllmServer
from simulator.errors import RunFailed, UserError

SECRET = "sk-very-secret"
STAND_IN = """
import json, os, signal, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

how = os.environ["STAND_IN"]
with open(os.environ["STAND_IN_OUT"], "w") as out:
    json.dump({"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()}, out)
print("(APIServer pid=7) INFO 11-21 18:16:54 [launcher.py:195] Starting", flush=True)
if how == "refuses":
    head = "(EngineCore pid=8) ERROR 11-21 18:16:55 [core.py:1750] "
    print(head + "Traceback (most recent call last):")
    print(head + "ValueError: no such dtype " + os.environ["VLLM_API_KEY"])
    print("(APIServer pid=7) RuntimeError: Engine core initialization failed.")
    sys.exit(3)
if how == "silent":
    sys.exit(0)
if how == "hangs":
    time.sleep(60)
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass

if os.fork() == 0:
    time.sleep(60)  # a worker, which nobody but its group reaches
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the stand-in writes what it was started with; it is found in place of vLLM."""
    package = tmp_path / "packages" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    (package / "api_server.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setenv("STAND_IN", "sound")
    monkeypatch.setenv("STAND_IN_OUT", str(tmp_path / "out.json"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    return tmp_path / "out.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return model


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.01)


def alive(group: int) -> bool:
    """Whether any process of the group runs; those that ended and wait to be collected do not count."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return any(line.split()[0] == str(group) and not line.split()[1].startswith("Z") for line in listed.splitlines())


def test_it_serves_the_folder_as_the_engine_needs_it(
    out: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    more = ("--tensor-parallel-size", "2")
    server = VllmServer(folder, tmp_path / "logs" / "vllm.log", context=2048, adapters=3, rank=8, arguments=more)
    assert server.trouble() is None and server.url.startswith("http://127.0.0.1:")
    said = json.loads(out.read_text())
    port = server.url.rpartition(":")[2]
    assert said["argv"] == [
        "--model", str(folder), "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", port,
        "--enable-lora", "--max-loras", "3", "--max-cpu-loras", "9", "--max-lora-rank", "8",
        "--logprobs-mode", "processed_logprobs", "--structured-outputs-config", '{"backend": "guidance"}',
        "--generation-config", "vllm", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log",
        "--max-model-len", "2048", "--tensor-parallel-size", "2",
    ]  # fmt: skip
    env = said["env"]
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == env["VLLM_NO_USAGE_STATS"] == env["HF_HUB_OFFLINE"] == "1"
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "1" and env["VLLM_API_KEY"] == SECRET
    group = server.process_group
    assert alive(group)
    server.close()
    until(lambda: not alive(group))
    trouble = server.trouble()
    assert trouble is not None and SECRET not in trouble + (tmp_path / "logs" / "vllm.log").read_text()


@pytest.mark.parametrize(
    ("package", "version", "flags"),
    [
        ("vllm", "0.32.0", []),
        ("vllm", "0.32.0+cpu", ["--no-enable-chunked-prefill"]),
        ("vllm_cpu", "0.32.0", ["--no-enable-chunked-prefill"]),
    ],
)
def test_a_cpu_build_reads_prompts_in_one_piece(
    out: Path, folder: Path, tmp_path: Path, package: str, version: str, flags: list[str]
) -> None:
    record = tmp_path / "packages" / f"{package}-{version}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    VllmServer(folder, tmp_path / "vllm.log").close()
    assert [one for one in json.loads(out.read_text())["argv"] if "chunked" in one] == flags


def test_the_end_of_the_server_is_reported_in_its_own_words(
    out: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "refuses")
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    log = tmp_path / "vllm.log"
    with pytest.raises(RunFailed) as caught:
        VllmServer(folder, log)
    monkeypatch.setenv("STAND_IN", "hangs")
    monkeypatch.setattr("cryptosentinel.llm.vllm.server._LIMIT_S", 1)
    with pytest.raises(RunFailed, match="was not ready after 1 s: Starting"):
        VllmServer(folder, tmp_path / "another.log")
    pid = json.loads(out.read_text())["pid"]
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert str(caught.value) == (
        "the vLLM server ended with code 3: ValueError: no such dtype *** | "
        f"RuntimeError: Engine core initialization failed. (its log is {log})"
    )


@pytest.mark.parametrize("how", ["sound", "stubborn"])
def test_it_ends_with_its_last_reference(
    out: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("STAND_IN", how)
    monkeypatch.setattr("cryptosentinel.llm.vllm.server._GRACE_S", 0.5)
    server = VllmServer(folder, tmp_path / "vllm.log")
    group = server.process_group
    del server
    until(lambda: not alive(group))


def test_a_killed_server_is_noticed(out: Path, folder: Path, tmp_path: Path) -> None:
    server = VllmServer(folder, tmp_path / "vllm.log")
    os.kill(json.loads(out.read_text())["pid"], signal.SIGKILL)
    until(lambda: server.trouble() is not None)
    assert "ended with code 137: Starting" in str(server.trouble())
    (tmp_path / "vllm.log").write_bytes(b"")
    assert "ended with code 137: it printed nothing" in str(server.trouble())
    (tmp_path / "vllm.log").unlink()
    assert "cannot be read (No such file or directory)" in str(server.trouble())
    server.close()
    until(lambda: not alive(server.process_group))


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(0)", "raise SystemExit('no')"])
def test_it_does_not_outlive_us(out: Path, folder: Path, tmp_path: Path, how: str) -> None:
    script = f"""
        import os, signal, sys
        from pathlib import Path
        from cryptosentinel.llm.vllm.server import VllmServer
        server = VllmServer(Path({str(folder)!r}), Path({str(tmp_path / "vllm.log")!r}))
        print(server.process_group, flush=True)
        {how}
    """
    root = str(Path(__file__).parents[4])
    paths = os.pathsep.join([os.environ["PYTHONPATH"], root])
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    group = int(ended.stdout)
    until(lambda: not alive(group))


@pytest.mark.parametrize(
    ("python", "message"),
    [("no/such/python", "cannot be run"), (sys.executable, "has no vLLM: install the extra `vllm`")],
)
def test_a_python_that_cannot_serve_is_refused(folder: Path, tmp_path: Path, python: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        VllmServer(folder, tmp_path / "vllm.log", python=python)
    with pytest.raises(UserError, match="not a model folder"):
        VllmServer(tmp_path, tmp_path / "vllm.log")
