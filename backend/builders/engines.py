"""Engines as the configuration has them, for a team whose model was not trained here."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from backend.config.engine import EngineConfig
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.engine import Engine
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.nano import load_model
from cryptosentinel.llm.openai_api.engine import OpenAIEngine
from cryptosentinel.llm.vllm.engine import VllmEngine
from cryptosentinel.llm.vllm.server import MODEL, ServerSettings, VllmServer
from simulator.errors import UserError

OPENAI = "https://api.openai.com/v1"
# An endpoint counts tokens of its own, we the bytes that we send. English and JSON have three to four in a token.
BYTES_PER_TOKEN = 3
VLLM_RANKS = (16, 32, 64, 128, 256)  # that `--max-lora-rank` of vLLM 0.32 takes, from the default on


@dataclass(frozen=True)
class Mind:
    """What a team thinks with: an engine, the codec of its conversations, the longest of them in the codec's tokens
    (0: any length), and the model's name in the table of prices."""

    engine: Engine
    codec: ChatCodec
    context_tokens: int
    model: str


def mind_of(config: EngineConfig) -> Mind:
    """The engine of a model that was not trained here, the same for all roles.

    Raises `UserError` for one that cannot be used, before anything is asked of it.
    """
    if not config.model:
        raise UserError(
            "engine.model is empty: name the model with --set engine.model=..., a folder of a Qwen3 model or, with "
            "engine.kind=openai_api, what the endpoint calls it"
        )
    if config.kind == "openai_api":
        return _at_an_endpoint(config)
    return _in_this_process(config) if config.kind == "local" else served(config, Path(config.model))


def served(config: EngineConfig, base: Path, rank: int = 16) -> Mind:
    """The Qwen3 model in the folder `base`, on the vLLM server at `config.url`, or on one that is started for it and
    ends with this process. `rank` is that of the largest adapter that it will be given."""
    model, tokenizer = load_model(base)
    codec = ChatCodec(tokenizer, empty_think=config.empty_think)
    url, name = config.url, config.served_model or str(base)
    more: dict[str, Any] = {}
    if not url:
        python = config.python or sys.executable
        server = _server(base.resolve(), python, config.context_tokens, max(16, rank), config.gpu_share)
        url, name, more = server.url, MODEL, {"trouble": server.trouble}
    engine = VllmEngine(
        codec,
        url,
        name,
        model.config.vocab_size,
        version=base.resolve().name,
        timeout_s=config.timeout,
        retries=config.retries,
        **more,
    )
    return Mind(engine, codec, min(config.context_tokens or engine.positions, engine.positions), base.name)


@cache
def _server(base: Path, python: str, context_tokens: int, rank: int, gpu_share: float) -> VllmServer:
    """The server of this process for a base: teams with other adapters share it, as they must share its device."""
    log = Path(tempfile.mkdtemp(prefix="cryptosentinel-vllm-")) / "vllm.log"
    room = ("--gpu-memory-utilization", str(gpu_share)) if gpu_share else ()
    # The server takes ranks of a list alone.
    allowed = next((one for one in VLLM_RANKS if one >= rank), rank)
    settings = ServerSettings(context=context_tokens or None, adapters=len(ROLES), rank=allowed, arguments=room)
    return VllmServer(base, log, python=python, settings=settings)


def _in_this_process(config: EngineConfig) -> Mind:
    folder = Path(config.model)
    model, tokenizer = load_model(folder)
    codec = ChatCodec(tokenizer, empty_think=config.empty_think)
    engine = LocalEngine(codec, model.config, dict.fromkeys(ROLES, model.state_dict()), version=folder.name)
    positions = model.config.max_position_embeddings
    return Mind(engine, codec, min(config.context_tokens or positions, positions), folder.name)


def _at_an_endpoint(config: EngineConfig) -> Mind:
    codec = make_byte_codec()
    engine = OpenAIEngine(
        codec,
        config.url or OPENAI,
        config.model,
        key_variable=config.key_variable,
        concurrency=config.concurrency,
        requests_per_minute=config.requests_per_minute,
        timeout=config.timeout,
        retries=config.retries,
    )
    engine.check()
    return Mind(engine, codec, BYTES_PER_TOKEN * config.context_tokens, config.model)
