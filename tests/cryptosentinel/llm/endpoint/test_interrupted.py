"""Ctrl-C at any place between asking an engine and waiting for it: nothing that was asked stays under way."""

from __future__ import annotations

import asyncio
import concurrent.futures._base
import dis
import gc
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import cryptosentinel
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.endpoint.engine import EndpointEngine
from cryptosentinel.llm.engine import Completion, Request, Sampling, StreamingEngine
from cryptosentinel.llm.recording import record
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import AgentTask

OWN = (str(Path(cryptosentinel.__file__).parent), asyncio.tasks.__file__)
WAITING = concurrent.futures._base.__file__


class Thinking(EndpointEngine):
    """Answers nothing."""

    def __init__(self) -> None:
        super().__init__(make_byte_codec(), "http://127.0.0.1:9", "some-model")
        self.asked = 0

    def submit(self, request: Request) -> Future[Completion]:
        self.asked += 1
        return super().submit(request)

    async def _complete(self, request: Request) -> Completion:
        return await asyncio.Future()

    def under_way(self) -> int:
        """How many requests are under way or still to begin."""

        async def others() -> int:
            for _ in range(3):  # what is cancelled takes a round or two to end
                await asyncio.sleep(0)
            return len(asyncio.all_tasks()) - 1

        return self._loop.start(others()).result(10)


def asking(seed: int) -> AgentTask[None]:
    yield [Request("manager", (1,), Sampling(), 2 * seed + number) for number in range(2)]


# After these the interpreter looks for signals; between a lock's taking and the block that gives it back it does not.
_LOOKS = ("RESUME", "CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD")


class Interrupt:
    """A trace function that raises `KeyboardInterrupt` once, at the n-th place where the interpreter looks for signals
    in the code of files whose paths begin with one of `files`."""

    def __init__(self, at: int, files: tuple[str, ...]) -> None:
        self.came = False
        self._left = at
        self._files = files
        self._last: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(self._files):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._left -= self._last.get(frame, "") in _LOOKS
            self._last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        elif event == "return":
            self._last.pop(frame, None)  # what it refers to must not outlive it
        if self._left <= 0:
            self.came = True
            raise KeyboardInterrupt
        return self


class WaitingInterrupt(Interrupt):
    """In the code of the product and where asyncio takes a task from another thread; at the latest when an answer is
    waited for."""

    def __init__(self, at: int) -> None:
        super().__init__(at, OWN)
        self.waits = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        self.waits = frame.f_code.co_filename == WAITING and frame.f_code.co_name in ("wait", "result")
        if self.waits:
            raise KeyboardInterrupt
        return super().__call__(frame, event, argument)


def interrupted(ask: Callable[[], object], at: int) -> bool:
    """Ask, with an interrupt at a place. Whether there is none so late: the answer was waited for before."""
    tracer, former = WaitingInterrupt(at), sys.gettrace()
    sys.settrace(tracer)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask()
    finally:
        sys.settrace(former)
    return tracer.waits


@pytest.mark.parametrize("how", ["streamed", "recorded", "at once"])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_ctrl_c_at_any_place_leaves_no_request_under_way(how: str, tmp_path: Path) -> None:
    thinking = Thinking()
    engine: StreamingEngine = thinking
    if how == "recorded":
        recorder = record(thinking, tmp_path / "c.jsonl", make_byte_codec(), ["manager"], {})
        assert isinstance(recorder, StreamingEngine)
        engine = recorder

    def ask() -> object:
        if how == "at once":
            return engine.generate(next(asking(at)))
        return run_all([asking(at)], engine)

    at, waits = 1, False
    while not waits:
        waits = interrupted(ask, at)
        assert thinking.under_way() == 0, f"after the interrupt at place {at}"
        at += 1
    assert at > 10 and thinking.asked > 10
    thinking.close()
    gc.collect()  # what was interrupted before it began is said here, and not in another test
