"""What a signal does to a command: the first ends it in order, the second at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backend.cli.main import main
from backend.errors import INTERRUPTED

ROOT = Path(__file__).parents[3]
# A command that takes as long to end as it is told to, and says what it is at.
COMMAND = """
import sys, time
from backend.cli.signals import end_in_order, exit_code
with end_in_order():
    try:
        print("working", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        print("ending", flush=True)
        time.sleep(float(sys.argv[1]))
        print("ended", flush=True)
        sys.exit(exit_code(1))
"""
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def command(seconds: float, wrapper: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    arguments = [*wrapper, sys.executable, "-c", COMMAND, str(seconds)]
    process = subprocess.Popen(
        arguments, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert line(process) == "working"
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_ends_a_command_in_order(number: signal.Signals) -> None:
    process = command(0.0)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert out.split() == ["ending", "ended"]
    assert err == ""
    assert process.returncode == 128 + number


@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_signal_ends_it_at_once_and_says_what_is_kept(second: signal.Signals) -> None:
    process = command(60.0)
    process.send_signal(signal.SIGINT)
    assert line(process) == "ending"
    process.send_signal(second)
    out, err = process.communicate(timeout=30)
    assert out == ""
    assert err.strip() == "ended at once; what was stored until now is kept"
    assert process.returncode == 128 + second


AFTER_THE_WORK = """
import atexit, sys, time
from backend.cli.signals import end_in_order, end_soon
def removes_a_folder():
    print("removing", flush=True)
    sys.stdin.readline()
    print("removed", flush=True)
with end_soon(), end_in_order():
    atexit.register(removes_a_folder)
"""


def wait_until_taken(process: int) -> None:
    """Wait until a first SIGINT has put the default back in its handler's place; two that come together are one."""
    status = Path(f"/proc/{process}/status")
    if not status.exists():
        pytest.skip("needs /proc, as Linux has it")
    while int(status.read_text().split("SigCgt:")[1].split()[0], 16) >> (signal.SIGINT - 1) & 1:
        time.sleep(0.01)


def test_after_the_work_the_first_signal_cuts_nothing_off_and_the_second_ends_it() -> None:
    for signals in (1, 2):
        process = subprocess.Popen(
            [sys.executable, "-c", AFTER_THE_WORK],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert line(process) == "removing"
        for number in range(signals):
            if number:
                wait_until_taken(process.pid)
            process.send_signal(signal.SIGINT)
        out, err = process.communicate("\n", timeout=30) if signals == 1 else process.communicate(timeout=30)
        assert (out, err, process.returncode) == (("removed\n", "", 0) if signals == 1 else ("", "", -signal.SIGINT))


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As under `nohup`: the end of the terminal does not end the training."""
    process = command(0.0, wrapper=("nohup",))
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_anything_was_begun_is_no_traceback(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def follow() -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr("backend.cli.main.app", follow)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 128 + number
    assert capsys.readouterr().err.strip() == "error: stopped"
    assert INTERRUPTED == 128 + signal.SIGINT


@pytest.mark.parametrize("left", ["nothing", "a thread", "a handler"])
def test_a_signalled_program_ends_with_its_code_whatever_is_left(left: str) -> None:
    """Threads of libraries and handlers of the interpreter's end are not waited for without end. An interrupt in code
    that was made of text, as dataclasses and numba do, would end it as Ctrl-C does, whatever the signal was."""
    leaves = {
        "nothing": "",
        "a thread": "threading.Thread(target=time.sleep, args=(600,)).start()",
        "a handler": "atexit.register(time.sleep, 600)",
    }
    code = (
        "import atexit, sys, threading, time\nfrom backend.cli import main\n"
        "from backend.cli import signals\nsignals._END_SECONDS = 0.3\n"
        "def command():\n"
        f"    {leaves[left] or 'pass'}\n"
        "    print('working', flush=True)\n"
        "    exec('time.sleep(60)')\n"
        "main.app = command\nmain.program()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert line(process) == "working"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert err == "error: stopped\n" and process.returncode == 128 + signal.SIGTERM


SWALLOWED = """
import signal, sys
from backend.cli import main as cli
class Dropped:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
def app():
    dropped = Dropped()
    del dropped
    print("done")
    sys.exit(0)
cli.app = app
sys.argv = ["cryptosentinel"]
cli.program()
"""


def test_a_signal_that_a_destructor_swallows_is_said_at_the_end() -> None:
    ended = subprocess.run([sys.executable, "-c", SWALLOWED], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "done\n", "error: stopped\n")
