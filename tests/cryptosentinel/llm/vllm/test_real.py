"""The engine against vLLM itself, in its CPU build, with a small warm-started nano and real adapters.

One server serves the whole file; the last test kills it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel, Qwen3ForCausalLM

from cryptosentinel.agents.registry import ROLES
from cryptosentinel.episode import play
from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.engine import Completion, Request, Sampling, StreamingEngine
from cryptosentinel.llm.nano import load_model
from cryptosentinel.llm.vllm.engine import VllmEngine
from cryptosentinel.llm.vllm.server import MODEL, VllmServer
from cryptosentinel.protocol.tool_calls import MalformedCall, parse
from cryptosentinel.scheduler import Throughput, run_all
from cryptosentinel.team import AgentTask, Team
from simulator.backtest.run import BacktestRun, Window
from simulator.errors import RunFailed
from tests.small_world import small_nano
from tests.standard_limits import guard_limits
from tests.team_scenes import standard_team, synthetic

PYTHON = Path(__file__).parents[4] / ".venv-vllm" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="vLLM is not installed beside this: run `make .venv-vllm`"),
]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# The adapters of this file, by version: seed and size of their weights. The last hardly changes what nano has learnt.
VERSIONS = {"manager-1": (1, 0.2), "manager-2": (2, 0.2), "market_analyst-1": (3, 0.2), "mild": (4, 0.01)}
ADAPTED = {"manager": "manager-1", "market_analyst": "market_analyst-1", "risk_analyst": "mild", "trader": "mild"}
CLOSE = 1e-3  # log-probs of two implementations in float32


@dataclass
class World:
    """The served folder, its server and engine, and every version's weights merged into the base."""

    folder: Path
    model: PreTrainedModel
    codec: ChatCodec
    server: VllmServer
    engine: VllmEngine  # whose roles have adapters
    plain: VllmEngine  # on the same server, with the base model alone
    weights: dict[str, dict[str, torch.Tensor]]

    def adapter(self, version: str) -> Path:
        return self.folder / version

    def fresh_logps(self, version: str, wanted: Request, answer: Completion) -> npt.NDArray[np.float64]:
        """Log-probs of the answer's ids: one pass of Hugging Face's model with the version's merged weights."""
        model: Any = Qwen3ForCausalLM(self.model.config).eval()
        model.load_state_dict(self.weights[version])
        with torch.no_grad():
            logits = model(torch.tensor([wanted.ids + answer.ids])).logits[0, len(wanted.ids) - 1 : -1]
        logps = torch.log_softmax(logits / (wanted.sampling.temperature or 1.0), dim=-1)
        chosen: npt.NDArray[np.float64] = logps[range(len(answer.ids)), list(answer.ids)].double().numpy()
        return chosen


def write_adapter(base: Path, folder: Path, seed: int, size: float, rank: int = 4) -> dict[str, torch.Tensor]:
    """A PEFT adapter that changes every layer; returns the state with it merged."""
    model, _ = load_model(base)
    adapted: Any = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.copy_(size * torch.randn(weight.shape, generator=generator))
    adapted.save_pretrained(folder)
    merged: dict[str, torch.Tensor] = adapted.merge_and_unload().state_dict()
    return merged


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("vllm")
    base = small_nano(folder / "base")
    model, tokenizer = load_model(base)
    weights = {"base": model.state_dict()}
    weights |= {version: write_adapter(base, folder / version, *how) for version, how in VERSIONS.items()}
    codec = ChatCodec(tokenizer)
    plainly = ("--dtype", "float32", "--enforce-eager")
    server = VllmServer(base, folder / "vllm.log", python=str(PYTHON), rank=8, arguments=plainly)
    size = model.config.vocab_size
    plain, engine = (VllmEngine(codec, server.url, MODEL, size, trouble=server.trouble) for _ in range(2))
    for role, version in ADAPTED.items():
        engine.publish(role, version, folder / version)
    yield World(folder, model, codec, server, engine, plain, weights)
    engine.close()
    plain.close()
    server.close()


def requests(world: World, count: int, *temperatures: float, role: str = "manager", tokens: int = 24) -> list[Request]:
    prompts = [tuple(world.codec.start("Be brief.", f"Number {number}, +{number}.5 %.")) for number in range(count)]
    return [
        Request(role, ids, Sampling(temperature, tokens), 2**62 + 17 * number)
        for number, ids in enumerate(prompts)
        for temperature in temperatures
    ]


ROLE_VERSIONS = [("manager", "manager-1"), ("market_analyst", "market_analyst-1"), ("trader", "mild"), ("none", "base")]


def answered(world: World, version: str, wanted: list[Request]) -> list[Completion]:
    return (world.plain if version == "base" else world.engine).generate(wanted)


