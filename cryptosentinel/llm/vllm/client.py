"""HTTP to one vLLM server, and what the server is asked before it is trusted: its model, its tokenizer, and what its
log-probs are. The SDK repeats a request after 408, 409, 429, 5xx, a broken connection or a timeout."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import httpx2
import openai

from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.endpoint.http import BoundedClient
from cryptosentinel.llm.endpoint.messages import Garbled, parse_body
from cryptosentinel.llm.endpoint.providers import check_url
from cryptosentinel.llm.engine import LoopThread
from cryptosentinel.protocol.tool_calls import render_call
from simulator.errors import RunFailed, UserError

KEY_VARIABLE = "VLLM_API_KEY"  # vLLM's own name for the key that a server asks for
SERVER_RETRIES = 5
_HEALTH_S = 10.0
_CONNECTIONS = 1024  # the server queues what it cannot compute at once
_LONGEST_REASON = 500  # characters of a server's words that go into a message
# A bias that leaves a token no rival but those that have it too, and one that is a little smaller.
_BIAS, _SMALLER = 100.0, 98.0
# Everything that a server's or a model's defaults could change about the distribution that is sampled from.
PLAIN_SAMPLING: dict[str, Any] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "watermarking": False,
    "add_special_tokens": False,
    "ignore_eos": True,
    "return_token_ids": True,
}


class Refused(Exception):
    """The server will not do it, however often it is asked. `status` is HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Unanswered(Exception):
    """No usable answer after all tries, although the server is there."""


class VllmClient(LoopThread):
    """Requests to the vLLM server at `url`, such as `http://127.0.0.1:8000`.

    `timeout_s` bounds one try, waiting in the server's queue included. `trouble` gives, where the server is a process
    of ours, how it ended, or None. The key that the server asks for is in the environment's VLLM_API_KEY; no message
    holds it. Raises `UserError` for a URL that cannot be one.
    """

    def __init__(self, url: str, *, timeout_s: float, retries: int, trouble: Callable[[], str | None]) -> None:
        self.url = check_url(url).removesuffix("/v1")
        self._trouble = trouble
        self._tries = f"{retries + 1} tries"
        self._key = os.environ.get(KEY_VARIABLE, "")
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        http = BoundedClient(self.url, headers, timeout=timeout_s, connections=_CONNECTIONS)
        # The client below it sends the key; the one that the SDK knows goes nowhere.
        self._sdk = openai.AsyncOpenAI(
            base_url=self.url, api_key="unused", max_retries=retries, timeout=http.timeout, http_client=http
        )
        super().__init__("vllm-client", self._sdk.close)

    async def get(self, path: str) -> dict[str, Any]:
        """The document at `path`; raises as `post` does."""
        return await self._document("get", path)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The server's answer to `body`, a JSON document.

        Raises `Refused` for a request that it will not answer, `Unanswered` where all tries failed and the server is
        in health, `RunFailed` where it is not.
        """
        return await self._document("post", path, body=body)

    async def command(self, path: str, body: dict[str, Any]) -> None:
        """Have the server do something, in one try. Raises as `post` does."""
        await self._ask("post", path, body=body, options={"max_retries": 0})

    async def healthy(self) -> bool:
        """Whether the server reports that its engine is in health."""
        options: Any = {"timeout": _HEALTH_S, "max_retries": 0}
        try:
            await self._sdk.get("/health", cast_to=httpx2.Response, options=options)
        except (openai.APIConnectionError, openai.APIStatusError):
            return False
        return True

    async def _document(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        try:
            return parse_body(await self._ask(method, path, **more))
        except Garbled as error:
            raise Unanswered(f"the vLLM server gave no usable answer: {error}") from None

    async def _ask(self, method: str, path: str, **more: Any) -> bytes:
        ask = self._sdk.get if method == "get" else self._sdk.post
        try:
            response: httpx2.Response = await ask(path, cast_to=httpx2.Response, **more)
            return response.content
        except openai.APIStatusError as error:
            reason = self._describe_error(error)
            if error.status_code < 500 and error.status_code not in (408, 409, 429):
                raise Refused(error.status_code, reason) from None
        except openai.APIConnectionError as error:
            reason = f"{error} {error.__cause__ or ''}".strip()
        if not await self.healthy():
            self.raise_if_ended()
            raise RunFailed(
                f"the vLLM server at {self.url} is gone after {self._tries} ({reason}): start it again, then the run"
            )
        raise Unanswered(f"no answer from the vLLM server after {self._tries}: {reason}")

    def raise_if_ended(self) -> None:
        """Raise `RunFailed` where the server was a process of ours and has ended."""
        trouble = self._trouble()
        if trouble is not None:
            raise RunFailed(trouble)

    def _describe_error(self, error: openai.APIStatusError) -> str:
        """The server's own words where it has some, without the key."""
        words = error.body.get("message") if isinstance(error.body, dict) else None
        reason = f"HTTP {error.status_code}: {words or error.response.reason_phrase}"
        return (reason.replace(self._key, "***") if self._key else reason)[:_LONGEST_REASON]


