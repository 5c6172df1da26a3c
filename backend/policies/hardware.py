"""Where a role's policy is trained, and in which numbers: device, bfloat16, gradient checkpointing, four-bit base.

**bfloat16.** The frozen base is held in it, and matrix products are done in it (torch's autocast). What is trained
stays float32 with its gradient and its optimizer: an adapter, or in the mode `full` the whole copy. Losses, log-softmax
and norms are float32: autocast leaves them so, and `token_logps` takes the logits there.

**Compiled.** On a GPU in bfloat16, where there is a C compiler, torch compiles the blocks of the Llama family
(`fused_blocks`) and the passes over the logits; the first steps of a process wait half a minute for it.

**Checkpointing** (arXiv 1604.06174). A block keeps its input alone and is computed again in the backward pass. The
gradient is the same; there is about one more forward pass.

**QLoRA** (arXiv 2305.14314). The base's linear layers are held as NF4 with double quantization, by bitsandbytes, and
are expanded in `precision` where they multiply. The adapters are trained on what that rounding left of the base, and
what the engine of this process gets is that base, too.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from backend.config.schema import ConfigError
from backend.config.training import TrainingConfig
from backend.policies.fused_blocks import fuse
from cryptosentinel.llm.architecture import blocks_of
from cryptosentinel.llm.local.matrices import keep_products, products

Precision = Literal["float32", "bfloat16"]
Quantization = Literal["none", "nf4"]
DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Hardware:
    """How the policies of a process are held and computed. `device` is torch's name for it."""

    device: str = "cpu"
    precision: Precision = "float32"
    checkpointing: bool = False
    quantization: Quantization = "none"
    compiled: bool = False  # blocks and log-probs by kernels that torch compiles

    @property
    def kind(self) -> DeviceKind:
        """The kind of device."""
        return "cuda" if torch.device(self.device).type == "cuda" else "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """Of the frozen base, and of matrix products."""
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32

    def computing(self) -> AbstractContextManager[Any]:
        """The context of a forward pass."""
        return torch.autocast(self.kind, torch.bfloat16, enabled=self.precision == "bfloat16")

    def pack(self, model: PreTrainedModel) -> None:
        """Quantize a frozen base in place, if that is wanted, before it gets adapters."""
        if self.quantization == "nf4":
            _quantise(model, self.dtype)
            self.carry(model)  # which packs it

    def carry(self, model: nn.Module) -> None:
        """Bring a model to the device, in place."""
        model.to(torch.device(self.device))

    def place(self, model: nn.Module) -> None:
        """Bring a frozen base to the device, in its numbers, in place; its adapters, if it has any, stay float32."""
        _cast_frozen(model, self.dtype)
        if self.precision == "bfloat16":
            for module in model.modules():
                if isinstance(module, LoraLayer):
                    # Autocast brings the input to its numbers; brought to the adapter's before, each layer would keep a
                    # copy of its own.
                    module.cast_input_dtype_enabled = False
        self.carry(model)

    def prepare(self, model: PreTrainedModel) -> None:
        """Compile the blocks of a model that is trained, and let it compute them again in the backward pass, where that
        is wanted."""
        if self.compiled:
            fuse(model)
        blocks: list[Any] = list(blocks_of(model, model.config)[1])
        for block in blocks if self.checkpointing else ():
            # Not by the library's switch, which works in training mode alone and so would turn dropout on: the model
            # stays in evaluation mode, in which two passes of one policy are equal.
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)


def _cast_frozen(model: nn.Module, dtype: torch.dtype) -> None:
    """Frozen floats to `dtype`, one parameter after another. Buffers stay as they are: positions need the digits of
    RoPE's frequencies."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and ".lora_" not in name:
            parameter.data = parameter.data.to(dtype)


