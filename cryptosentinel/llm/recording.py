"""Record the answers of an engine in a file and replay them: a run repeated offline, equal to the bit.

A recording is one file of JSON lines: first the engine, the roles' policy versions, the team's settings and its codec;
then a line a call, with the hash of its request (role, prompt, sampling, and seed but at temperature 0), the answer's
ids, log-probs and usage, and its text for people. A call that is there is not asked again, so an interrupted run is not
paid twice. Failures are not recorded.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.engine import Completion, Engine, Request, StreamingEngine, Usage, all_answers, engine_notes
from simulator.documents import lines_of, parse_json
from simulator.errors import RunFailed, UserError
from simulator.folders import check_regular

SUFFIX = ".jsonl"
_FORMAT = "cryptosentinel recording 1"
_START = f'{{"format": "{_FORMAT}"'.encode()
_LONGEST_LINE = 64 * 2**20  # bytes; the first holds the tokenizer, some 10 MB of a large one


def is_recording(path: Path) -> bool:
    """Whether `path` is a file with the suffix of recordings."""
    return path.suffix == SUFFIX and path.is_file()


def key_of(request: Request) -> str:
    """The hash of a request."""
    seed = request.seed if request.sampling.temperature else None  # it decides nothing at temperature 0
    said = json.dumps([request.role, asdict(request.sampling), seed]).encode()
    packed = struct.pack(f"<{len(request.ids)}I", *request.ids)
    return hashlib.blake2b(said + packed, digest_size=16).hexdigest()


def record(
    engine: Engine, path: Path, codec: ChatFormat, roles: Iterable[str], settings: Mapping[str, Any]
) -> Recorder:
    """A recorder in front of `engine`; it streams if the engine does. `path` is new or a recording, which continues;
    `settings` are the team's, in values of JSON. Raises `UserError` for a file that is something else, is in use, is
    damaged, or was recorded with another engine, policy, codec or settings."""
    kind = StreamingRecorder if isinstance(engine, StreamingEngine) else Recorder
    return kind(engine, path, codec, roles, settings)


class Recorder:
    """Passes requests to `engine` and writes down each answer; see `record`."""

    def __init__(
        self, engine: Engine, path: Path, codec: ChatFormat, roles: Iterable[str], settings: Mapping[str, Any]
    ) -> None:
        self.name = engine.name
        self._engine, self._path, self._codec, self._guard = engine, path, codec, threading.Lock()
        self._versions = {role: engine.policy_version(role) for role in roles}
        self._file = _open_locked(path)
        try:
            header, self._calls, self._length, self._notes = _read(path)
            own = json.loads(json.dumps(_header(engine.name, self._versions, codec, settings)))
            if header is None:
                self._append(own)
            elif other := [name for name in own if header[name] != own[name]]:
                raise UserError(f"recording {path} was made with another {' and '.join(other)}: give a new file")
            os.ftruncate(self._file, self._length)  # a line that a kill has torn goes
        except (RunFailed, UserError) as error:
            self.close()
            raise UserError(str(error)) from None

    @property
    def notes(self) -> tuple[str, ...]:
        """The engine's, and whether an incomplete last line was dropped."""
        return (*self._notes, *engine_notes(self._engine))

    def policy_version(self, role: str) -> str:
        """The engine's."""
        return self._engine.policy_version(role)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers in the order of the requests; equal ones are asked once. Raises what the engine raises, and
        `RunFailed` when an answer cannot be written or a policy has changed."""
        keys = [self._key(request) for request in requests]
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._calls}
        answers = dict(zip(new, self._engine.generate(list(new.values())), strict=True)) if new else {}
        stored = {key: self._store(key, answer) for key, answer in answers.items()}
        return [stored[key] if key in stored else self._calls[key] for key in keys]

    def close(self) -> None:
        """Release the file. The engine is not closed."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _key(self, request: Request) -> str:
        if self._engine.policy_version(request.role) != self._versions.get(request.role):
            raise RunFailed(
                f"recording {self._path}: the policy of {request.role} changed: give each policy its own file"
            )
        return key_of(request)

    def _store(self, key: str, answer: Completion) -> Completion:
        """Write an answer down, and return the one to give: of equal requests side by side the first that came."""
        with self._guard:
            if answer.failure is None and key not in self._calls:
                call = asdict(answer) | {"key": key, "text": self._codec.decode_answer(answer.ids)}
                self._append({name: value for name, value in call.items() if name != "failure"})
                self._calls[key] = answer
            return self._calls.get(key, answer)

    def _append(self, value: Mapping[str, Any]) -> None:
        """Write one line; Python writes floats so that they are read back exactly. Raises `RunFailed` when it cannot be
        written: the next line is written over it, and a reader drops a torn end."""
        line = json.dumps(value).encode() + b"\n"
        try:
            os.ftruncate(self._file, self._length)
            trouble = "no space is left" if os.pwrite(self._file, line, self._length) < len(line) else ""
        except OSError as error:
            trouble = str(error.strerror)
        if trouble:
            raise RunFailed(
                f"recording {self._path} cannot be written ({trouble}); free some space and run again: what is "
                "recorded is kept and not asked again"
            )
        self._length += len(line)


