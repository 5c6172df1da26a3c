"""Record the answers of an engine and replay them: a run repeated offline, equal to the bit.

`record` puts a recorder in front of any engine; `Cassette` answers from its records. A recorder also answers from the
folder where the call is recorded already, with the usage of that time. So an interrupted run continues without asking
or paying twice, and its totals are those of a run without the interruption.

A call is identified by role, prompt, sampling and seed (at temperature 0 without the seed). Policies may not change
while they are recorded. The schemas in `Request.tools` are no part of a call. Failures are not recorded: a run with a
failure is recorded again until each of its calls has an answer. Then it can be replayed.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from cryptosentinel.llm.cassette.files import (
    BYTE,
    HEADER,
    LOCK,
    TEMPLATE,
    TOKENIZER,
    UNFINISHED,
    CassetteTape,
    Header,
    Key,
    key_of,
    load_codec,
    read_calls,
    read_header,
    template_text,
    write_call,
    write_header,
)
from cryptosentinel.llm.chat_format import ChatFormat, FastTokenizer
from cryptosentinel.llm.engine import Completion, Engine, Request, StreamingEngine, all_answers
from cryptosentinel.llm.templates.codec import TemplateCodec, TemplateDefinition
from simulator.errors import RunFailed, UserError
from simulator.folders import check_links


def record(
    engine: Engine,
    folder: Path,
    codec: ChatFormat,
    roles: Iterable[str],
    settings: Mapping[str, Any],
    tokenizer: Tokenizer | FastTokenizer | None = None,
) -> CallRecorder:
    """A recorder in front of `engine`; it streams if the engine does.

    Args:
        folder: new or empty, or a cassette that goes on.
        codec: the team's. roles: all that will ask.
        settings: the team's, in values of JSON, for whoever plays the cassette.
        tokenizer: what the codec was made of; None for the byte codec.

    Raises:
        UserError: the folder cannot be used, is being recorded, holds something else, is damaged, or was recorded with
            another engine, policy, codec or settings.
    """
    kind = StreamingRecorder if isinstance(engine, StreamingEngine) else CallRecorder
    return kind(engine, folder, codec, roles, settings, tokenizer)


class CallRecorder:
    """Passes requests to `engine` and writes down each answer; see `record`."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        codec: ChatFormat,
        roles: Iterable[str],
        settings: Mapping[str, Any],
        tokenizer: Tokenizer | FastTokenizer | None,
    ) -> None:
        if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
            tokenizer = tokenizer.backend_tokenizer
        self.name = engine.name
        self._engine = engine
        self._folder = folder
        self._codec = codec
        self._versions = {role: engine.policy_version(role) for role in roles}
        header = Header(
            engine=engine.name,
            versions=self._versions,
            tokenizer=BYTE if tokenizer is None else TOKENIZER,
            empty_think=codec.empty_think,
            settings=json.loads(json.dumps(settings)),  # as it will be read back
            think=codec.thoughts is not None,
        )
        _check_kind(folder)
        self._tape = CassetteTape(folder)
        try:
            template = codec.definition if isinstance(codec, TemplateCodec) else None
            if (folder / HEADER).exists():
                _check_same(folder, header, tokenizer, template)
            else:
                write_header(folder, header, tokenizer, template)
            self._calls, length = read_calls(folder, codec.vocab_size)
            self._tape.open(length)
        except OSError as error:
            self._tape.close()
            raise UserError(f"cassette {folder}: cannot be written ({error.strerror}); choose another folder") from None
        except UserError:
            self._tape.close()
            raise

    def policy_version(self, role: str) -> str:
        """The engine's."""
        return self._engine.policy_version(role)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers in the order of the requests; equal ones are asked once. Raises what the engine raises, and
        `RunFailed` when an answer cannot be written or a policy has changed."""
        keys = [self._key(request) for request in requests]
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._calls}
        answers = dict(zip(new, self._engine.generate(list(new.values())), strict=True)) if new else {}
        for key, completion in answers.items():
            self._store(key, completion)
        return [answers[key] if key in answers else self._calls[key] for key in keys]

    def close(self) -> None:
        """Release the folder. The engine is not closed."""
        self._tape.close()

    def _key(self, request: Request) -> Key:
        version = self._engine.policy_version(request.role)
        if version != self._versions.get(request.role):
            raise RunFailed(
                f"cassette {self._folder}: the policy of {request.role} is {version}, and "
                f"{self._versions.get(request.role, 'none')} is recorded: record each policy into a folder of its own"
            )
        return key_of(request)

    def _store(self, key: Key, completion: Completion) -> None:
        if completion.failure is None:
            self._tape.append(write_call(key, completion, self._codec.decode_answer(completion.ids)))
            self._calls[key] = completion


@dataclass
class _Asked:
    """A call in progress: the engine's future (None until the engine has taken it) and the futures that wait for it."""

    waiting: list[Future[Completion]] = field(default_factory=list)
    asked: Future[Completion] | None = None