def _quantise(model: PreTrainedModel, compute: torch.dtype) -> None:
    """Replace the linear layers of the blocks by NF4 ones; these are packed as they go to their device. The output
    layer stays: its rounding would go straight into the log-probs."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear) or module is model.get_output_embeddings():
            continue
        packed = Linear4bit(
            module.in_features,
            module.out_features,
            bias=module.bias is not None,
            compute_dtype=compute,
            compress_statistics=True,
            quant_type="nf4",
            device="meta",
        )
        packed.weight = Params4bit(
            module.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4", module=packed
        )
        packed.bias = module.bias
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, packed)
    # What peft asks before it puts an adapter on such a layer.
    object.__setattr__(model, "is_loaded_in_4bit", True)


def base_state(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers by name, NF4 ones expanded to float32."""
    state = model.state_dict()
    for name, module in model.named_modules():
        if type(module).__name__ == "Linear4bit":
            from bitsandbytes.functional import dequantize_4bit

            # Beside each packed weight are the numbers to expand it with.
            packed = [key for key in state if key.startswith(f"{name}.weight")]
            for key in packed:
                del state[key]
            state[f"{name}.weight"] = dequantize_4bit(module.weight.data, module.weight.quant_state).float()
    return state


# -- what a configuration asks of this machine ----------------------------------------------------------------------


def hardware_of(training: TrainingConfig) -> Hardware:
    """The hardware of a configuration on this machine. Raises `ConfigError` for what this machine does not have."""
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    for key, value, packed in (
        ("precision", training.precision, "nf4"),
        ("optimizer", training.optimizer, "adamw8bit"),
    ):
        if value != packed:
            continue
        if device == "cpu":
            raise ConfigError(
                f"training.{key} = {value} needs a GPU that torch sees, and there is none: leave it out, or train "
                "where there is one"
            )
        if importlib.util.find_spec("bitsandbytes") is None:
            raise ConfigError(
                f"training.{key} = {value} needs bitsandbytes, which is not installed: install cryptosentinel[qlora]"
            )
    precision = precision_on(training, "cpu" if device == "cpu" else "cuda")
    compiled = compiled_on(training, "cpu" if device == "cpu" else "cuda")
    quantization: Quantization = "nf4" if training.precision == "nf4" else "none"
    return Hardware(device, precision, training.gradient_checkpointing, quantization, compiled)


def compiled_on(training: TrainingConfig, kind: DeviceKind) -> bool:
    """Whether blocks and log-probs are compiled on a kind of device: on a GPU in bfloat16, where it can be done."""
    short = precision_on(training, kind) == "bfloat16" and training.precision != "nf4"
    return kind == "cuda" and short and _can_compile()


def _can_compile() -> bool:
    """Whether torch can make kernels for a GPU here: with Triton, and a C compiler that starts them."""
    named = os.environ.get("CC")
    compilers = [named] if named else ["gcc", "clang"]
    return importlib.util.find_spec("triton") is not None and any(shutil.which(one) for one in compilers)


def machine_memory(device: str = "cpu") -> int:
    """Bytes that are free on the device: of the GPU for a `cuda` device, else of the machine or of the limit that its
    container sets."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free, group = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), Path("/sys/fs/cgroup")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
        return min(free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, StopIteration, ValueError):  # not Linux, no group (version 2), or one without a limit
        return free


def precision_on(training: TrainingConfig, kind: DeviceKind) -> Precision:
    """The precision on a kind of device. By itself no CPU computes in bfloat16: many are slower with it."""
    if training.precision in ("auto", "nf4"):
        return "bfloat16" if kind == "cuda" else "float32"
    return "float32" if training.precision == "float32" else "bfloat16"


def describe_hardware(training: TrainingConfig, former: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a run records of the hardware that it is trained on, and of a CPU who multiplies there. A resumed run
    multiplies as its `former` record says. Raises as `hardware_of` does."""
    hardware = hardware_of(training)
    if hardware.kind == "cuda":
        return {"device": torch.cuda.get_device_name(hardware.device), "precision": hardware.precision}
    keep_products((former or {}).get("products"))
    return {"device": "cpu", "precision": hardware.precision, "products": products()}


def hardware_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What to tell of a run that continues with other hardware than it began with; both as `describe_hardware`."""
    changed = [f"{key} was {before[key]}, now {now[key]}" for key in now if before.get(key, now[key]) != now[key]]
    return (
        f"the hardware is another ({'; '.join(changed)}): the run continues, but not bit for bit" if changed else None
    )
