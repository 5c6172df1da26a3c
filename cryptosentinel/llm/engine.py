"""The one protocol of every engine: a batch of requests in, sampled token ids and their log-probs out.

Text is never re-tokenized: what an engine sampled is what is trained on.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

_T = TypeVar("_T")


@dataclass(frozen=True)
class Sampling:
    """How to sample. `temperature` 0 is greedy (log-probs are then those of the unscaled distribution). With
    `constrained` an engine that can do so samples only what the role's tools allow; log-probs are then those of what
    was left to choose from. A thought may have `thinking_tokens`, those that open and close it included; they are not
    counted against the `max_tokens` of the answer. With 0 all that is said is the answer."""

    temperature: float = 1.0
    max_tokens: int = 96
    constrained: bool = False
    thinking_tokens: int = 0

    @property
    def room(self) -> int:
        """The longest completion: thought and answer."""
        return self.max_tokens + self.thinking_tokens


@dataclass(frozen=True)
class Request:
    """One continuation wanted: `ids` is the whole conversation so far, generation prompt included.

    `seed` alone decides the sampled tokens: the same request gives the same completion in any batch. `tools` are the
    JSON schemas of what the role may call, in the form of OpenAI's chat completions: for engines that constrain by them
    or pass them on; the conversation itself lists them only where the team's settings say so.
    """

    role: str
    ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    tools: tuple[Mapping[str, Any], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Usage:
    """What a completion took: tokens of the prompt, how many of them were known from before, sampled tokens, and the
    seconds from the request to the answer (those of the whole batch, where it was one of a batch).

    `reasoning` of the sampled tokens were thoughts, where the engine counts them. `retried` counts the further requests
    of an answer that was cut off; what they took is in the other numbers."""

    prompt: int = 0
    cached: int = 0
    sampled: int = 0
    seconds: float = 0.0
    reasoning: int = 0
    retried: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and sampled tokens together."""
        return self.prompt + self.sampled

    def __add__(self, other: Usage) -> Usage:
        """Both together."""
        return Usage(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.sampled + other.sampled,
            self.seconds + other.seconds,
            self.reasoning + other.reasoning,
            self.retried + other.retried,
        )


NOTHING = Usage()


@dataclass(frozen=True)
class Completion:
    """Sampled `ids` (the end-of-turn token included where the model ended its turn) and log-probs of equal length.

    Log-probs are those of the distribution that was sampled from, temperature included. A request that failed for good
    has no ids and says why in `failure`, in words that hold no secret.

    The first `thought` ids are a thought, with what opens and closes it. Where its budget was spent, the last `forced`
    of these were written by the engine to close it: they were not sampled, and their log-probs are 0.

    """

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finished: bool  # False: cut off at max_tokens
    usage: Usage = field(default=NOTHING, compare=False)
    failure: str | None = None
    thought: int = 0
    forced: int = 0


def failed_completion(reason: str, usage: Usage = NOTHING) -> Completion:
    """The completion of a request that could not be answered."""
    return Completion((), (), False, usage, reason)


class Engine(Protocol):
    """Runs the models of the roles."""

    name: str

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continue every request; the answers come in the order of the requests."""
        ...

    def policy_version(self, role: str) -> str:
        """Identifies the weights that answer for `role` right now."""
        ...


def engine_notes(engine: Engine) -> tuple[str, ...]:
    """What an engine adapted to its server, a sentence each; nothing for one without a server."""
    return tuple(getattr(engine, "notes", ()))


@runtime_checkable
class RememberingEngine(Engine, Protocol):
    """An engine that keeps what it computed of earlier conversations, which makes the next ones quicker."""

    def forget(self) -> None:
        """Keep nothing of the conversations so far."""
        ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that answers each request when it is ready, as servers do: a slow one does not hold up the others."""

    def submit(self, request: Request) -> Future[Completion]:
        """Start to answer. A request that fails gives a completion with its `failure`; the future raises `RunFailed`
        only when no further request can be answered."""
        ...

    def cancel_pending(self) -> None:
        """Cancel all that is under way, for any caller. After Ctrl-C nobody else can: it may have come before
        `submit` gave its future to the caller."""
        ...


@contextmanager
def cancelled_at_the_end(engine: StreamingEngine, futures: Iterable[Future[Completion]]) -> Iterator[None]:
    """A block that asks `engine` for `futures`. Those that are not done when the block ends are cancelled, and after
    Ctrl-C all that the engine has."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        engine.cancel_pending()
        raise
    finally:
        for future in futures:
            future.cancel()


def all_answers(engine: StreamingEngine, requests: Sequence[Request]) -> list[Completion]:
    """The answers to all requests, in their order: `generate` of an engine that streams. Raises what `submit` or one of
    its futures raises; what is then still under way is cancelled."""
    futures: list[Future[Completion]] = []
    with cancelled_at_the_end(engine, futures):
        futures += map(engine.submit, requests)
        return [future.result() for future in futures]


class LoopThread:
    """An event loop in a daemon thread of its own, for engines whose requests to a server run side by side, until
    `close` or the end of the program; `at_end` runs there last."""

    def __init__(self, name: str, at_end: Callable[[], Awaitable[None]]) -> None:
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_serve, args=(self._loop,), name=name, daemon=True)
        thread.start()
        self.close = weakref.finalize(self, _end, self._loop, thread, at_end)

    def start(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start `work`; the future gets its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`."""
        return self.start(work).result()

    def cancel_pending(self) -> None:
        """Cancel all that was started and has not ended; not waited for."""

        def cancel() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

        self._loop.call_soon_threadsafe(cancel)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, at_end: Callable[[], Awaitable[None]]) -> None:
    async def end() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await at_end()

    asyncio.run_coroutine_threadsafe(end(), loop).add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    thread.join(timeout=5.0)
