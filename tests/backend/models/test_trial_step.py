"""A model that `models check` calls ok can be trained for one step; any other is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import FalconMambaConfig, MambaConfig, MptConfig, PreTrainedConfig, RwkvConfig

from backend.models import checks, trial_step
from backend.models.checks import check_base
from backend.models.trial_step import precision_that_fits
from backend.policies import lora
from backend.policies.role_policies import RolePolicies
from cryptosentinel.llm.nano import save_model, train_tokenizer
from tests.backend.policies.test_dropout import FAMILIES, NONE
from tests.random_models import random_model

SIZES: dict[str, Any] = {"vocab_size": 280, "hidden_size": 32, "num_hidden_layers": 2, **NONE}
MORE: dict[str, Callable[[], PreTrainedConfig]] = {
    "mamba": lambda: MambaConfig(**SIZES, state_size=4),
    "falcon_mamba": lambda: FalconMambaConfig(**SIZES, state_size=4),
    "rwkv": lambda: RwkvConfig(**SIZES, attention_hidden_size=32),
    "mpt": lambda: MptConfig(vocab_size=280, d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
}


def saved(family: str, folder: Path) -> Path:
    config = (FAMILIES | MORE)[family]()
    config.vocab_size = 280
    tokenizer = train_tokenizer(["price up 1.5\nprice down 2.5\n"] * 20, vocab_size=280)
    save_model(folder, random_model(1, config), tokenizer)
    return folder


@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_a_step_is_done_for_every_family(family: str, tmp_path: Path) -> None:
    findings = check_base(saved(family, tmp_path / "base"))
    # So short a context holds no decision, as the check of the room says.
    wrong = [one for one in findings.entries if one.state == "wrong" and one.what != "room"]
    assert wrong == []
    done = [one for one in findings.entries if one.what == "training"]
    assert [one.state for one in done] == ["ok"] and "layers adapted, saved and loaded" in done[0].detail


def test_a_model_without_a_layer_for_adapters_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "linear_names", lambda config: ())
    wrong = {one.what: one.detail for one in check_base(saved("falcon", tmp_path / "base")).entries
             if one.state == "wrong"}  # fmt: skip
    assert "no layer in the blocks of falcon is one that an adapter can be on" in wrong["adapters"]


def test_what_the_library_raises_in_a_step_is_the_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = saved("llama", tmp_path / "base")

    def fails(*args: Any, **named: Any) -> None:
        raise RuntimeError("a kernel\nis missing")

    monkeypatch.setattr(RolePolicies, "logps", fails)
    [wrong] = [one.detail for one in check_base(base).entries if one.state == "wrong" and one.what == "training"]
    assert "its first step ends in RuntimeError: a kernel is missing. Use another model" in wrong


def test_a_model_that_does_not_fit_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_step, "machine_memory", lambda: 10 * 2**30)
    assert [precision_that_fits(size) for size in (10**9, 4 * 10**9, 5 * 10**9)] == ["float32", "bfloat16", None]
    monkeypatch.setattr(checks, "precision_that_fits", lambda parameters: None)
    found = [one for one in check_base(saved("llama", tmp_path / "base")).entries if one.what == "training"]
    assert [one.state for one in found] == ["note"] and "does not fit" in found[0].detail
