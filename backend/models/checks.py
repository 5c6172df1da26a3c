"""Everything that can be known of a base model before it is used, check by check.

An adapter is checked where it is read (`policies.adapters.read_adapter`), a team where it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from backend.models.registry import size_on_disk
from backend.models.shape import Shape
from backend.policies.role_policies import adapted_layers
from backend.policies.tensor_files import fingerprint
from cryptosentinel.agents.instructions import listed_tools
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.architecture import describe_architecture, positions_of, vocabulary_of
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.local.engine import fallback_note
from cryptosentinel.llm.local.families import why_not
from cryptosentinel.llm.model_files import (
    check_folder,
    names_code,
    read_config,
    read_tokenizer,
    unsafe_files,
    weight_files,
)
from cryptosentinel.llm.nano import check_vocabulary, is_nano, load_model
from cryptosentinel.llm.templates import described_format
from cryptosentinel.team_settings import FULL_ANSWER, SHORT_ANSWER
from simulator.errors import UserError

_COINS = ("C1",)  # of the smallest decision, which must fit into the context

_State = Literal["ok", "note", "wrong"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class ModelFinding:
    """One check: what was looked at, and in words what was found; where it is wrong, also what to do."""

    what: str
    state: _State
    detail: str


@dataclass
class Findings:
    """The checks so far. `fingerprint` is that of the base's weights, once all of them were read."""

    entries: list[ModelFinding] = field(default_factory=list)
    fingerprint: str | None = None

    @property
    def wrong(self) -> int:
        """How many checks failed."""
        return sum(one.state == "wrong" for one in self.entries)

    def look(self, what: str, check: Callable[[], tuple[_T, str]]) -> _T | None:
        """Run a check that gives a value and words for it, or raises `UserError`; None when it failed."""
        try:
            value, detail = check()
        except UserError as error:
            self.entries.append(ModelFinding(what, "wrong", str(error)))
            return None
        self.entries.append(ModelFinding(what, "ok", detail))
        return value

    def note(self, what: str, detail: str) -> None:
        """Something to know that is not a fault."""
        self.entries.append(ModelFinding(what, "note", detail))


def check_base(folder: Path) -> Findings:
    """Files, config, weights and their values, tokenizer, chat format, engines."""
    findings = Findings()
    if findings.look("folder", lambda: _folder(folder)) is None:
        return findings
    if unsafe := unsafe_files(folder):
        verb = "is" if len(unsafe) == 1 else "are"
        findings.note("formats", f"{', '.join(unsafe)} may hold code and {verb} not read")
    config = findings.look("config", lambda: _config(folder))
    if config is not None and names_code(folder):
        findings.note("code", "the config names code of the model's own, which is not read: the library's own class is")
    tokenizer = findings.look("tokenizer", lambda: _tokenizer(folder, config))
    codec = None if tokenizer is None else findings.look("chat format", lambda: _chat_format(tokenizer, folder))
    if config is not None and codec is not None:
        findings.look("room", lambda: _room(codec, positions_of(config), folder))
        findings.fingerprint = findings.look("weights", lambda: _weights(folder))
    elif config is not None:
        findings.look("weights", lambda: (weight_files(folder), "they were not read, as something else is wrong"))
    if config is not None:
        _engines(findings, config)
    return findings


def _folder(folder: Path) -> tuple[bool, str]:
    check_folder(folder)
    return True, f"{size_on_disk(folder) / 2**20:,.1f} MiB"


def _config(folder: Path) -> tuple[PreTrainedConfig, str]:
    config = read_config(folder)
    shape = Shape.of(config)
    return config, (
        f"{describe_architecture(config)}, {shape.heads} heads ({shape.kv_heads} of keys), vocabulary "
        f"{vocabulary_of(config):,}, context {positions_of(config):,}"
    )


def _weights(folder: Path) -> tuple[str, str]:
    """The fingerprint of the model as the library loads it, in the numbers of its files."""
    state = load_model(folder, None)[0].state_dict()
    odd = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if odd:
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        raise UserError(
            f"{', '.join(odd[:3])}{more} in {folder} hold values that are not finite: its training has diverged, or "
            "the file is damaged; use another model"
        )
    digest = fingerprint(state, as_float32=True)
    return digest, f"{len(state):,} tensors of the config's shapes, all finite; fingerprint {digest[:12]}"


def _tokenizer(folder: Path, config: PreTrainedConfig | None) -> tuple[PreTrainedTokenizerFast, str]:
    tokenizer = read_tokenizer(folder)
    if config is not None:
        check_vocabulary(config, tokenizer, folder)
    return tokenizer, f"{len(tokenizer):,} tokens"


def _chat_format(tokenizer: PreTrainedTokenizerFast, folder: Path) -> tuple[ChatFormat, str]:
    codec, report = described_format(tokenizer, folder)
    safe = f"no text can be taken for one of its {len(codec.special_ids)} special tokens"
    try:
        described_format(tokenizer, folder, think=True)
        thinks = "; with team.thinking_tokens it may think"
    except UserError:
        thinks = ""
    return codec, f"{report.sentence()}{thinks}; {safe}"


def _room(codec: ChatFormat, context: int, folder: Path) -> tuple[int, str]:
    """How long the beginning of a role's conversation is: its system text and its tools, before anything is asked."""
    taught = is_nano(folder)
    begins = {
        role.key: len(
            codec.start(role.system if taught else role.guide, "", () if taught else listed_tools(role, _COINS))
        )
        for role in ROLES.values()
    }
    longest = max(begins, key=begins.__getitem__)
    needed = begins[longest] + 2 * (SHORT_ANSWER if taught else FULL_ANSWER)  # one for what is asked and looked up
    if context < needed:
        raise UserError(
            f"the model in {folder} has a context of {context:,} tokens, but one decision takes at least {needed:,} "
            f"({longest}: {begins[longest]:,} for instructions and tools): use a model with a longer context"
        )
    return needed, f"one decision takes at least {needed:,} tokens, the context is {context:,}"


def _engines(findings: Findings, config: PreTrainedConfig) -> None:
    reason = why_not(config)
    if reason is None:
        findings.look("engines", lambda: (True, "local (the project's own decoder and prefix tree), vllm"))
    else:
        findings.note("engines", f"local, and vllm where it serves this architecture; {fallback_note(config, reason)}")
    findings.look("adapters", lambda: (True, f"on {', '.join(adapted_layers(config))} of each block"))
