"""Messages of the SurrealDB protocol in CBOR, as far as the gateway has to understand them.

A request is a map of `id`, `method` and `params`. Most are passed on as they are, and may be megabytes long, so their
method is read without decoding the rest. What comes from a client can be anything: `Malformed` says what is not a
request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from surrealdb.cbor import CBORError
from surrealdb.data.cbor import decode
from surrealdb.errors import SurrealError

from backend.store.gateway.cbor_writer import encoded

LONGEST_PARSED = 64 * 1024  # bytes of a request that is decoded here

_NULL = b"\xf6"
# The engine's maps are in the order of their keys, so what it says of a statement encloses the result.
_RESULT, _STATUS = b"\x66result\x81\xa4\x66result", b"\x66status"
_LONGEST_HEAD, _LONGEST_TAIL = 400, 100
DISK_TROUBLE = "IO error"  # in the engine's words
NOT_OFFERED = "is not for it"  # in the gateway's, of a method that an account may not ask for
# What decoding raises for bytes that are not CBOR, or hold values that the SDK cannot make.
_UNREADABLE = (
    CBORError, ValueError, TypeError, LookupError, AttributeError, EOFError, ArithmeticError, RecursionError,
    BufferError, OSError, MemoryError, SurrealError,
)  # fmt: skip


class Malformed(Exception):
    """A message that is not a request."""


@dataclass(frozen=True)
class Encoded:
    """A value as the database itself encoded it, to be passed on as it is."""

    content: bytes


def where_to(message: bytes) -> str:
    """The method of a request. Raises `Malformed`."""
    return _peeked(message) or str(_fields(message)["method"])


def parsed(message: bytes, longest: int = LONGEST_PARSED) -> Any:
    """The parameters of a request, None where there are none. Raises `Malformed`, also for one of more than `longest`
    bytes."""
    return _fields(message, longest).get("params")


def query(text: str, parameters: dict[str, Any]) -> bytes:
    """A request to run statements. At most 23 parameters where one of them is `Encoded`."""
    if not any(isinstance(value, Encoded) for value in parameters.values()):
        return encoded({"id": "store", "method": "query", "params": [text, parameters]})
    head = encoded("id") + encoded("store") + encoded("method") + encoded("query") + encoded("params")
    values = [
        encoded(name) + (value.content if isinstance(value, Encoded) else encoded(value))
        for name, value in parameters.items()
    ]
    return b"\xa3" + head + b"\x82" + encoded(text) + bytes([0xA0 + len(values)]) + b"".join(values)


def only_result(answer: bytes) -> bytes | None:
    """The result of the only statement of a request, as the engine encoded it; None where it failed, or where the
    answer has another form than the engine gives it."""
    head = answer.find(_RESULT, 0, _LONGEST_HEAD)
    tail = answer.rfind(_STATUS)
    if head < 0 or tail < len(answer) - _LONGEST_TAIL:
        return None
    try:
        rest = decode(b"\xa3" + answer[tail:])
    except _UNREADABLE:
        return None
    if not isinstance(rest, dict) or rest.keys() != {"status", "time", "type"} or rest["status"] != "OK":
        return None
    return answer[head + len(_RESULT) : tail]


def request(method: str, parameters: list[str | None]) -> bytes:
    """A request about the session. None is CBOR's null, which in `use` means: no longer any."""
    head = b"\xa3" + encoded("id") + encoded("gateway") + encoded("method") + encoded(method) + encoded("params")
    values = [_NULL if value is None else encoded(value) for value in parameters]
    return head + bytes([0x80 + len(values)]) + b"".join(values)


def success(message: bytes, result: str | bytes | bool | None) -> bytes:
    """The answer to `message`."""
    return encoded({"id": id_of(message), "result": result})


def failure(message: bytes | None, reason: str) -> bytes:
    """The answer to `message` that it failed; None for one that could not be read."""
    identity = None if message is None else id_of(message)
    return encoded({"id": identity, "error": {"code": -32000, "message": reason}})


def engine_failed(answer: bytes) -> str | None:
    """The engine's words if the disk failed it, after which an open database cannot be written any more."""
    if DISK_TROUBLE.encode() not in answer:  # nearly always, and cheap
        return None
    statements = decode(answer).get("result")
    if isinstance(statements, list):
        for statement in statements:
            # A record may speak of such errors too; only a failed statement had one.
            if isinstance(statement, dict) and statement.get("status") == "ERR":
                reason = str(statement.get("result"))
                if DISK_TROUBLE in reason:
                    return reason
    return None


def id_of(message: bytes) -> Any:
    """By which the sender of a request knows its answer; None where it has none."""
    try:
        found = _fields(message).get("id")
    except Malformed:
        return None
    return found if isinstance(found, str | int) else None


def short_id(message: bytes) -> str | None:
    """The id of a message whose id is a short text and stands first, as in the engine's answers; None of others."""
    return _peeked(message, "id")


def _fields(message: bytes, longest: int = LONGEST_PARSED) -> dict[str, Any]:
    if len(message) > longest:
        # Its id, at least, so that the client can tell which of its requests failed.
        identity = _peeked(message, "id")
        if identity is None:
            raise Malformed(f"a request of {len(message)} bytes whose method could not be read")
        return {"id": identity, "method": _peeked(message) or ""}
    try:
        found = decode(message)
    except _UNREADABLE as error:
        raise Malformed(f"not a request in CBOR: {type(error).__name__}") from error
    if not isinstance(found, dict) or not isinstance(found.get("method"), str):
        raise Malformed("not a request: a map with 'id', 'method' and 'params' is expected")
    return found


def _peeked(message: bytes, wanted: str = "method") -> str | None:
    """A text that stands among the first entries of the map, as `id` and `method` do in what SDKs send."""
    if not message or not 0xA1 <= message[0] <= 0xB7:
        return None
    at = 1
    for _ in range(2):
        key, at = _text(message, at)
        value, at = _text(message, at)
        if key is None or value is None:
            return None
        if key == wanted:
            return value
    return None


def _text(message: bytes, at: int) -> tuple[str | None, int]:
    """A text of less than 256 bytes and where it ends; None where something else stands."""
    head = message[at : at + 2]
    if not head or not 0x60 <= head[0] <= 0x78 or (len(head) < 2 and head[0] != 0x60):
        return None, at
    start, length = (at + 2, head[1]) if head[0] == 0x78 else (at + 1, head[0] - 0x60)
    text = message[start : start + length]
    if len(text) < length:
        return None, at
    try:
        return text.decode(), start + length
    except UnicodeDecodeError:
        return None, at
