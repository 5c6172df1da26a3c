"""A local server that answers as vLLM 0.32 does, with a made-up model behind it, and fails by a script.

The model's logits are a hash of its name and the conversation, so that every adapter is another model. What is sampled
depends on the request's seed alone. Shapes of answers and errors are those that vLLM 0.32.0 gave.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cryptosentinel.llm.chat_codec import ChatCodec
from tests import local_server
from tests.local_server import QuietHandler

Logits = npt.NDArray[np.float64]
Fault = Literal[
    "sound",
    "429",
    "500",
    "503",
    "400",
    "slow",  # longer than the client waits
    "closed",  # the connection ends without an answer
    "cut",  # the connection ends in mid-answer
    "truncated",  # a whole answer of half a JSON document
    "page",  # a proxy's web page with status 200
    "no_ids",
    "no_logprobs",
    "fewer_logprobs",
    "null_logprob",
    "other_prompt",  # it says that it read fewer tokens
    "aborted",
    "empty",
]
Mode = Literal["processed", "raw", "raw_logits", "processed_logits", "unscaled", "none"]
MODEL = "base"


class MockVllm:
    """The server. A test may change these while it runs:

    script: faults of the next completions, in order. healthy: what /health says. gone: every connection ends unheard.
    mode: what log-probs are. flat: all tokens are equally likely. key: the key that it asks for.
    latency: seconds that a completion takes. gate: completions wait until it is set.
    rank_error: adapters are refused as too large. drop_load_answers: so many loadings happen and go unanswered.
    unload_latency: seconds before an unloading happens. model: the name of the base model.
    """

    def __init__(self, codec: ChatCodec, positions: int = 512, vocab_size: int | None = None) -> None:
        self.codec = codec
        self.model = MODEL
        self.positions = positions
        self.vocab_size = vocab_size or codec.vocab_size
        self.script: list[Fault] = []
        self.healthy = True
        self.gone = False
        self.mode: Mode = "processed"
        self.key = ""
        self.latency = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.flat = False
        self.rank_error = False
        self.drop_load_answers = 0
        self.unload_latency = 0.0
        self.constrained: list[int] | None = None  # the answer to a request with a grammar
        self.adapters: dict[str, str] = {}
        self.events: list[tuple[str, str]] = []  # ("load", name), ("unload", name), ... as they happened
        self.bodies: list[dict[str, Any]] = []  # of all completions asked for
        self.running: Counter[str] = Counter()
        self.most_at_once = 0
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.ended = threading.Event()
        self.lock = threading.Lock()

    def logits(self, model: str, ids: list[int]) -> Logits:
        """Those of the next token, (V,)."""
        if self.flat:
            return np.zeros(self.vocab_size)
        digest = hashlib.blake2b(f"{model}|{ids}".encode(), digest_size=8).digest()
        drawn = np.random.default_rng(int.from_bytes(digest, "little")).normal(size=self.vocab_size)
        drawn[self.codec.end_of_turn] += 3.0  # so that most turns end
        return drawn

    def logps(self, body: dict[str, Any], ids: list[int], mode: Mode | None = None) -> tuple[Logits, Logits]:
        """The distribution that is sampled from, and what is told of it; (V,) each."""
        raw = self.logits(body["model"], ids)
        biased = raw.copy()
        for token, bias in body.get("logit_bias", {}).items():
            biased[int(token)] += bias
        temperature = body.get("temperature", 1.0) or 1.0
        processed = biased / temperature
        told = {
            "processed": log_softmax(processed),
            "raw": log_softmax(raw),
            "raw_logits": raw,
            "processed_logits": processed,
            "unscaled": log_softmax(biased),
            "none": raw,
        }
        return log_softmax(processed), told[mode or self.mode]

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The document for a completion."""
        prompt: list[int] = body["prompt"]
        rng = np.random.default_rng(body.get("seed", 0))
        ids: list[int] = []
        told: list[float] = []
        top: list[dict[str, float]] = []
        while len(ids) < body["max_tokens"] and not {*ids[-1:]} & {*body.get("stop_token_ids", [])}:
            if "structured_outputs" in body and self.constrained is not None:
                ids = self.constrained[: body["max_tokens"]]
                told = [0.0] * len(ids)
                break
            logps, say = self.logps(body, prompt + ids)
            greedy = body.get("temperature", 1.0) == 0
            token = int(logps.argmax()) if greedy else int(rng.choice(len(logps), p=np.exp(logps)))
            ids.append(token)
            told.append(float(say[token]))
            best = [int(place) for place in np.argsort(-say)[: body.get("logprobs") or 0]]
            top.append({f"token_id:{place}": float(say[place]) for place in [token, *best]})
        stopped = bool(ids) and ids[-1] in body.get("stop_token_ids", [])
        logprobs = {"text_offset": [0], "token_logprobs": told, "tokens": ["?"] * len(ids), "top_logprobs": top}
        return {
            "id": "cmpl-8daa09c6929b0e60",
            "object": "text_completion",
            "created": 1795285064,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "text": "?",
                    "logprobs": logprobs if "logprobs" in body and self.mode != "none" else None,
                    "finish_reason": "stop" if stopped else "length",
                    "stop_reason": ids[-1] if stopped else None,
                    "token_ids": ids,
                    "prompt_logprobs": None,
                    "prompt_token_ids": prompt,
                }
            ],
            "usage": {
                "prompt_tokens": len(prompt),
                "total_tokens": len(prompt) + len(ids),
                "completion_tokens": len(ids),
                "prompt_tokens_details": {"cached_tokens": len(prompt) // 16 * 16},
            },
        }

    def refuses(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """Why it will not complete this, None where it will."""
        if body["model"] not in (self.model, *self.adapters):
            return error(404, f"The model `{body['model']}` does not exist. Valid aliases: {self.model}.")
        if max(body["prompt"]) >= self.vocab_size:
            return error(400, f"Token id {max(body['prompt'])} is out of vocabulary")
        if body.get("temperature", 1.0) > 2.0:
            return error(400, f"temperature must be in [0, 2], got {body['temperature']}.")
        return None

    def manage(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Load or unload an adapter; the answer is a text, or an error's document."""
        name = body["lora_name"]
        if path == "/v1/unload_lora_adapter":
            self.ended.wait(self.unload_latency)
        with self.lock:
            if path == "/v1/load_lora_adapter":
                if name in self.adapters:
                    return error(400, f"The lora adapter '{name}' has already been loaded.", "InvalidUserInput")
                if self.rank_error:
                    self.events.append(("refuse", name))
                    return error(500, "LoRA rank 64 is greater than max_lora_rank 8.", "InternalServerError")
                if not Path(body["lora_path"]).is_dir():
                    return error(404, f"Loading lora {name} failed: No adapter found for {body['lora_path']}")
                self.adapters[name] = body["lora_path"]
                self.events.append(("load", name))
                return 200, f"Success: LoRA adapter '{name}' added successfully."
            if name not in self.adapters:
                return error(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
            if self.running[name]:
                self.events.append(("unload while in use", name))
            del self.adapters[name]
            self.events.append(("unload", name))
            return 200, f"Success: LoRA adapter '{name}' removed successfully."

    def models(self) -> dict[str, Any]:
        """The document of /v1/models."""
        base = {"id": self.model, "object": "model", "root": "folder", "parent": None, "max_model_len": self.positions}
        with self.lock:
            more = [
                {"id": name, "object": "model", "root": path, "parent": self.model, "max_model_len": None}
                for name, path in self.adapters.items()
            ]
        return {"object": "list", "data": [base, *more]}


def log_softmax(logits: Logits) -> Logits:
    """Log-probs of logits, (V,)."""
    shifted: Logits = logits - logits.max()
    result: Logits = shifted - np.log(np.exp(shifted).sum())
    return result


def error(status: int, message: str, kind: str = "BadRequestError") -> tuple[int, dict[str, Any]]:
    """An error as vLLM tells it."""
    return status, {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _spoil(document: dict[str, Any], fault: Fault) -> None:
    choice = document["choices"][0]
    if fault == "no_ids":
        del choice["token_ids"]
    elif fault == "no_logprobs":
        choice["logprobs"] = None
    elif fault == "fewer_logprobs":
        choice["logprobs"]["token_logprobs"].pop()
    elif fault == "null_logprob":
        choice["logprobs"]["token_logprobs"][0] = None
    elif fault == "other_prompt":
        document["usage"]["prompt_tokens"] -= 1
    elif fault == "aborted":
        choice["finish_reason"] = "abort"
    elif fault == "empty":
        choice |= {"token_ids": [], "logprobs": {"token_logprobs": []}}


def _handler(mock: MockVllm) -> type[QuietHandler]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            if mock.gone:
                self.close_connection = True
            elif self.path == "/health":
                self.answer(200 if mock.healthy else 503, b"", "text/plain")
            elif self._unknown_key():
                self._send_json(401, {"error": "Unauthorized"})
            elif self.path == "/v1/models":
                self._send_json(200, mock.models())
            else:
                self._send_json(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            mock.headers.append({name.lower(): value for name, value in self.headers.items()})
            if mock.gone:
                self.close_connection = True
            elif self._unknown_key():
                self._send_json(401, {"error": "Unauthorized"})
            elif self.path == "/tokenize":
                ids = mock.codec.tokenizer.encode(body["prompt"], add_special_tokens=False).ids
                self._send_json(200, {"count": len(ids), "max_model_len": mock.positions, "tokens": ids})
            elif self.path == "/v1/completions":
                self._complete(body)
            elif self.path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
                status, answer = mock.manage(self.path, body)
                if self.path == "/v1/load_lora_adapter" and mock.drop_load_answers:
                    mock.drop_load_answers -= 1
                    self.close_connection = True
                elif isinstance(answer, str):
                    self.answer(status, answer.encode(), "text/plain")
                else:
                    self._send_json(status, answer)
            else:
                self._send_json(404, {"detail": "Not Found"})

        def _complete(self, body: dict[str, Any]) -> None:
            with mock.lock:
                mock.bodies.append(body)
                fault = mock.script.pop(0) if mock.script else "sound"
                refusal = mock.refuses(body)
                mock.running[body["model"]] += 1
                mock.most_at_once = max(mock.most_at_once, mock.running.total())
            try:
                if refusal is not None:
                    self._send_json(*refusal)
                    return
                mock.gate.wait(20.0)
                mock.ended.wait(mock.latency)
                document = mock.complete(body)
            finally:
                with mock.lock:
                    mock.running[body["model"]] -= 1
                    mock.events.append(("answer", body["model"]))
            _spoil(document, fault)
            whole = json.dumps(document).encode()
            if fault in ("429", "500", "503", "400"):
                self._send_json(*error(int(fault), "not now"))
            elif fault == "slow":
                mock.ended.wait(1.5)
                self.close_connection = True
            elif fault == "closed" or mock.gone:
                self.close_connection = True
            elif fault == "cut":
                self.answer(200, whole[: len(whole) // 2], length=len(whole))
            elif fault == "truncated":
                self.answer(200, whole[: len(whole) // 2])
            elif fault == "page":
                self.answer(200, b"<html>busy</html>", "text/html")
            else:
                self.answer(200, whole)

        def _unknown_key(self) -> bool:
            return bool(mock.key) and self.headers["Authorization"] != f"Bearer {mock.key}"

        def _send_json(self, status: int, document: Any) -> None:
            self.answer(status, json.dumps(document).encode())

    return Handler


@contextmanager
def serving(codec: ChatCodec, **settings: Any) -> Iterator[MockVllm]:
    """The server at a free port of this machine, for the time of a block."""
    with serving_mock(MockVllm(codec, **settings)) as mock:
        yield mock


@contextmanager
def serving_mock(mock: MockVllm) -> Iterator[MockVllm]:
    """The same for a server that is made already."""
    with local_server.serving(_handler(mock), mock.ended) as mock.url:
        try:
            yield mock
        finally:
            mock.gate.set()