async def check_server(client: VllmClient, codec: ChatFormat, model: str, vocab_size: int) -> tuple[str, int]:
    """Check that the server is there, serves `model` (empty: the one base model that it lists) with `codec`'s tokens
    and `vocab_size` embeddings, and gives log-probs of the distribution that it samples from. Returns the model's name
    there, and how many tokens a conversation may have.

    Raises `UserError` that says which of it is not so, `RunFailed` where the server ends meanwhile.
    """
    if not await client.healthy():
        client.raise_if_ended()
        raise UserError(f"no vLLM server in health answers at {client.url}: start one or correct the address")
    try:
        model, positions = await _served(client, model)
        await _check_tokens(client, codec, model, vocab_size)
        await _check_log_probs(client, codec, model)
    except Refused as refusal:
        if refusal.status in (401, 403):
            raise UserError(
                f"the vLLM server at {client.url} refuses the key: put the right one into {KEY_VARIABLE}"
            ) from None
        raise UserError(f"{client.url} does not answer as vLLM 0.32 does ({refusal}): give a vLLM server") from None
    except Unanswered as error:
        raise UserError(f"the vLLM server at {client.url} cannot be used ({error}): look into its log") from None
    return model, positions


async def _served(client: VllmClient, model: str) -> tuple[str, int]:
    listed = (await client.get("/v1/models")).get("data")
    cards = {str(card.get("id")): card for card in listed if isinstance(card, dict)} if isinstance(listed, list) else {}
    bases = [name for name, card in cards.items() if not card.get("parent")]
    model = model or (bases[0] if len(bases) == 1 else "")
    positions = cards.get(model, {}).get("max_model_len")
    if not isinstance(positions, int):
        raise UserError(
            f"the vLLM server at {client.url} serves {', '.join(sorted(bases)) or 'nothing'}, where "
            f"{f'{model!r}' if model else 'a single model'} of a stated length is needed: start it with the right one"
        )
    return model, positions


async def _check_tokens(client: VllmClient, codec: ChatFormat, model: str, vocab_size: int) -> None:
    """The server's tokenizer makes of a conversation what ours does, and its model has as many embeddings as ours."""
    ids = codec.start("Be brief: 0.25 %.", "Look at C1, +1.5 – and at C2.")
    ids += codec.encode_assistant(render_call("look", {"size": -0.25}))
    body = {"model": model, "prompt": codec.decode(ids), "add_special_tokens": False}
    same = (await client.post("/tokenize", body)).get("tokens") == ids
    if not same or not await _knows(client, model, vocab_size - 1) or await _knows(client, model, vocab_size):
        raise UserError(
            f"the tokenizer or vocabulary of '{model}' at {client.url} is not the one expected "
            f"({codec.vocab_size} tokens, {vocab_size} embeddings): serve the folder that the team was made from"
        )


async def _knows(client: VllmClient, model: str, token: int) -> bool:
    """Whether the model has an embedding for the id `token`."""
    try:
        await client.post("/v1/completions", {"model": model, "prompt": [token], "max_tokens": 1, **PLAIN_SAMPLING})
    except Refused as refusal:
        if refusal.status == 400:
            return False
        raise
    return True


async def _check_log_probs(client: VllmClient, codec: ChatFormat, model: str) -> None:
    """Two tokens with a large bias share all probability if what is told is the distribution that is sampled from, and
    at twice the temperature their log-odds are half."""
    known = [codec.special_ids[token] for token in codec.syntax.markers if token in codec.special_ids]
    one, other = [*known, *sorted(set(codec.special_ids.values()) - set(known))][:2]
    for larger, smaller in ((one, other), (other, one)):
        cold = await _log_odds(client, codec, model, larger, smaller, 1.0)
        hot = await _log_odds(client, codec, model, larger, smaller, 2.0)
        if cold is None or hot is None or abs(cold - 2.0 * hot) > 0.1 + 0.05 * abs(cold):
            raise UserError(
                f"the log-probs of the vLLM server at {client.url} are not those of the distribution that it samples "
                "from, which training needs: start it with --logprobs-mode processed_logprobs and --max-logprobs of "
                "2 or more"
            )


async def _log_odds(
    client: VllmClient, codec: ChatFormat, model: str, larger: int, smaller: int, temperature: float
) -> float | None:
    """Log-odds of two tokens whose biases leave nothing to the others; None where these are not told, or others are
    said to have more than a hundredth."""
    body = {
        "model": model,
        "prompt": codec.start("Be brief.", "Continue."),
        "max_tokens": 1,
        "temperature": temperature,
        "seed": 0,
        "logprobs": 2,
        "return_tokens_as_token_ids": True,
        "logit_bias": {str(larger): _BIAS, str(smaller): _SMALLER},
        **PLAIN_SAMPLING,
    }
    try:
        logprobs = (await client.post("/v1/completions", body))["choices"][0]["logprobs"]["top_logprobs"][0]
        logps = [float(logprobs[f"token_id:{token}"]) for token in (larger, smaller)]
        total = sum(map(math.exp, logps))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    except Refused as refusal:  # it may tell fewer than two
        if refusal.status == 400:
            return None
        raise
    return logps[0] - logps[1] if abs(total - 1.0) <= 0.01 else None
