"""Everything that can be known of a model, an adapter or a run before it is used, check by check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from backend.models.manifest import TeamManifest, read_manifest
from backend.models.registry import ADAPTERS, TEAM, adapters_of, base_of_team, role_header, size_on_disk
from backend.models.shape import Shape
from backend.policies.adapters import CONFIG as ADAPTER_CONFIG
from backend.policies.adapters import VERSION, AdapterFile, read_adapter
from backend.policies.lora import adapted_layers
from backend.policies.tensor_files import fingerprint, read_tensors
from cryptosentinel.agents.instructions import listed_tools
from cryptosentinel.agents.registry import ROLES, roles_of
from cryptosentinel.llm.architecture import describe_architecture, positions_of, vocabulary_of
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.local.engine import fallback_note
from cryptosentinel.llm.local.families import why_not
from cryptosentinel.llm.model_files import (
    CONFIG,
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
        """Something to know that is no fault."""
        self.entries.append(ModelFinding(what, "note", detail))


def check_path(path: Path, base: Path | None = None) -> Findings:
    """Check what lies in `path`: a base model, an exported adapter, or a run.

    `base`: the model that an adapter is checked against, by default that of the run it lies in; or that of a run whose
    base does not lie in its folder. Raises `UserError` where `path` is none of them.
    """
    try:
        if (path / TEAM).is_file() or (path / ADAPTERS).is_dir():
            return check_run(path, base)
        if any((path / name).is_file() for name in (ADAPTER_CONFIG, VERSION)):
            return check_adapter(path, base or _base_of_run(path))
        model = (path / CONFIG).is_file()
        files = path.is_dir() and any(path.iterdir())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): give this user permission to read it") from error
    if files and not model and not any(path.glob("*.safetensors")) and not (path / "tokenizer.json").exists():
        raise UserError(
            f"{path} holds no model ({CONFIG}), no adapter ({ADAPTER_CONFIG}) and no run ({TEAM}): give one of these"
        )
    return check_base(path)


def check_base(folder: Path) -> Findings:
    """Files, config, weights and their values, tokenizer, chat format, engines."""
    findings = Findings()
    if findings.look("folder", lambda: (check_folder(folder), _size(size_on_disk(folder)))) is None and findings.wrong:
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


def check_adapter(folder: Path, base: Path | None) -> Findings:
    """An exported adapter: whole, and of this base."""
    findings = Findings()
    one = findings.look("adapter", lambda: _adapter(folder))
    if one is not None and base is None:
        detail = f"trained on {one.base_name or 'a base'} ({one.base[:12]}); compare one with --base FOLDER"
        findings.note("base", detail)
    elif one is not None and base is not None:
        findings.look("base", lambda: _of_base(folder, one.base, fingerprint_of(base), base))
    return findings


def check_run(folder: Path, named: Path | None = None) -> Findings:
    """A run's base, and every version of a role's weights that it kept. `named`: a base outside the run's folder."""
    base: Path | None = folder / "nano"
    manifest = None
    findings = Findings()
    if (folder / TEAM).is_file():
        manifest = findings.look("team", lambda: (read_manifest(folder), "the run is finished and is a team"))
        base = None if manifest is None else _base_in(folder, manifest, findings, named)
    else:
        findings.note("team", f"no {TEAM}: the run is not finished")
    if base is not None and base.is_dir():
        of_base = check_base(base)
        findings.fingerprint = of_base.fingerprint
        findings.entries += [ModelFinding(f"base: {one.what}", one.state, one.detail) for one in of_base.entries]
    elif base is not None:
        findings.note("base", f"there is no model folder {base}: put it back where it was")
    kept = adapters_of(folder)
    for one in kept:
        where = str(one.folder.relative_to(folder))
        findings.look(where, partial(_version, one.folder, findings.fingerprint, base))
    if manifest is not None and manifest.weights() is None:
        findings.note("adapters", "no version passed the gate of validation: the team is the base itself")
    elif manifest is not None:
        missing = sorted(set(roles_of(manifest.team.roles)) - {one.role for one in kept if one.in_team})
        if missing:
            kept_in = folder / (manifest.weights() or "")
            detail = f"{kept_in} holds nothing of {', '.join(missing)}: copy it from the run anew"
            findings.entries.append(ModelFinding("roles", "wrong", detail))
    return findings


def fingerprint_of(base: Path) -> str:
    """The fingerprint of a base's weights, as its adapters carry it. Raises `UserError` for one that is not whole."""
    return _weights(base)[0]


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


def _adapter(folder: Path) -> tuple[AdapterFile, str]:
    one = read_adapter(folder)
    return one, f"{one.version}, rank {one.shape.lora_rank}, step {one.step} of run {one.run or 'unknown'}, checksum ok"


def _of_base(what: Path, trained_on: str, given: str, base: Path) -> tuple[bool, str]:
    if trained_on != given:
        raise UserError(
            f"{what} was trained on another base ({trained_on[:12]}) than {base} ({given[:12]}): give the base that it "
            "was trained on"
        )
    return True, f"trained on {base} ({given[:12]})"


def _version(path: Path, given: str | None, base: Path | None) -> tuple[bool, str]:
    """A kept version of a role's weights, exported or in one file; against the base where its fingerprint is known."""
    if path.is_dir():
        one, detail = _adapter(path)
        trained_on = one.base
    else:
        header = role_header(path)
        tensors, _ = read_tensors(path)
        if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
            raise UserError(f"{path} holds values that are not finite: its training has diverged; use another version")
        trained_on, detail = str(header["base"]), f"{header['role']}, {header['mode']}, without a checksum"
    if given is None or base is None:
        return True, f"{detail}; its base is not at hand"
    _of_base(path, trained_on, given, base)
    return True, f"{detail}, of this base"


def _base_in(folder: Path, manifest: TeamManifest, findings: Findings, named: Path | None) -> Path | None:
    """The base of a team; None, with a finding, where it cannot be had."""
    try:
        return base_of_team(folder, manifest, str(named or ""))
    except UserError as error:
        findings.entries.append(ModelFinding("base", "wrong", str(error)))
        return None


def _base_of_run(adapter: Path) -> Path | None:
    """The base of the run that an adapter lies in, where it lies in one that is finished."""
    for parent in list(adapter.resolve().parents)[:3]:
        if (parent / TEAM).is_file():
            try:
                return base_of_team(parent, read_manifest(parent))
            except UserError:
                return None
    return None


def _size(count: int) -> str:
    """Bytes in words."""
    return f"{count / 2**20:,.1f} MiB"
