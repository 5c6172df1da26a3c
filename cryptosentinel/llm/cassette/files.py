"""The folder of a cassette: `cassette.json` describes the recording, `calls.jsonl` holds one line a call.

    {"role": "manager", "prompt": "5d0c…", "temperature": 1.0, "max_tokens": 96, "constrained": false, "seed": 7,
     "ids": […], "logps": […], "finished": true, "usage": {"prompt": …, …}, "text": "<tool_call>…"}

A call with room for a thought holds `thinking_tokens`, `thought` and `forced` besides, as `Sampling` and `Completion`
have them.

A prompt is stored as a hash: each turn repeats the conversation before it, so stored prompts would grow with the
square of its length. `text` is for people; the `ids` are replayed. A cassette of another tokenizer than the byte
codec's holds that tokenizer as `tokenizer.json`, and one of another chat format than Qwen3's holds `template.json`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeGuard

from tokenizers import Tokenizer

from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.engine import Completion, Request, Usage
from cryptosentinel.llm.templates.choose import template_codec
from cryptosentinel.llm.templates.codec import TemplateDefinition
from simulator.documents import lines_of, parse_json, read_bytes, read_document
from simulator.errors import RunFailed, UserError
from simulator.folders import check_links

_FORMAT = 1
HEADER, CALLS, TOKENIZER, LOCK = "cassette.json", "calls.jsonl", "tokenizer.json", "lock"
TEMPLATE = "template.json"
UNFINISHED = f"{HEADER}.part"
BYTE = "byte"
_MOST_HEADER, _LONGEST_CALL = 2**20, 64 * 2**20  # bytes

_FIELDS = {"role", "prompt", "temperature", "max_tokens", "constrained", "seed", "ids", "logps", "finished", "usage"}
_OF_THOUGHTS = ("thinking_tokens", "thought", "forced")  # in the calls that have room for one


@dataclass(frozen=True)
class Key:
    """What a request is known by. Its policy version is not here: a cassette has one for each role. A seed decides
    nothing at temperature 0 and is None there."""

    role: str
    prompt: str
    temperature: float
    max_tokens: int
    constrained: bool
    seed: int | None
    thinking_tokens: int = 0


@dataclass(frozen=True)
class Header:
    """What was recorded: the engine's name, the policy version of each role, the codec, and the team's settings as the
    caller described them, in values of JSON. `tokenizer` is `byte` or `tokenizer.json`; `think`: answers may begin with
    a thought."""

    engine: str
    versions: Mapping[str, str]
    tokenizer: str
    empty_think: bool
    settings: Mapping[str, Any]
    think: bool = False


def key_of(request: Request) -> Key:
    """The key of a request."""
    sampling = request.sampling
    packed = struct.pack(f"<{len(request.ids)}I", *request.ids)
    return Key(
        request.role,
        hashlib.blake2b(packed, digest_size=16).hexdigest(),
        sampling.temperature,
        sampling.max_tokens,
        sampling.constrained,
        request.seed if sampling.temperature else None,
        sampling.thinking_tokens,
    )


def read_header(folder: Path) -> Header:
    """What `folder` says it holds. Raises `UserError` for a folder that is no cassette of this format."""
    path = folder / HEADER
    check_links(folder)
    if not path.is_file():
        raise UserError(f"no cassette in {folder}: give a folder that holds {HEADER}")
    try:
        value = read_document(path, _MOST_HEADER)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): give another cassette") from None
    if not isinstance(value, dict) or value.get("format") != _FORMAT:
        found = value.get("format") if isinstance(value, dict) else None
        raise UserError(f"{path} is of format {found!r}, this version reads {_FORMAT}: record anew")
    del value["format"]
    types = {"engine": str, "versions": dict, "tokenizer": str, "empty_think": bool, "settings": dict, "think": bool}
    if set(value) != set(types) or not all(isinstance(value[name], kind) for name, kind in types.items()):
        raise UserError(f"{path} is damaged: it must hold {', '.join(types)}")
    return Header(**value)


def write_header(
    folder: Path, header: Header, tokenizer: Tokenizer | None, template: TemplateDefinition | None = None
) -> None:
    """Make `folder` a cassette; the header comes last and whole. Raises `OSError`."""
    described = template_text(template)
    if described is not None:
        (folder / TEMPLATE).write_text(described, encoding="utf-8")
    if tokenizer is not None:
        (folder / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
    unfinished = folder / UNFINISHED
    unfinished.write_text(json.dumps({"format": _FORMAT, **asdict(header)}, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(folder / HEADER)


def template_text(template: TemplateDefinition | None) -> str | None:
    """The content of `template.json`; None where there is none."""
    return None if template is None else json.dumps(asdict(template), indent=2) + "\n"


def load_codec(folder: Path, header: Header) -> ChatFormat:
    """The codec of what was recorded. Raises `UserError` for a tokenizer or template that is missing or damaged."""
    if header.tokenizer == BYTE:
        return make_byte_codec(empty_think=header.empty_think, think=header.think)
    path = folder / TOKENIZER
    try:
        tokenizer = Tokenizer.from_str(read_bytes(path).decode("utf-8"))
    except Exception as error:  # noqa: BLE001  # the tokenizers library raises plain `Exception`
        raise UserError(f"{path} cannot be read ({error}): the cassette cannot be used without it") from None
    if not (folder / TEMPLATE).exists():
        return ChatCodec(tokenizer, empty_think=header.empty_think, think=header.think)
    try:
        return template_codec(tokenizer, TemplateDefinition(**read_document(folder / TEMPLATE, _MOST_HEADER)))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder / TEMPLATE} cannot be read ({error}): the cassette cannot be used without it"
        ) from None


def write_call(key: Key, completion: Completion, text: str) -> bytes:
    """The line of a call. Python writes floats so that they are read back exactly."""
    values: dict[str, Any] = {
        **asdict(key),
        "ids": completion.ids,
        "logps": completion.logps,
        "finished": completion.finished,
        "usage": asdict(completion.usage),
        "text": text,
        "thought": completion.thought,
        "forced": completion.forced,
    }
    if not key.thinking_tokens:
        values = {name: value for name, value in values.items() if name not in _OF_THOUGHTS}
    return json.dumps(values).encode() + b"\n"


def read_calls(folder: Path, vocab_size: int) -> tuple[dict[Key, Completion], int]:
    """All calls, and the length in bytes of the lines that are whole: a last one that a kill has torn is left out.

    Raises `UserError` for a damaged line, and for a call that stands twice with different answers.
    """
    path = folder / CALLS
    calls: dict[Key, Completion] = {}
    whole = 0
    for number, line in enumerate(_lines(path), 1):
        if not line.endswith(b"\n"):
            break
        whole += len(line)
        try:
            key, completion = _read_call(parse_json(line, nan=True), vocab_size)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise UserError(
                f"{path}, line {number} is damaged ({type(error).__name__}: {str(error)[:100]}): take the line out, "
                "and its call is asked anew when recording goes on"
            ) from None
        if (known := calls.setdefault(key, completion)) != completion or known.usage != completion.usage:
            raise UserError(f"{path}, line {number}: this call stands there before, with another answer: keep one")
    return calls, whole


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of the calls, one at a time. Raises `UserError`."""
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            yield from lines_of(file, _LONGEST_CALL)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): give another cassette") from None


