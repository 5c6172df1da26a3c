"""Engines from the configuration: our own decoder, a vLLM server, an endpoint, or the user's own.

Each imports what it needs where it is made: an endpoint needs neither torch nor transformers, which take gigabytes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.config.engine import BudgetConfig, EngineConfig
from backend.config.plugins import ENGINE, check_own_code, function, guarded
from backend.policies.temporary import temporary_folder
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.conversation.budget import FREE, Price
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.endpoint.providers import key_variable_of, provider_at
from cryptosentinel.llm.engine import Completion, Engine, Request
from simulator.errors import UserError

if TYPE_CHECKING:
    from cryptosentinel.llm.endpoint.http import CostLimit
    from cryptosentinel.llm.vllm.server import VllmServer

# An endpoint counts in its own tokens, we count bytes. English and JSON have three to four bytes a token.
_BYTES_PER_TOKEN = 3
ANSWER_TIMEOUT = 300.0  # seconds to wait for one answer of a server, and the longest Retry-After
_VLLM_RANKS = (16, 32, 64, 128, 256)  # what `--max-lora-rank` of vLLM 0.32 accepts, from its default on


@dataclass(frozen=True)
class LoadedEngine:
    """An engine with its model: the codec of its conversations, the longest conversation in tokens of the codec (0: no
    limit), the model's name in the price table, and its shipped price (None where it is not known). `knows_tools`: it
    learnt the tools in a warm start. `tools_apart`: the engine hands the tools of a request to the model, so that
    no prompt has to list them."""

    engine: Engine
    codec: ChatFormat
    context_tokens: int
    model: str
    price: Price | None = FREE
    knows_tools: bool = False
    tools_apart: bool = False


def load_engine(config: EngineConfig, budget: BudgetConfig, *, think: bool = False) -> LoadedEngine:
    """The engine for a model that was not trained here; all roles share it. With `think` its answers may begin with a
    thought; an endpoint decides that itself. `budget` limits what an endpoint's answers may cost.

    Raises `UserError` for a model that cannot be used, before the first call.
    """
    if config.own:
        return _users_own(config)
    if not config.model:
        raise UserError(
            "engine.model is empty: name the model with --set engine.model=..., a folder of a model or, with "
            "engine.kind=openai or another provider, what the endpoint calls it"
        )
    if config.at_endpoint:
        return _at_an_endpoint(config, budget)
    if config.kind == "local":
        return _in_this_process(config, think)
    return served_engine(config, Path(config.model), think=think)


def served_engine(config: EngineConfig, base: Path, rank: int = 16, *, think: bool = False) -> LoadedEngine:
    """The model in the folder `base` on the vLLM server at `config.url`, or on a server that is started for it
    and ends with this process. `rank` is the rank of the largest adapter that will be loaded."""
    from cryptosentinel.llm.architecture import vocabulary_of
    from cryptosentinel.llm.nano import is_nano, read_base
    from cryptosentinel.llm.templates import chat_format
    from cryptosentinel.llm.vllm.engine import VllmEngine
    from cryptosentinel.llm.vllm.server import MODEL

    if config.python and not config.url:
        check_own_code(f"engine.python = '{config.python}'")
    architecture, tokenizer = read_base(base)
    codec = chat_format(tokenizer, base, think=think)
    url, name = config.url, ""
    more: dict[str, Any] = {}
    if not url:
        python = config.python or sys.executable
        server = _server(base.resolve(), python, config.context_tokens, max(16, rank), config.gpu_share)
        url, name, more = server.url, MODEL, {"trouble": server.trouble}
    engine = VllmEngine(
        codec,
        url,
        name,
        vocabulary_of(architecture),
        version=base.resolve().name,
        timeout_s=ANSWER_TIMEOUT,
        **more,
    )
    room = min(config.context_tokens or engine.positions, engine.positions)
    return LoadedEngine(engine, codec, room, base.name, knows_tools=is_nano(base))


@cache
def _server(base: Path, python: str, context_tokens: int, rank: int, gpu_share: float) -> VllmServer:
    """The vLLM server of this process for a base model. Teams with different adapters share it and its device."""
    from cryptosentinel.llm.vllm.server import VllmServer

    log = temporary_folder("vllm", keep=True) / "vllm.log"  # its errors name it
    memory = ("--gpu-memory-utilization", str(gpu_share)) if gpu_share else ()
    allowed = next((known for known in _VLLM_RANKS if known >= rank), rank)
    return VllmServer(
        base, log, python=python, context=context_tokens, adapters=len(ROLES), rank=allowed, arguments=memory
    )


def _in_this_process(config: EngineConfig, think: bool) -> LoadedEngine:
    import torch

    from cryptosentinel.llm.architecture import positions_of
    from cryptosentinel.llm.local.engine import LocalEngine
    from cryptosentinel.llm.local.families import why_not
    from cryptosentinel.llm.model_files import weight_files
    from cryptosentinel.llm.nano import is_nano, load_model, read_base
    from cryptosentinel.llm.templates import chat_format

    folder = Path(config.model)
    architecture, tokenizer = read_base(folder)
    codec = chat_format(tokenizer, folder, think=think)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # The project's own decoder reads them one at a time: no second copy is in memory.
    weights: Mapping[str, torch.Tensor] = weight_files(folder)
    if why_not(architecture) is not None:
        weights = load_model(folder)[0].state_dict()
    engine = LocalEngine(
        codec,
        architecture,
        dict.fromkeys(ROLES, weights),
        version=folder.name,
        device=device,
        dtype=torch.bfloat16 if device == "cuda" else torch.float32,  # CPUs without bfloat16 products are slow in it
    )
    positions = positions_of(architecture)
    room = min(config.context_tokens or positions, positions)
    return LoadedEngine(engine, codec, room, folder.name, knows_tools=is_nano(folder))


def _users_own(config: EngineConfig) -> LoadedEngine:
    """The engine of `engine.kind`: what the user's function makes of these settings and of a codec of bytes, whose
    conversations it continues. Raises `UserError` for what is not an engine; so does the engine where it fails."""
    codec = make_byte_codec()
    made = function(ENGINE, config.kind)(config, codec)
    lacking = [name for name in ("generate", "policy_version") if not callable(getattr(made, name, None))]
    if lacking or not isinstance(getattr(made, "name", None), str):
        raise UserError(
            f"the engine {config.kind} gave a {type(made).__name__} that lacks {', '.join(lacking) or 'a name'}: an "
            "engine has name, generate(requests) and policy_version(role)"
        )
    engine = GuardedEngine(made, config.kind)
    return LoadedEngine(engine, codec, _BYTES_PER_TOKEN * config.context_tokens, config.model or made.name, None)


class GuardedEngine:
    """An engine of the user's own, whose mistakes are one sentence each."""

    def __init__(self, engine: Engine, plugin: str) -> None:
        self.name = engine.name
        self._plugin = plugin
        self._generate = guarded(f"the engine {plugin}", engine.generate)
        self._version = guarded(f"the engine {plugin}", engine.policy_version)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Continue every request, in order. Raises `UserError` where the engine fails or does not keep its contract."""
        answers = self._generate(requests)
        if not isinstance(answers, list) or not all(isinstance(one, Completion) for one in answers):
            raise UserError(f"the engine {self._plugin} must give a list of Completion, one for each request")
        if len(answers) != len(requests):
            raise UserError(f"the engine {self._plugin} gave {len(answers)} answers to {len(requests)} requests")
        if any(len(one.ids) != len(one.logps) for one in answers):
            raise UserError(f"the engine {self._plugin} must give a log-probability for each id of an answer")
        return answers

    def policy_version(self, role: str) -> str:
        """As the engine says it."""
        return str(self._version(role))


def _at_an_endpoint(config: EngineConfig, budget: BudgetConfig) -> LoadedEngine:
    from cryptosentinel.llm.endpoint.engine import EndpointEngine

    codec, provider = make_byte_codec(), config.endpoint
    engine = EndpointEngine(
        codec,
        config.url or (provider.url if provider is not None else ""),
        config.model,
        key_variable=key_variable_of(provider),
        concurrency=config.concurrency,
        timeout=ANSWER_TIMEOUT,
        extra_body=config.extra_body,
        cost_limit=_cost_limit(budget.price(config.model, config.price(config.model)), budget),
    )
    _refuse_an_unknown_price(config, budget)
    try:
        engine.check()
    except UserError as error:
        hint = "" if provider is None or not provider.hint else f" ({provider.title}: {provider.hint})"
        raise UserError(f"{error}{hint}") from None
    context = _BYTES_PER_TOKEN * config.context_tokens
    return LoadedEngine(engine, codec, context, config.model, config.price(config.model), tools_apart=True)


def _cost_limit(price: Price | None, budget: BudgetConfig) -> CostLimit | None:
    """What requests at this price may cost; None where they cost nothing, what nobody knows, or may cost any amount."""
    from cryptosentinel.llm.endpoint.http import CostLimit

    return CostLimit(budget.max_cost, price.of) if budget.max_cost and price is not None and price != Price() else None


def _refuse_an_unknown_price(config: EngineConfig, budget: BudgetConfig) -> None:
    """Raise `UserError` where a limit on costs is set and a provider's price is not known, at its own address."""
    provider, name = config.endpoint, config.model
    its_own = provider is not None and provider.paid and (not config.url or provider_at(config.url) is not None)
    if provider is None or not its_own or not budget.max_cost:
        return
    if budget.price(name, config.price(name)) is None:
        raise UserError(
            f"the price of {name!r} at {provider.title} is not known, so budget.max_cost = {budget.max_cost:g} cannot "
            f"be kept: say it with -s 'budget.prices.\"{name}\"=[read, cached, sampled]' (money per million tokens), "
            "or allow any amount with -s budget.max_cost=0"
        )
