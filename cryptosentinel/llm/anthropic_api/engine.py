"""The engine behind Anthropic's own API. Its SDK is an optional part of this project: the extra `anthropic`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import httpx2

from cryptosentinel.llm.anthropic_api.messages import read_message, to_blocks, to_tool_blocks
from cryptosentinel.llm.chat_format import ChatMessages
from cryptosentinel.llm.endpoint.adaptation import Refusal, Structured
from cryptosentinel.llm.endpoint.answer import Answer
from cryptosentinel.llm.endpoint.engine import EndpointEngine, described_tools, reason_of
from cryptosentinel.llm.engine import Request
from simulator.errors import UserError

_VERSION = "2023-06-01"  # of the API
_WARMEST = 1.0  # temperature


class AnthropicEngine(EndpointEngine):
    """Answers each request by one message; see `EndpointEngine`. The API takes no seed.

    The prompt is marked for its cache, so that the next turn of a conversation is read for a tenth of the price.

    Raises `UserError` where the SDK is not installed, besides what an `EndpointEngine` raises.
    """

    name = "anthropic_api"
    _prefix = "anthropic"
    _path = "/v1/messages"
    _models_path = "/v1/models?limit=1000"

    def __init__(self, codec: Any, url: str, model: str, **options: Any) -> None:
        super().__init__(codec, url.rstrip("/").removesuffix("/v1"), model, **options)
        self._package = _sdk_package()
        # The client below it sends the key; what the SDK thinks the key is goes nowhere.
        self._sdk = self._package.AsyncAnthropic(
            base_url=self._url,
            api_key="unused",
            max_retries=self._settings.retries,
            timeout=self._http.timeout,
            http_client=self._http,
        )

    def _headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": _VERSION} | ({"X-Api-Key": key} if key else {})

    def _effort(self) -> dict[str, Any]:
        effort = self._settings.reasoning_effort
        if effort == "none":
            return {"thinking": {"type": "disabled"}}
        return {"output_config": {"effort": "low" if effort == "minimal" else effort}} if effort else {}

    def _body(self, turns: ChatMessages, request: Request, kept: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        system, messages = to_blocks(turns, kept)
        return {
            "model": self._model,
            "system": system,
            "messages": messages,
            "temperature": min(request.sampling.temperature, _WARMEST),
            "cache_control": {"type": "ephemeral"},
        }

    def _with_tools(self, body: dict[str, Any], request: Request, level: Structured) -> dict[str, Any]:
        if level not in ("tool_choice", "tools"):
            return body | {"system": f"{body['system']}\n\n{described_tools(request, 'text')}"}
        choice = {"type": "any" if level == "tool_choice" else "auto", "disable_parallel_tool_use": True}
        return body | {"tools": to_tool_blocks(request.tools), "tool_choice": choice}

    def _read_answer(self, body: bytes) -> Answer:
        return read_message(body)

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> httpx2.Response:
        try:
            if method == "GET":
                response: httpx2.Response = await self._sdk.get(path, cast_to=httpx2.Response)
            else:
                response = await self._sdk.post(path, cast_to=httpx2.Response, body=body)
        except self._package.APIConnectionError as error:
            raise self._broken(error, isinstance(error, self._package.APITimeoutError)) from None
        except self._package.APIStatusError as error:
            raise _refusal(error) from None
        return response

    async def _close_sdk(self) -> None:
        await self._sdk.close()


def _sdk_package() -> ModuleType:
    try:
        import anthropic
    except ImportError:
        raise UserError(
            "Anthropic's API needs its SDK: install it with python scripts/install.py anthropic, or with "
            "pip install 'cryptosentinel[anthropic]'"
        ) from None
    return anthropic


def _refusal(error: Any) -> Refusal:
    text = error.response.text
    document = error.body if isinstance(error.body, dict) else {}
    inner = document.get("error")
    inner = inner if isinstance(inner, dict) else {}
    kind = inner.get("type")
    return Refusal(
        status=error.status_code,
        text=text,
        reason=reason_of(inner or document, text),
        code=kind if isinstance(kind, str) else "",
        location=error.response.headers.get("location", ""),
    )