class StreamingRecorder(Recorder):
    """A recorder of an engine that streams. Its answers may come on any thread."""

    _engine: StreamingEngine

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """As a recorder's, each asked as soon as the engine takes it."""
        return all_answers(self, requests)

    def submit(self, request: Request) -> Future[Completion]:
        """Start to answer. The future raises what the engine's does, and `RunFailed` when the answer cannot be
        written; to cancel it cancels the engine's."""
        key, future = self._key(request), Future[Completion]()
        if key in self._calls:
            future.set_result(self._calls[key])
            return future

        def answered(asked: Future[Completion]) -> None:
            if asked.cancelled():
                future.cancel()
                return
            try:
                answer = self._store(key, asked.result())  # it is paid, whether or not somebody still waits
            except BaseException as error:  # noqa: BLE001  # the caller's future raises it
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            else:
                if future.set_running_or_notify_cancel():
                    future.set_result(answer)

        asked = self._engine.submit(request)
        future.add_done_callback(lambda _: asked.cancel())
        asked.add_done_callback(answered)
        return future

    def cancel_pending(self) -> None:
        """Cancel all that the engine has under way."""
        self._engine.cancel_pending()


class Replay:
    """Answers from a recording; needs neither the engine nor a connection. `codec` is that of the recorded team,
    `settings` its settings, `roles` those who asked. Raises `UserError` for a file that is not a sound recording."""

    name = "recording"

    def __init__(self, path: Path) -> None:
        self._path, self._played = path, Counter[str]()
        header, self._calls, _, self.notes = _read(path)
        if header is None:
            raise UserError(f"no recording in {path}: give a file that a backtest wrote with --record")
        self.codec, self.settings, self.roles = _codec_of(path, header), header["settings"], tuple(header["versions"])
        self._versions = header["versions"]
        if any(one >= self.codec.vocab_size for call in self._calls.values() for one in call.ids):
            raise UserError(f"{path}: an answer has ids that its tokenizer does not know: record again")

    def policy_version(self, role: str) -> str:
        """That of the recorded policy. Raises `UserError` for a role that was not recorded."""
        if role not in self._versions:
            raise UserError(f"recording {self._path} has no role '{role}', only {', '.join(self.roles)}: use its team")
        return str(self._versions[role])

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """The recorded answers, in the order of the requests. Raises `UserError` for a call that was not recorded."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        self._played[request.role] += 1
        completion = self._calls.get(key_of(request))
        if completion is None:
            prompt = " ".join(self.codec.decode(request.ids[-200:]).split())[-60:]
            raise UserError(
                f"recording {self._path} has no answer to call {self._played[request.role]} of {request.role} (seed "
                f"{request.seed}, prompt …{prompt!a}): use the data, dates, costs, settings and seed of the "
                "recorded run, continue an unfinished recording, or record again with this version"
            )
        return completion


def _header(engine: str, versions: Mapping[str, str], codec: ChatFormat, settings: Mapping[str, Any]) -> dict[str, Any]:
    template = getattr(codec, "definition", None)  # of a `TemplateCodec`, whose module imports transformers
    return {
        "format": _FORMAT,
        "engine": engine,
        "versions": versions,
        "settings": settings,
        "codec": {"empty_think": codec.empty_think, "think": codec.thoughts is not None},
        "template": None if template is None else asdict(template),
        "tokenizer": codec.tokenizer.to_str(),
    }


def _codec_of(path: Path, header: Mapping[str, Any]) -> ChatFormat:
    """The codec of the recorded team."""
    try:
        tokenizer = Tokenizer.from_str(header["tokenizer"])
        if header["template"] is None:
            return ChatCodec(tokenizer, **header["codec"])
        from cryptosentinel.llm.templates import TemplateDefinition, template_codec

        return template_codec(tokenizer, TemplateDefinition(**header["template"]))
    except Exception as error:  # noqa: BLE001  # the tokenizers library raises plain `Exception`
        raise UserError(f"{path}, line 1: its tokenizer cannot be used ({str(error)[:100]}): record again") from None


def _read(path: Path) -> tuple[dict[str, Any] | None, dict[str, Completion], int, tuple[str, ...]]:
    """The description (None in an empty file), the calls, the length in bytes of the whole lines, and a note where a
    last line that a kill has torn follows. Raises `UserError` for another file, a damaged line, and a call with two
    answers."""
    header, calls, whole, number = None, dict[str, Completion](), 0, 0
    try:
        check_regular(path)
        with path.open("rb") as file:
            for line in lines_of(file, _LONGEST_LINE):
                number += 1
                if not line.endswith(b"\n"):
                    if header is None and not _START.startswith(line[: len(_START)]):
                        raise ValueError("it does not begin as one")
                    return header, calls, whole, (f"{path}: its last line was incomplete and is dropped",)
                if header is None:
                    header = _checked_header(parse_json(line))
                else:
                    _add(calls, parse_json(line, nan=True))
                whole += len(line)
    except OSError as error:
        raise UserError(f"recording {path} cannot be read ({error.strerror or error}): give another file") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        way_out = "give a new file" if number == 1 else "take the line out, and its call is asked again when recording"
        raise UserError(f"{path}, line {number} is not a recording's ({str(error)[:100]}): {way_out}") from None
    return header, calls, whole, ()


def _checked_header(header: Any) -> dict[str, Any]:
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise ValueError(f"it has no format '{_FORMAT}'")
    if not all(isinstance(header[name], dict) for name in ("versions", "settings", "codec")):
        raise ValueError("versions, settings or codec is not an object")
    return {
        name: header[name] for name in ("format", "engine", "versions", "settings", "codec", "template", "tokenizer")
    }


def _add(calls: dict[str, Completion], call: Mapping[str, Any]) -> None:
    """Add the call of a line. Raises `ValueError`, `TypeError` or `KeyError` for another line."""
    key, ids, logps, usage = call["key"], call["ids"], call["logps"], call["usage"]
    counts = [call["thought"], call["forced"], *ids]
    if not all(type(one) is int and 0 <= one < 2**32 for one in counts) or type(call["finished"]) is not bool:
        raise ValueError("ids or counts that are not integers")
    if not all(type(one) in (int, float) for one in (*logps, *usage.values())) or len(logps) != len(ids):
        raise ValueError("not as many log-probs as ids, or a usage that is not numbers")
    completion = Completion(
        tuple(ids), tuple(logps), call["finished"], Usage(**usage), thought=call["thought"], forced=call["forced"]
    )
    if (
        not isinstance(key, str)
        or (known := calls.setdefault(key, completion)) != completion
        or known.usage != completion.usage
    ):
        raise ValueError("its call is there before with another answer")


def _open_locked(path: Path) -> int:
    """The file, locked until its holder ends: two programs that record into one would ask, and pay, twice."""
    if path.suffix != SUFFIX:
        raise UserError(f"recording {path}: give a file whose name ends in {SUFFIX}")
    file = -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if file >= 0:
            os.close(file)
        reason = "it is being written by another program" if isinstance(error, BlockingIOError) else error.strerror
        raise UserError(f"recording {path}: cannot use this file ({reason}): wait, or choose another") from None
    return file
