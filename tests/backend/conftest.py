"""What tests of the backend share: the small nano, a tiny random Qwen3, trajectories for it, the known answers."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from backend.store.store import Store
from backend.training.algorithm.trajectory import Trajectory
from tests.command_line import Run, program
from tests.small_world import small_nano

VOCABULARY = 40


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """command("backtest", "--data", ...) runs the program in an empty folder, as the shell would."""
    return program(tmp_path, monkeypatch, capsys)


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory."""
    with Store.open("mem://") as opened:
        yield opened


@pytest.fixture(scope="session")
def known() -> dict[str, Any]:
    """The known answers of M-GRPO."""
    path = Path(__file__).parents[1] / "kat" / "mgrpo.json"
    answers: dict[str, Any] = json.loads(path.read_text())
    return answers


@pytest.fixture
def tiny() -> Qwen3ForCausalLM:
    """Two layers, hidden 32, tied embeddings; weights large enough for a distribution that is far from uniform."""
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(7)
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture
def make() -> Callable[..., Trajectory]:
    """make(seed, role, prompt, answer): a prompt, an answer, a tool's reply, a second answer."""

    def build(seed: int, role: str = "manager", prompt: int = 5, answer: int = 4, **changes: Any) -> Trajectory:
        rng = np.random.default_rng(seed)
        mask = np.repeat([False, True, False, True], [prompt, answer, 2, 2])
        fields: dict[str, Any] = {
            "role": role, "query": "q0", "rollout": seed, "ordinal": 0, "mask": mask, "policy_version": "v0",
            "ids": rng.integers(0, VOCABULARY, len(mask)).astype(np.int32),
            "sampled_logps": np.where(mask, rng.uniform(-3.0, -0.5, len(mask)), 0.0).astype(np.float32),
            "valid": True, "format_score": 1.0, "expert": None, "truncated": False,
        }  # fmt: skip
        return Trajectory(**{**fields, **changes})

    return build


@pytest.fixture(scope="session")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm-started nano, to be read only. It is made once, also where several processes run the tests."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return small_nano(tmp_path_factory.mktemp("nano") / "nano")
    shared = tmp_path_factory.getbasetemp().parent
    with (shared / "nano.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "nano.made").exists():
            small_nano(shared / "nano")
            (shared / "nano.made").touch()
    return shared / "nano"
