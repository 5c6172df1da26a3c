"""What a vLLM server is asked before it is trusted: its model, its tokenizer, and what its log-probs are."""

from __future__ import annotations

import math
from typing import Any

from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.vllm.client import KEY_VARIABLE, Refused, Unanswered, VllmClient
from cryptosentinel.protocol.tool_calls import render_call
from simulator.errors import UserError

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


async def check_server(
    client: VllmClient, codec: ChatFormat, model: str, vocab_size: int, log_probs: bool
) -> tuple[str, int]:
    """Check that the server is there, serves `model` (empty: the one base model that it lists) with `codec`'s tokens
    and `vocab_size` embeddings, and, with `log_probs`, gives those of the distribution that it samples from. Returns
    the model's name there, and how many tokens a conversation may have.

    Raises `UserError` that says which of it is not so, `RunFailed` where the server ends meanwhile.
    """
    if not await client.healthy():
        client.raise_if_ended()
        raise UserError(f"no vLLM server in health answers at {client.url}: start one or correct the address")
    try:
        model, positions = await _served(client, model)
        await _check_tokens(client, codec, model, vocab_size)
        if log_probs:
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
    if not model and len(bases) > 1:
        raise UserError(
            f"the vLLM server at {client.url} serves {', '.join(sorted(bases))}: use one that serves a single model"
        )
    if model not in cards:
        raise UserError(
            f"the vLLM server at {client.url} serves {', '.join(sorted(cards)) or 'nothing'}, not '{model}': "
            "name one of its models or start it with the right one"
        )
    positions = cards[model].get("max_model_len")
    if not isinstance(positions, int):
        raise UserError(f"{client.url} does not say how long a conversation of '{model}' may be: give a vLLM server")
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
        "prompt": codec.start("Be brief.", "Go on."),
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