@pytest.mark.parametrize(("role", "version"), ROLE_VERSIONS)
def test_log_probs_are_those_of_the_merged_weights(world: World, role: str, version: str) -> None:
    wanted = requests(world, 8, 0.0, 0.5, 1.0, 1.7, role=role)
    others = {"manager-1", "manager-2", "market_analyst-1"} - {version}
    for request, answer in zip(wanted, answered(world, version, wanted), strict=True):
        assert answer.failure is None and len(answer.ids) == len(answer.logps)
        np.testing.assert_allclose(answer.logps, world.fresh_logps(version, request, answer), atol=CLOSE)
        for other in others:
            assert np.abs(world.fresh_logps(other, request, answer) - answer.logps).max() > 0.05


@pytest.mark.parametrize("role", sorted(ROLES))
def test_constrained_answers_are_calls(world: World, role: str) -> None:
    free = requests(world, 6, 1.0, role=role, tokens=400)
    bound = [
        replace(request, sampling=replace(request.sampling, constrained=True), tools=ROLES[role].schemas)
        for request in free
    ]
    version = world.engine.policy_version(role)
    types = ROLES[role].argument_types()
    ended = 0
    for request, answer in zip(bound, world.engine.generate(bound), strict=True):
        assert answer.failure is None
        # What was left to choose from had all the probability.
        assert (np.array(answer.logps) >= world.fresh_logps(version, request, answer) - CLOSE).all()
        if answer.finished:
            ended += 1
            call = parse(world.codec.decode_answer(answer.ids), types)
            # What no grammar can say, such as a rule over two arguments, may still be wrong.
            assert not isinstance(call, MalformedCall) or call.code == "bad_arguments"
    assert ended >= 3


def test_adapters_are_swapped_under_running_requests(world: World) -> None:
    wanted = requests(world, 24, 1.0, tokens=96)
    early = [world.engine.submit(request) for request in wanted]
    world.engine.publish("manager", "manager-2", world.adapter("manager-2"))
    assert world.engine.policy_version("manager") == "manager-2"
    late = [world.engine.submit(request) for request in wanted]
    for version, futures in (("manager-1", early), ("manager-2", late)):
        for request, future in zip(wanted, futures, strict=True):
            answer = future.result()
            np.testing.assert_allclose(answer.logps, world.fresh_logps(version, request, answer), atol=CLOSE)
    world.engine.publish("manager", "manager-1", world.adapter("manager-1"))
    again = world.engine.generate(wanted[:4])
    for request, answer in zip(wanted, again, strict=False):
        np.testing.assert_allclose(answer.logps, world.fresh_logps("manager-1", request, answer), atol=CLOSE)


def test_a_whole_backtest(world: World) -> None:
    assert isinstance(world.engine, StreamingEngine)
    for role in ROLES:
        world.engine.publish(role, "mild", world.adapter("mild"))
    settings = standard_team(sampling=Sampling(1.0, 120))
    team = Team(world.codec, world.engine.policy_version, settings)
    games = [BacktestRun(synthetic(coins=1), Window(start, start + 24, 6)) for start in (180, 210)]
    throughput = Throughput()
    episodes = run_all([play(team, game, guard_limits(), 4) for game in games], world.engine, throughput=throughput)
    transcripts = [one for episode in episodes for _, decision in episode.decisions for one in decision.transcripts]
    assert [len(episode.decisions) for episode in episodes] == [4, 4]
    assert throughput.failures == 0 and throughput.usage.sampled == sum(sum(one.mask) for one in transcripts) > 0
    assert sum(one.valid for one in transcripts) >= 4
    assert {one.policy_version for one in transcripts} == {"mild"}
    for one in transcripts:  # all turns of a conversation, from the transcript alone
        ids, mask = torch.tensor([one.ids]), list(one.mask)
        model: Any = Qwen3ForCausalLM(world.model.config).eval()
        model.load_state_dict(world.weights["mild"])
        with torch.no_grad():
            logps = torch.log_softmax(model(ids).logits[0, :-1], dim=-1)
        chosen = logps[range(len(one.ids) - 1), list(one.ids[1:])].numpy()[mask[1:]]
        np.testing.assert_allclose(np.array(one.logps)[mask], chosen, atol=CLOSE)


def test_a_server_that_is_killed_ends_the_run(world: World) -> None:
    def talk(number: int) -> AgentTask[int]:
        turn = 0
        while True:
            yield [replace(requests(world, 1, 1.0)[0], seed=1000 * number + turn)]
            turn += 1

    killer = threading.Timer(1.0, lambda: os.killpg(world.server.process_group, signal.SIGKILL))
    killer.start()
    began = time.monotonic()
    with pytest.raises(RunFailed, match=r"the vLLM server ended with code -9: .*\(its log is .*vllm\.log\)"):
        run_all([talk(number) for number in range(8)], world.engine)
    assert time.monotonic() - began < 20.0