class StreamingRecorder(CallRecorder):
    """A recorder of an engine that streams. Its answers may come on any thread."""

    _engine: StreamingEngine

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._guard = threading.Lock()
        self._under_way: dict[Key, _Asked] = {}

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """As a recorder's, each asked as soon as the engine takes it."""
        return all_answers(self, requests)

    def submit(self, request: Request) -> Future[Completion]:
        """Start to answer. Equal requests that are under way wait for one answer. The future raises what the engine's
        does, and `RunFailed` when the answer cannot be written."""
        key = self._key(request)
        future: Future[Completion] = Future()
        with self._guard:
            if key in self._calls:
                future.set_result(self._calls[key])
                return future
            call = self._under_way.setdefault(key, _Asked())
            call.waiting.append(future)
            first = len(call.waiting) == 1
        if first:
            try:
                call.asked = self._engine.submit(request)
            except BaseException:
                with self._guard:
                    del self._under_way[key]
                raise
            call.asked.add_done_callback(lambda asked: self._answered(key, asked))
        future.add_done_callback(lambda _: self._give_up(call))
        return future

    def cancel_pending(self) -> None:
        """Cancel all that the engine has under way; who waits for it is told."""
        self._engine.cancel_pending()

    def _give_up(self, call: _Asked) -> None:
        """Cancel a call that nobody waits for any more."""
        with self._guard:
            wanted = not all(future.cancelled() for future in call.waiting)
        if not wanted and call.asked is not None:
            call.asked.cancel()

    def _answered(self, key: Key, asked: Future[Completion]) -> None:
        """Write an answer down and hand it to all who wait for it."""
        with self._guard:
            waiting = self._under_way.pop(key).waiting
            error = None if asked.cancelled() else asked.exception()
            if not asked.cancelled() and error is None:
                try:
                    self._store(key, asked.result())
                except RunFailed as unwritten:
                    error = unwritten
        for future in waiting:
            if asked.cancelled():
                future.cancel()
            elif future.set_running_or_notify_cancel():
                if error is None:
                    future.set_result(asked.result())
                else:
                    future.set_exception(error)


class Cassette:
    """Answers from a folder that was recorded; needs neither the engine nor a connection.

    `codec` is that of the recorded team, `settings` what was recorded of it, `roles` those who asked.

    Raises:
        UserError: no cassette there, one of another format, or damaged.
    """

    name = "cassette"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        header = read_header(folder)
        self.codec = load_codec(folder, header)
        self.settings = header.settings
        self.roles = tuple(header.versions)
        self._versions = header.versions
        self._calls, _ = read_calls(folder, self.codec.vocab_size)
        self._played: Counter[str] = Counter()

    def policy_version(self, role: str) -> str:
        """That of the recorded policy. Raises `UserError` for a role that was not recorded."""
        if role not in self._versions:
            raise UserError(
                f"cassette {self._folder} knows no role '{role}', only {', '.join(self.roles)}: play it with the team "
                "that it was recorded with"
            )
        return self._versions[role]

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """The recorded answers, in the order of the requests. Raises `UserError` for a call that was not recorded."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        key = key_of(request)
        self._played[request.role] += 1
        completion = self._calls.get(key)
        if completion is None:
            raise UserError(
                f"cassette {self._folder} has no answer to call {self._played[request.role]} of {request.role}: "
                f"{_difference(key, self._calls)}"
            )
        return completion


def _difference(key: Key, calls: Mapping[Key, Completion]) -> str:
    """A guess at why a call is not among the recorded ones."""
    same_role = [one for one in calls if one.role == key.role]
    for one in same_role:
        if one.prompt == key.prompt:
            names = [name for name, value in asdict(key).items() if value != getattr(one, name)]
            recorded = ", ".join(f"{name} {getattr(one, name)} instead of {getattr(key, name)}" for name in names)
            return f"its prompt was recorded with {recorded}: play with the seed and the sampling of the recorded run"
    if not same_role:
        return "nothing of this role was recorded: record on into this folder"
    if key.seed is not None and any(one.seed == key.seed for one in same_role):
        return (
            "its seed was recorded with another prompt: the market, costs or limits, the team's settings, or the text "
            "of briefs and tools in this version differ; use those of the recorded run, or record anew"
        )
    return (
        "neither its prompt nor its seed was recorded: the run's seed, its window or its coins differ (use those of "
        "the recorded run), or the recording ended before it or had no answer to it (record on into this folder)"
    )


def _check_kind(folder: Path) -> None:
    """Refuse to record into a folder of something else."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cassette {folder} is a file: give a folder")
    if folder.is_dir():
        check_links(folder)
    if (folder / HEADER).exists() or not folder.is_dir():
        return
    # What a program leaves that is ended while it begins a cassette is no obstacle.
    if {one.name for one in folder.iterdir()} - {LOCK, TOKENIZER, TEMPLATE, UNFINISHED}:
        raise UserError(f"cassette {folder} is not empty and holds no {HEADER}: give a new folder, or a cassette")


def _check_same(folder: Path, header: Header, tokenizer: Tokenizer | None, template: TemplateDefinition | None) -> None:
    """Refuse to go on with a cassette of another team."""
    before = read_header(folder)
    for name, now in asdict(header).items():
        then = getattr(before, name)
        if then == now:
            continue
        differences = f"{then!r}, not {now!r}"
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            differences = ", ".join(
                f"{key} {then.get(key)!r}, not {now.get(key)!r}"
                for key in sorted({*then, *now})
                if then.get(key) != now.get(key)
            )
        raise UserError(f"cassette {folder} was recorded with another {name} ({differences}): give a new folder")
    if tokenizer is not None and (folder / TOKENIZER).read_text(encoding="utf-8") != tokenizer.to_str():
        raise UserError(f"cassette {folder} was recorded with another tokenizer: give a new folder")
    path = folder / TEMPLATE
    if (path.read_text(encoding="utf-8") if path.exists() else None) != template_text(template):
        raise UserError(f"cassette {folder} was recorded with another chat template: give a new folder")
