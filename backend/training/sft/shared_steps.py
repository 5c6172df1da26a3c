"""Steps of a warm start whose batches are cut into parts, so that several processes compute a gradient together.

The parts, and the order in which their gradients are added, do not depend on who computes them, so neither do the
weights. Parameters and gradients lie in files that all processes map: a megabyte goes from one to the other by no copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3Config

from backend.policies.linear_layers import quicken
from backend.policies.logprobs import token_logps
from backend.policies.temporary import temporary_folder
from backend.processes import Helper, Workers, WorkReport, keep_freed_memory, silent
from cryptosentinel.llm.nano import new_nano

BatchPart = tuple[Tensor, Tensor]  # ids (b, T) and mask (b, T), as `pad_examples` makes them


@dataclass(frozen=True)
class _PartTask:
    """BatchPart `number` of a batch, of which `learnt` tokens are learnt in all."""

    folder: Path
    architecture: Qwen3Config
    number: int
    part: BatchPart
    learnt: int


class PartGradients:
    """Gradients of the mean loss of a batch that is cut into parts: here one after the other, or with helpers."""

    def __init__(self, model: PreTrainedModel, parts: int, workers: Workers, folder: Path) -> None:
        self._model = model
        self._workers = workers
        self._folder = folder
        self._parameters = list(model.parameters())
        size = sum(one.numel() for one in self._parameters)
        self._values = _mapped(folder / "parameters", size)
        self._gradients = [_mapped(folder / f"gradient-{number}", size) for number in range(parts)]

    def accumulate(self, parts: Sequence[BatchPart], learnt: int) -> float:
        """Set the parameters' gradients to those of -(log-probs of the learnt tokens) / `learnt`; returns that."""
        if self._workers.number > 1:
            self._values.copy_(_flat([one.detach() for one in self._parameters]))
        architecture = self._model.config
        assert isinstance(architecture, Qwen3Config)
        tasks = [_PartTask(self._folder, architecture, number, part, learnt) for number, part in enumerate(parts)]
        losses = self._workers.share(self._compute, tasks)
        gradient = self._gradients[0].clone()
        for other in self._gradients[1 : len(parts)]:
            gradient += other
        for parameter, value in zip(self._parameters, _split(gradient, self._parameters), strict=True):
            parameter.grad = value
        return sum(losses)

    def _compute(self, helper: Helper | None, task: _PartTask) -> float:
        if helper is not None:
            return helper.do(_compute_there, task, silent)
        return _compute(self._model, task.part, task.learnt, self._gradients[task.number])


@contextmanager
def part_gradients(model: PreTrainedModel, parts: int, workers: Workers) -> Iterator[PartGradients]:
    """The gradients of `parts` parts for the time of a block."""
    folder = temporary_folder("warm-start")
    try:
        yield PartGradients(model, parts, workers, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compute(model: PreTrainedModel, part: BatchPart, learnt: int, into: Tensor) -> float:
    """The gradient of a part, written `into` a row; its part of the loss."""
    model.zero_grad()
    loss = -token_logps(model, *part)[0].sum() / learnt
    loss.backward()
    into.copy_(_flat([torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]))
    return loss.item()


_MODELS: dict[Path, PreTrainedModel] = {}  # of the warm start that this helper works for


def _compute_there(task: _PartTask, report: WorkReport) -> float:
    """In a helper: `_compute` with the parameters as they are in the shared file."""
    if task.folder not in _MODELS:
        _MODELS.clear()
        _MODELS[task.folder] = new_nano(0, task.architecture).requires_grad_(True).train()
        quicken(_MODELS[task.folder])
        keep_freed_memory()
    model = _MODELS[task.folder]
    parameters = list(model.parameters())
    size = sum(one.numel() for one in parameters)
    with torch.no_grad():
        for parameter, value in zip(
            parameters, _split(_mapped(task.folder / "parameters", size), parameters), strict=True
        ):
            parameter.copy_(value)
    return _compute(model, task.part, task.learnt, _mapped(task.folder / f"gradient-{task.number}", size))


def _mapped(path: Path, size: int) -> Tensor:
    """A row of float32 that lies in a file and is shared by the processes that map it."""
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.float32)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([one.reshape(-1) for one in tensors])


def _split(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    pieces = flat.split([one.numel() for one in parameters])
    return [piece.view_as(one) for piece, one in zip(pieces, parameters, strict=True)]
