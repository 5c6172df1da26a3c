"""A model from the model hub into a folder: config, tokenizer and safetensors, never anything that may hold code.

`huggingface_hub` fetches into a folder beside the target, which takes its name when all files are there; an interrupted
download resumes. The address of the hub is HF_ENDPOINT's, the token HF_TOKEN's; it is sent to the hub and shown
nowhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from backend.models.registry import MODELS, hub_folder, is_hub_name
from cryptosentinel.llm.model_files import CONFIG, INDEX, TOKENIZER, WEIGHTS, read_config
from simulator.documents import read_document
from simulator.errors import RunFailed, UserError

SOURCE = "source.json"  # where a pulled folder is from
WANTED = (
    CONFIG, "generation_config.json", TOKENIZER, "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "model*.safetensors", INDEX,
)  # fmt: skip
_TIMEOUT = 30.0  # seconds for an answer about what is pulled
_UNSAFE = (".bin", ".pt", ".pth", ".ckpt", ".gguf")


@dataclass(frozen=True)
class Pulled:
    """A model that now lies in `folder`, of the commit `revision`; `fetched` False: it lay there whole before."""

    folder: Path
    revision: str
    files: int
    size: int
    fetched: bool


def pull_model(name: str, revision: str = "main", to: Path | None = None, models: Path = MODELS) -> Pulled:
    """Download the model `name` of the hub, at a branch, tag or commit, to `to` or to its place in `models`.

    Raises `UserError` for a name, revision, token or model that cannot be used, a hub that does not answer and a file
    that came cut short; `RunFailed` when the disk cannot take it.
    """
    if not is_hub_name(name):
        raise UserError(f"{name!r} is not a name of a model on the hub: give owner/model, such as Qwen/Qwen3-0.6B")
    endpoint, token = _endpoint(), _token()
    target = Path(os.path.abspath(to or hub_folder(name, models)))
    with _explained(name, revision, endpoint):
        info = HfApi(endpoint=endpoint, token=token).model_info(
            name, revision=revision, timeout=_TIMEOUT, files_metadata=True
        )
    commit = info.sha
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UserError(f"{_host(endpoint)} gives no commit for {name}: check that HF_ENDPOINT is a model hub")
    files = _wanted(name, info.siblings or [])
    record = {"name": name, "revision": commit, "files": files}
    if read_source(target) == record and all(
        (target / file).is_file() and (target / file).stat().st_size == size for file, size in files.items()
    ):
        return Pulled(target, commit, len(files), sum(files.values()), False)
    if not _may_be_replaced(target):
        raise UserError(f"{target} is there already and was not pulled: give another folder with --to")
    partial = target.with_name(f".{target.name}.partial")
    of_hub: dict[str, Any] = {"revision": commit, "endpoint": endpoint, "token": token, "etag_timeout": _TIMEOUT}
    with _explained(name, revision, endpoint):
        snapshot_download(name, local_dir=partial, allow_patterns=[CONFIG], **of_hub)
        _check_architecture(name, partial)  # before its weights are fetched
        snapshot_download(name, local_dir=partial, allow_patterns=list(files), **of_hub)
        shutil.rmtree(partial / ".cache", ignore_errors=True)  # the library's notes of what it has fetched
        (partial / SOURCE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        os.replace(partial, target)
    return Pulled(target, commit, len(files), sum(files.values()), True)


def read_source(folder: Path) -> dict[str, Any] | None:
    """Where a folder was pulled from: name, revision, sizes of files; None where it was not."""
    try:
        record = read_document(folder / SOURCE)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _wanted(name: str, siblings: list[Any]) -> dict[str, int]:
    """The files that are fetched, with their bytes. Raises `UserError` where a needed one is missing."""
    names = sorted(str(one.rfilename) for one in siblings)
    sizes = {str(one.rfilename): int(one.size or 0) for one in siblings}
    wanted = [one for one in names if any(fnmatch(one, pattern) for pattern in WANTED) and "/" not in one]
    for needed in (CONFIG, TOKENIZER):
        if needed not in wanted:
            raise UserError(f"{name} has no {needed} on the hub: choose a model that has both")
    if WEIGHTS not in wanted and INDEX not in wanted:
        unsafe = [one for one in names if one.endswith(_UNSAFE)]
        others = f" ({', '.join(unsafe[:3])} there may hold code or another format and is not fetched)"
        raise UserError(
            f"{name} has no safetensors weights on the hub{others if unsafe else ''}: choose a model that has them"
        )
    return {one: sizes[one] for one in wanted}


def _may_be_replaced(target: Path) -> bool:
    """Whether the target is a folder that was pulled, an empty one, or nothing."""
    try:
        if not target.is_dir():
            return not target.exists() and not target.is_symlink()
        return not target.is_symlink() and (read_source(target) is not None or not any(target.iterdir()))
    except OSError as error:
        raise UserError(f"{target} cannot be read ({error.strerror}): give another folder with --to") from error


def _check_architecture(name: str, partial: Path) -> None:
    """Raise `UserError`, and leave nothing behind, unless a model of the config that came can be used."""
    try:
        read_config(partial)
    except UserError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(f"{name} cannot be used here, so it was not pulled: {error}") from error


@contextmanager
def _explained(name: str, revision: str, endpoint: str) -> Iterator[None]:
    """Errors of the hub, its library and the disk, as one sentence. The library's own texts are left out: they quote
    what a server sent."""
    try:
        yield
    except (UserError, RunFailed):
        raise
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        raise _reason(error, name, revision, _host(endpoint)) from error


def _reason(error: Exception, name: str, revision: str, hub: str) -> UserError | RunFailed:
    """The error of the hub's library in words, and what to do."""
    reader = "this token" if os.environ.get("HF_TOKEN", "").strip() else "a visitor without a token"
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, HfHubHTTPError):
        error = error.__cause__
    match error:
        case GatedRepoError():
            words = "is gated: accept its terms on its page of the hub, and set HF_TOKEN to one that may read it"
        case RevisionNotFoundError():
            words = f"has no revision {revision!r}: give a branch, tag or commit with --revision"
        case DisabledRepoError():
            words = f"was disabled on {hub}: choose another model"
        case RepositoryNotFoundError():
            words = f"is not a model of {hub} that {reader} may see: check the name, or set HF_TOKEN"
        case OfflineModeIsEnabled():
            words = "cannot be pulled while HF_HUB_OFFLINE is set: unset it, or copy the model here"
        case HfHubHTTPError(response=response):
            words = (
                f"was not given by {hub} to {reader} ({response.status_code}): check the name, HF_ENDPOINT and "
                "HF_TOKEN, or try again later"
            )
        case LocalEntryNotFoundError() | HTTPError():  # the connection: refused, timed out, cut off, no such host
            words = (
                f"cannot be pulled: {hub} cannot be reached ({type(error.__cause__ or error).__name__}); check the "
                "connection and HF_ENDPOINT, or copy the model's folder here from elsewhere"
            )
        case OSError(errno=int()):
            return RunFailed(
                f"{name} cannot be written ({error.strerror}): free some space and run the same command again, or give "
                "another folder with --to"
            )
        case _:  # a file of another length than announced; no JSON where JSON belongs
            words = (
                f"came damaged or cut short from {hub} ({type(error).__name__}): run the same command again, whole "
                "files are kept; or check HF_ENDPOINT"
            )
    return UserError(f"{name} {words}")


def _endpoint() -> str:
    """The hub's address: HF_ENDPOINT, or the public hub."""
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or constants.ENDPOINT
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError("HF_ENDPOINT is not a web address: set it to https://HOST, or unset it for the public hub")
    return endpoint


def _host(endpoint: str) -> str:
    """The address without what may be secret in it."""
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"


def _token() -> str | bool:
    """HF_TOKEN, or False: then none is sent, not even one that was saved on this machine."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise UserError("HF_TOKEN contains characters that no token has: set it again")
    return token or False
