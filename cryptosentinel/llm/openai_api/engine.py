"""The engine behind endpoints of the OpenAI kind: OpenAI, Google, OpenRouter, Ollama, vLLM, llama.cpp and many more.

`messages.py` turns token ids into messages, and the answer back into ids of the same codec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import openai

from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.endpoint.adaptation import Refusal, Structured
from cryptosentinel.llm.endpoint.answer import Answer
from cryptosentinel.llm.endpoint.engine import EndpointEngine, described_tools, reason_of
from cryptosentinel.llm.engine import Request
from cryptosentinel.llm.openai_api.messages import call_schema, read_answer, to_messages

_SEED_BITS = 31  # more than that is refused by some


class OpenAIEngine(EndpointEngine):
    """Answers each request by a chat completion; see `EndpointEngine`."""

    name = "openai_api"
    _prefix = "openai"
    _path = "/chat/completions"
    _url_hint = ", which mostly ends in /v1"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # The client below it sends the key; what the SDK thinks the key is goes nowhere.
        self._sdk = openai.AsyncOpenAI(
            base_url=self._url,
            api_key="unused",
            max_retries=self._settings.retries,
            timeout=self._http.timeout,
            http_client=self._http,
        )

    def _headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _effort(self) -> dict[str, Any]:
        effort = self._settings.reasoning_effort
        return {"reasoning_effort": effort} if effort else {}

    def _body(self, turns: ChatMessages, request: Request, kept: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            "model": self._model,
            "messages": to_messages(turns, kept),
            "temperature": request.sampling.temperature,
            "seed": _folded(request.seed),
        }

    def _with_tools(self, body: dict[str, Any], request: Request, level: Structured) -> dict[str, Any]:
        if level in ("tool_choice", "tools"):
            own: dict[str, Any] = {"tools": list(request.tools)}
            if "parallel_tool_calls" not in self._adaptation.refused:
                own["parallel_tool_calls"] = False
            return body | own | ({"tool_choice": "required"} if level == "tool_choice" else {})
        first, *others = body["messages"]
        first = first | {"content": f"{first['content']}\n\n{described_tools(request, level)}"}
        messages = [first, *(_as_text(one) for one in others)]
        if level == "text":
            return body | {"messages": messages}
        schema = {"name": "call", "schema": call_schema(request.tools)}
        return body | {"messages": messages, "response_format": {"type": "json_schema", "json_schema": schema}}

    def _read_answer(self, body: bytes) -> Answer:
        return read_answer(body, as_json=self._adaptation.structured == "json_schema")

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> httpx2.Response:
        try:
            if method == "GET":
                return await self._sdk.get(path, cast_to=httpx2.Response)
            return await self._sdk.post(path, cast_to=httpx2.Response, body=body)
        except openai.APIConnectionError as error:
            raise self._broken(error, isinstance(error, openai.APITimeoutError)) from None
        except openai.APIStatusError as error:
            raise _refusal(error) from None

    async def _close_sdk(self) -> None:
        await self._sdk.close()


def _refusal(error: openai.APIStatusError) -> Refusal:
    text = error.response.text
    return Refusal(
        status=error.status_code,
        text=text,
        reason=reason_of(error.body, text),
        param=error.param if isinstance(error.param, str) else "",
        code=error.code if isinstance(error.code, str) else "",
        location=error.response.headers.get("location", ""),
    )


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    """A message for a model that knows no tools: calls and their answers are text."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    function = calls[0]["function"]
    return {"role": "assistant", "content": f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'}


def _folded(seed: int) -> int:
    """All bits of a seed in as many as every endpoint takes."""
    folded = 0
    while seed:
        folded ^= seed & (2**_SEED_BITS - 1)
        seed >>= _SEED_BITS
    return folded
