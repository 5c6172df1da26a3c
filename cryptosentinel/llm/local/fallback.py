"""Decoding by the library itself, for every architecture that `llama.py` does not compute.

The library's `generate` runs the model: it knows the caches, masks and positions of each architecture. Which token
comes next is still decided here, by the same sampler and the same uniform numbers as in `decoding.py`, so settings,
seeds, constraints and log-probs mean the same. What is missing is speed: a batch is padded on the left and runs until
its last row ends, equal prompts are read as often as they are asked, and every turn reads its conversation from the
beginning.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from cryptosentinel.llm.architecture import causal_class, parameter_shapes, positions_of, same_shapes, tied_names
from cryptosentinel.llm.engine import Completion
from cryptosentinel.llm.local.sampling import sample, uniforms
from cryptosentinel.llm.turn import TurnState, choices
from simulator.errors import UserError


class LibraryDecoder:
    """One set of weights of any causal language model. Call inside `torch.inference_mode()`.

    `state` holds the library's names; values are copied to `device` as `dtype`. What is equal in one of the `others` is
    kept once for all of them. Raises `UserError` for a state that is not this model's.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        state: Mapping[str, torch.Tensor],
        device: torch.device,
        others: Sequence[LibraryDecoder] = (),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        wanted, tied = parameter_shapes(config), tied_names(config)
        given = {name: tuple(tensor.shape) for name, tensor in state.items()}
        odd = same_shapes(given, {name: shape for name, shape in wanted.items() if name in given or name not in tied})
        if odd:
            more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            raise UserError(
                f"these weights are not this model's: {'; '.join(odd[:3])}{more}. Give the checkpoint that fits"
            )
        self.device = device
        self.dtype = dtype
        self.max_positions = positions_of(config)
        self._model: PreTrainedModel = others[0]._model if others else _without_weights(config, device)
        self._state: dict[str, torch.Tensor] = {}
        for name in wanted:
            if name in tied:
                continue
            weight = state[name].detach().to(device)
            if not torch.isfinite(weight).all():
                raise UserError(
                    f"{name} holds values that are not finite: training has diverged; use an earlier checkpoint"
                )
            if weight.is_floating_point():
                weight = weight.to(dtype)
            equal = [other._state[name] for other in others if torch.equal(weight, other._state[name])]
            self._state[name] = equal[0] if equal else weight.clone(memory_format=torch.contiguous_format)
        self._tied = tied

    def memory(self) -> Iterator[tuple[int, int]]:
        """Address and bytes of all weights."""
        for weight in self._state.values():
            yield weight.untyped_storage().data_ptr(), weight.untyped_storage().nbytes()

    def decode(self, turns: Sequence[TurnState]) -> list[Completion]:
        """Continue the request of every turn until the turn is done."""
        whole = self._state | {name: self._state[first] for name, first in self._tied.items()}
        self._model.load_state_dict(whole, assign=True)
        # States of recurrent layers run over padding too, so that only prompts of one length go together.
        lengths = sorted({len(turn.request.ids) for turn in turns}) if self._model._is_stateful else [None]
        for length in lengths:
            self._continue([turn for turn in turns if length is None or len(turn.request.ids) == length])
        return [turn.completion() for turn in turns]

    def _continue(self, turns: Sequence[TurnState]) -> None:
        requests = [turn.request for turn in turns]
        longest = max(len(request.ids) for request in requests)
        steps = max(request.sampling.room for request in requests)
        ids = torch.zeros(len(requests), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, longest - len(request.ids) :] = torch.tensor(request.ids)
            mask[row, longest - len(request.ids) :] = 1
        chooser = _Chooser(turns, steps, self.device)
        model: Any = self._model
        model.generate(
            ids.to(self.device),
            attention_mask=mask.to(self.device),
            generation_config=GenerationConfig(max_new_tokens=steps, do_sample=False, use_cache=True, pad_token_id=0),
            logits_processor=[chooser],
            stopping_criteria=[chooser.ended],
        )


@dataclass
class _Chooser:
    """What `generate` asks for the next token: it samples as `decoding.decode` does, writes down what it sampled, and
    leaves the library no other choice."""

    turns: Sequence[TurnState]
    steps: int
    device: torch.device

    def __post_init__(self) -> None:
        requests = [turn.request for turn in self.turns]
        lengths = [len(request.ids) for request in requests]
        chance = uniforms([request.seed for request in requests], lengths, self.steps)
        self._chance = torch.from_numpy(chance).to(self.device)
        self._temperatures = torch.tensor([one.sampling.temperature for one in requests], device=self.device)
        self._step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores (B, V) that leave each row one token."""
        open_rows = [row for row, turn in enumerate(self.turns) if not turn.done]
        logits = scores.float()
        if len(open_rows) == len(self.turns):
            logits = choices(logits, self.turns)
        elif open_rows:
            logits = logits.clone()
            logits[open_rows] = choices(logits[open_rows], [self.turns[row] for row in open_rows])
        drawn, logps = sample(logits, self._temperatures.float(), self._chance[:, self._step])
        self._step += 1
        tokens = list(zip(drawn.tolist(), logps.tolist(), strict=True))
        for row in open_rows:
            turn, (token, logp) = self.turns[row], tokens[row]
            forced = turn.next_forced
            if forced is not None:
                drawn[row] = token = forced
            turn.take(token, logp)
        left = torch.full_like(scores, float("-inf"))
        return left.scatter_(1, drawn[:, None], 0.0)

    def ended(self, input_ids: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
        """Whether each row has ended, (B,)."""
        return torch.tensor([turn.done for turn in self.turns], device=input_ids.device)


def _without_weights(config: PreTrainedConfig, device: torch.device) -> PreTrainedModel:
    """The model with its buffers (positions, say), which are in no state, and without memory for its weights."""
    built: Any = causal_class(config)
    with init_empty_weights(include_buffers=False):
        model: PreTrainedModel = built(copy.deepcopy(config)).eval()
    for name, buffer in list(model.named_buffers()):
        parent, _, child = name.rpartition(".")
        model.get_submodule(parent)._buffers[child] = buffer.to(device)
    # What the model's folder says of sampling is for others: it would be applied before our sampler.
    model.generation_config = GenerationConfig()
    return model
