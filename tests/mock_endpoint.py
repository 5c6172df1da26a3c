"""A local server that answers chat completions as Ollama, vLLM and commercial endpoints do, and fails as a test says.

By default the scripted team answers: the role is recognised by its system prompt, and calls travel as `tool_calls`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.scripted import ScriptedPolicy
from cryptosentinel.protocol.tool_calls import MalformedCall, read_call, render_call
from cryptosentinel.scripted_team import expert_policies
from tests import local_server
from tests.local_server import QuietHandler

MODEL = "test-model"


@dataclass(frozen=True)
class Reply:
    """One HTTP answer, after `delay` seconds. `drip` sends a byte every so many seconds. `cut` ends the connection
    before the whole body is out."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drip: float = 0.0
    cut: bool = False


@dataclass(frozen=True)
class Heard:
    """One request that came in; `body` is {} for a GET."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float


def reply(value: Any, status: int = 200, **more: Any) -> Reply:
    """`value` as JSON."""
    return Reply(json.dumps(value).encode(), status, **more)


def refusal(status: int, message: str, code: str | None = None, **more: Any) -> Reply:
    """An error in the form of OpenAI."""
    return reply({"error": {"message": message, "type": "error", "param": None, "code": code}}, status, **more)


def chat(message: dict[str, Any], finish: str = "stop", usage: Any = None) -> Reply:
    """A chat completion with one choice."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    document = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice]}
    return reply(document if usage is None else document | {"usage": usage})


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    """A message with one tool call; arguments that are no string become JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": name, "arguments": text}
    return {"content": None, "tool_calls": [{"id": "call_x", "type": "function", "function": function}], **more}


Answering = Callable[[dict[str, Any]], Reply]


def turns_of(messages: list[dict[str, Any]]) -> ChatMessages:
    """Messages of an endpoint as the teacher reads them."""
    turns = []
    for message in messages:
        calls = message.get("tool_calls")
        content = message["content"]
        if calls:
            content = render_call(calls[0]["function"]["name"], json.loads(calls[0]["function"]["arguments"]))
        turns.append({"role": message["role"], "content": content})
    return turns


def role_of(body: dict[str, Any]) -> str:
    """Whose conversation a request continues."""
    system = body["messages"][0]["content"]
    return next(key for key, role in ROLES.items() if role.system == system)


def scripted(policies: Mapping[str, ScriptedPolicy] | None = None, usage: Any = None) -> Answering:
    """The rules of a scripted team behind the endpoint."""
    rules = policies or expert_policies()

    def answer(body: dict[str, Any]) -> Reply:
        said = rules[role_of(body)](turns_of(body["messages"]), body["seed"])
        found = read_call(said)
        if isinstance(found, MalformedCall):
            return chat({"content": said}, usage=usage)
        return chat(call(*found), "tool_calls", usage)

    return answer


@dataclass
class Endpoint:
    """The server's address, what it was asked, and how it answers. `first` are the replies to the next chat requests;
    afterwards `answering` answers."""

    url: str
    answering: Answering
    models: Reply
    first: list[Reply] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def chats(self) -> list[Heard]:
        """The chat requests among what was heard."""
        return [one for one in self.heard if one.method == "POST"]

    def reply_to(self, heard: Heard) -> Reply:
        with self.lock:
            self.heard.append(heard)
            if heard.path.partition("?")[0] == "/v1/models":
                return self.models
            if heard.path not in ("/v1/chat/completions", "/v1/messages"):
                return refusal(404, f"no such path: {heard.path}")
            if self.first:
                return self.first.pop(0)
        return self.answering(heard.body)


@contextmanager
def serve(answering: Answering | None = None, *first: Reply) -> Iterator[Endpoint]:
    """An endpoint on a free port of this machine."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            heard = Heard(self.command, self.path, dict(self.headers.items()), body, time.monotonic())
            said = endpoint.reply_to(heard)
            if stopping.wait(said.delay):
                return
            if said.cut:
                self.answer(said.status, said.body[: len(said.body) // 2], length=len(said.body), headers=said.headers)
                return
            first = said.body[:1] if said.drip else said.body
            self.answer(said.status, first, headers={**said.headers, "Content-Length": str(len(said.body))})
            for byte in said.body[len(first) :]:
                if stopping.wait(said.drip):
                    return
                self.wfile.write(bytes([byte]))
                self.wfile.flush()

    stopping = threading.Event()
    models = reply({"object": "list", "data": [{"id": MODEL, "object": "model"}, {"id": "other", "object": "model"}]})
    endpoint = Endpoint("", answering or scripted(), models, list(first))
    with local_server.serving(Handler, stopping) as url:
        endpoint.url = f"{url}/v1"
        yield endpoint