def _read_call(value: Any, vocab_size: int) -> tuple[Key, Completion]:
    if not isinstance(value, dict) or set(value) - {*_OF_THOUGHTS} != _FIELDS | {"text"}:
        raise ValueError("not the fields of a call")
    budget, thought, forced = (value.get(name, 0) for name in _OF_THOUGHTS)
    if not _integers([budget, thought, forced]) or not 0 <= forced <= thought <= len(value["ids"]):
        raise ValueError("a thought that is no part of the ids")
    key = Key(**{name: value[name] for name in Key.__dataclass_fields__ if name in value})
    ids, logps, usage = value["ids"], value["logps"], value["usage"]
    if not (isinstance(key.role, str) and isinstance(key.prompt, str) and isinstance(key.constrained, bool)):
        raise ValueError("role, prompt or constrained of another type")
    if not (_numbers([key.temperature]) and _integers([key.max_tokens])):
        raise ValueError("temperature or max_tokens is no number")
    if not (_integers([key.seed]) if key.temperature else key.seed is None):
        raise ValueError("no seed beside a temperature, or one at 0")
    if not isinstance(ids, list) or not _integers(ids) or not all(0 <= one < vocab_size for one in ids):
        raise ValueError("ids that are no tokens of the codec")
    if not isinstance(logps, list) or not _numbers(logps) or len(logps) != len(ids):
        raise ValueError("not as many log-probs as ids")
    if not isinstance(value["finished"], bool) or not isinstance(usage, dict) or not _numbers(list(usage.values())):
        raise ValueError("finished or usage of another type")
    return key, Completion(tuple(ids), tuple(logps), value["finished"], Usage(**usage), thought=thought, forced=forced)


def _integers(values: list[Any]) -> bool:
    return all(type(one) is int for one in values)


def _numbers(values: list[Any]) -> TypeGuard[list[float]]:
    return all(type(one) in (int, float) for one in values)


class CassetteTape:
    """`calls.jsonl` open for appending, with the folder's lock: two programs that record into one folder would ask, and
    pay, twice. The kernel drops the lock when its holder dies.

    Raises:
        UserError: the folder cannot be written, or another program records into it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = -1
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"cassette {folder}: cannot use this folder ({error.strerror}); choose another") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if isinstance(error, BlockingIOError):
                raise UserError(
                    f"cassette {folder} is being recorded by another program: wait for it, or choose another folder"
                ) from None
            raise UserError(
                f"cassette {folder}: its file system cannot lock files ({error.strerror}); choose a local disk"
            ) from None

    def open(self, length: int) -> None:
        """Go on behind the first `length` bytes; what follows them is cut off. Raises `OSError`."""
        self._calls = os.open(self._folder / CALLS, os.O_WRONLY | os.O_CREAT, 0o644)
        os.ftruncate(self._calls, length)
        self._length = length

    def append(self, line: bytes) -> None:
        """Write one call at the end. Raises `RunFailed` when it cannot be written; what was there is as it was."""
        try:
            written = os.pwrite(self._calls, line, self._length)
            reason = "no space is left" if written < len(line) else ""
        except OSError as error:
            reason = str(error.strerror)
        if reason:
            with contextlib.suppress(OSError):  # the next line is written over it, and a reader leaves a torn end out
                os.ftruncate(self._calls, self._length)
            raise RunFailed(
                f"cassette {self._folder}: a call could not be written ({reason}); free some space and run again: "
                "what is recorded is kept and not asked anew"
            )
        self._length += len(line)

    def close(self) -> None:
        """Give the folder back; a second call does nothing."""
        for descriptor in (self._calls, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._calls = self._lock = -1
