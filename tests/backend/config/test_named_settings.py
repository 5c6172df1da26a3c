"""Every setting of the training that is not experimental is earned: a preset or a benchmark names it, or users of such
tools expect it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from backend.config.training import TrainingConfig

ROOT = Path(__file__).resolve().parents[3]

EXPECTED = {  # a setting that no preset and no benchmark names: why there is one
    "adam_betas": "AdamW's own, as in torch",
    "alpha": "the paper's weights of the main agent's reward",
    "clip_low": "the lower bound of PPO's clip; presets name the upper one",
    "states": "`train --from-paper` writes it",
    "data_parallel": "as many processes as the machine has GPUs",
    "device": "where to train, as in every tool that uses torch",
    "lora_alpha": "the scale of an adapter, as in peft",
    "lora_targets": "the layers with an adapter, as in peft",
    "max_grad_norm": "clipping of the gradient, as in transformers",
    "mlflow_experiment": "metrics to MLflow",
    "optimizer": "the choice of the optimizer, as in transformers",
    "quantization": "QLoRA, for GPUs that a model does not fit otherwise",
    "reward": "a reward of one's own, as in every library of reinforcement learning",
    "scores": "an expert score of one's own, beside the reward; examples/own_reward.py has one",
    "tokens": "arms of an experiment get equal shares by it (`tokens` of `experiment run`)",
    "wandb_project": "metrics to Weights & Biases",
    "weight_decay": "AdamW's own, as in torch",
}


def named() -> set[str]:
    """The keys of [training] in a preset, or as `training.KEY=` in a benchmark."""
    keys: set[str] = set()
    for preset in (ROOT / "configs").glob("*.toml"):
        keys |= set(tomllib.loads(preset.read_text(encoding="utf-8")).get("training", {}))
    for benchmark in (ROOT / "benchmarks").glob("*.py"):
        keys |= set(re.findall(r"\btraining\.(\w+)=", benchmark.read_text(encoding="utf-8")))
    return keys | {"alignment"}  # of `benchmarks/bench_training_alignment.py`, which compares its methods


def test_each_setting_is_named_or_expected() -> None:
    settings = set(TrainingConfig.model_fields) - {"experimental"}
    assert not settings - named() - set(EXPECTED), "move it to [training.experimental], or say who expects it"
    assert not set(EXPECTED) - settings, "a reason for a setting that is gone"
    assert not set(EXPECTED) & named(), "a reason that is not needed: a preset or a benchmark names it"


def test_the_alignment_is_compared_in_a_benchmark() -> None:
    text = (ROOT / "benchmarks" / "bench_training_alignment.py").read_text(encoding="utf-8")
    assert "`training.alignment`" in text and '"duplicate_drop"' in text
