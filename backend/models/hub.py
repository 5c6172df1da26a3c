"""A model from the model hub into a folder: config, tokenizer and safetensors, never anything that may hold code.

The files come into a folder beside the target and take its name when all of them are whole: sizes as the hub lists
them, and the SHA-256 of the large ones. What was complete before an interrupt is not fetched again. The address of the
hub is HF_ENDPOINT's, the token HF_TOKEN's; the token is sent to the hub and shown nowhere.
"""

from __future__ import annotations

import hashlib
import json
import logging
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
    FileMetadataError,
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
from simulator.files import DISK_FULL

SOURCE = "source.json"  # what a pulled folder says of where it is from
WANTED = (
    CONFIG, "generation_config.json", TOKENIZER, "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "model*.safetensors", INDEX,
)  # fmt: skip
_TIMEOUT = 30.0  # seconds for an answer about what is pulled
_POOL_LOG = logging.getLogger("concurrent.futures")


@dataclass(frozen=True)
class HubFile:
    """A file as the hub lists it: bytes, and the SHA-256 of its content where the hub has it, as for all weights."""

    name: str
    size: int
    sha256: str | None


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
    that came wrong; `RunFailed` when the disk cannot take it.
    """
    if not is_hub_name(name):
        raise UserError(f"{name!r} is no name of a model on the hub: give owner/model, such as Qwen/Qwen3-0.6B")
    endpoint, token = _endpoint(), _token()
    target = Path(os.path.abspath(to or hub_folder(name, models)))
    with _explained(name, revision, endpoint):
        info = HfApi(endpoint=endpoint, token=token).model_info(
            name, revision=revision, timeout=_TIMEOUT, files_metadata=True
        )
    commit = info.sha
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UserError(f"{_host(endpoint)} names no commit for {name}: check that HF_ENDPOINT is a model hub")
    files = _wanted(name, info.siblings or [])
    size = sum(file.size for file in files)
    if _is_there(target, name, commit, files):
        return Pulled(target, commit, len(files), size, False)
    if not _may_be_replaced(target):
        raise UserError(f"{target} is there already and was not pulled: give another folder with --to")
    partial = target.with_name(f".{target.name}.partial")
    _make_room(partial, files)
    of_hub: dict[str, Any] = {"revision": commit, "endpoint": endpoint, "token": token, "etag_timeout": _TIMEOUT}
    with _explained(name, revision, endpoint), _without_words_of_threads():
        snapshot_download(name, local_dir=partial, allow_patterns=[CONFIG], **of_hub)
        _check_architecture(name, partial, files)  # before its weights are fetched
        snapshot_download(name, local_dir=partial, allow_patterns=[file.name for file in files], **of_hub)
    for file in files:
        _check_file(partial / file.name, file)
    with _explained(name, revision, endpoint):
        _take_its_place(partial, target, name, commit, files)
    return Pulled(target, commit, len(files), size, True)


def _take_its_place(partial: Path, target: Path, name: str, commit: str, files: list[HubFile]) -> None:
    """Record where the files are from, and give their folder its name."""
    shutil.rmtree(partial / ".cache", ignore_errors=True)  # the library's notes of what it has fetched
    record = {"name": name, "revision": commit, "files": {file.name: file.size for file in files}}
    (partial / SOURCE).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if target.exists():
        shutil.rmtree(target)
    os.replace(partial, target)


def read_source(folder: Path) -> dict[str, Any] | None:
    """Where a folder was pulled from: name, revision, sizes of files; None where it was not."""
    try:
        record = read_document(folder / SOURCE)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _wanted(name: str, siblings: list[Any]) -> list[HubFile]:
    """Those of the model's files that are fetched. Raises `UserError` where what is needed is not among them."""
    files = [
        HubFile(one.rfilename, int(one.size or 0), None if one.lfs is None else one.lfs.sha256)
        for one in sorted(siblings, key=lambda one: str(one.rfilename))
        if any(fnmatch(one.rfilename, pattern) for pattern in WANTED) and "/" not in one.rfilename
    ]
    names = {file.name for file in files}
    if CONFIG not in names or TOKENIZER not in names:
        raise UserError(
            f"{name} has no {CONFIG if CONFIG not in names else TOKENIZER} on the hub: choose a model that has both"
        )
    if not names & {WEIGHTS, INDEX}:
        unsafe = sorted(
            one.rfilename for one in siblings if one.rfilename.endswith((".bin", ".pt", ".pth", ".ckpt", ".gguf"))
        )
        others = (
            f" ({', '.join(unsafe[:3])} there may hold code or another format and is not fetched)" if unsafe else ""
        )
        raise UserError(f"{name} has no safetensors weights on the hub{others}: choose a model that has them")
    return files


def _is_there(target: Path, name: str, commit: str, files: list[HubFile]) -> bool:
    """Whether the target holds this commit whole, by its record and the sizes of its files."""
    record = read_source(target)
    if record is None or (record.get("name"), record.get("revision")) != (name, commit):
        return False
    return all((target / file.name).is_file() and (target / file.name).stat().st_size == file.size for file in files)


def _may_be_replaced(target: Path) -> bool:
    """Whether the target is a folder that was pulled, an empty one, or nothing."""
    try:
        if not target.is_dir():
            return not target.exists() and not target.is_symlink()
        return not target.is_symlink() and (read_source(target) is not None or not any(target.iterdir()))
    except OSError as error:
        raise UserError(f"{target} cannot be read ({error.strerror}): give another folder with --to") from error


def _check_architecture(name: str, partial: Path, files: list[HubFile]) -> None:
    """Raise `UserError`, and leave nothing behind, unless a model of the config that came can be used."""
    _check_file(partial / CONFIG, next(file for file in files if file.name == CONFIG))
    try:
        read_config(partial)
    except UserError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(f"{name} cannot be used here, so it was not pulled: {error}") from error


def _make_room(partial: Path, files: list[HubFile]) -> None:
    """Make the folder of the download. Raises `RunFailed` where the disk cannot take what is still to come."""
    try:
        partial.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(partial).free
        here = {path.name: path.stat().st_size for path in partial.iterdir() if path.is_file()}
    except OSError as error:
        raise RunFailed(f"{partial} cannot be made ({error.strerror}): give another folder with --to") from error
    needed = sum(file.size for file in files if here.get(file.name) != file.size)
    if needed > free:
        raise RunFailed(
            f"the model needs {needed / 2**20:,.0f} MiB and the disk of {partial.parent} has {free / 2**20:,.0f} MiB "
            "left: free some space, or give another folder with --to"
        )


def _check_file(path: Path, file: HubFile) -> None:
    """Raise `UserError`, and remove the file, unless it is the one that the hub lists."""
    size = path.stat().st_size if path.is_file() else 0
    problem = f"has {size:,} of {file.size:,} bytes" if size != file.size else ""
    if not problem and file.sha256 is not None:
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
                problem = "has another checksum than the hub's"
    if problem:
        path.unlink(missing_ok=True)
        raise UserError(f"{file.name} came damaged: it {problem}. Run the same command again; the other files are kept")


@contextmanager
def _without_words_of_threads() -> Iterator[None]:
    """A Ctrl-C that comes while the main thread waits for others can break a lock of theirs, of which they then tell in
    a traceback. What goes wrong with a file is raised here all the same."""
    level = _POOL_LOG.level
    _POOL_LOG.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        _POOL_LOG.setLevel(level)


@contextmanager
def _explained(name: str, revision: str, endpoint: str) -> Iterator[None]:
    """What goes wrong with the hub, as one sentence. The library's own texts are left out: they quote what a server
    sent."""
    try:
        yield
    except (HTTPError, OSError, ValueError, RuntimeError) as error:  # what a hub, its library or the disk may raise
        raise _reason(error, name, revision, _host(endpoint)) from error


def _reason(error: Exception, name: str, revision: str, hub: str) -> UserError | RunFailed:
    """The error of the hub's library in words, and what to do."""
    reader = "this token" if os.environ.get("HF_TOKEN", "").strip() else "a visitor without a token"
    match error:
        case UserError() | RunFailed():
            return error
        case GatedRepoError():
            return UserError(
                f"{name} is gated: accept its terms on its page of the hub, and set HF_TOKEN to one that may read it"
            )
        case RevisionNotFoundError():
            return UserError(f"{name} has no revision {revision!r}: give a branch, tag or commit with --revision")
        case DisabledRepoError():
            return UserError(f"{name} was disabled on {hub}: choose another model")
        case RepositoryNotFoundError():
            return UserError(
                f"{hub} knows no model {name} that {reader} may see: check the name, or set HF_TOKEN to one that may "
                "read it"
            )
        case OfflineModeIsEnabled():
            return UserError("HF_HUB_OFFLINE is set, so nothing can be pulled: unset it, or copy the model here")
        case LocalEntryNotFoundError(__cause__=HfHubHTTPError() as cause):
            return _reason(cause, name, revision, hub)
        case FileMetadataError():
            return UserError(f"{hub} does not answer as a model hub does: check HF_ENDPOINT")
        case HfHubHTTPError(response=response):
            status = response.status_code
            if status in (401, 403):
                return UserError(
                    f"{hub} refuses {reader} the model {name} ({status}): set HF_TOKEN to one that may read it"
                )
            if status == 429:
                return UserError(f"{hub} has had too many requests from here (429): try again later, or set HF_TOKEN")
            if status >= 500:
                return UserError(f"{hub} has a fault of its own ({status}): try again later")
            return UserError(f"{hub} answers {status} for {name}: check the name and HF_ENDPOINT")
        case LocalEntryNotFoundError() | HTTPError():  # the connection: refused, timed out, cut off, no such host
            return UserError(
                f"the model hub {hub} cannot be reached ({type(error.__cause__ or error).__name__}): check the "
                "connection and HF_ENDPOINT, or copy the model's folder here from elsewhere"
            )
        case OSError(errno=number) if number in DISK_FULL:
            return RunFailed(
                f"the disk is full, so {name} could not be pulled: free some space and run the same command again, or "
                "give another folder with --to"
            )
        case OSError(errno=int()):
            return RunFailed(
                f"{error.filename or 'the folder'} cannot be written ({error.strerror}): give another folder with --to"
            )
        case OSError():  # the library's only other one: what came is longer or shorter than was announced
            return UserError(
                f"a file of {name} came cut short: run the same command again; files that are whole are kept"
            )
    return UserError(  # no JSON where JSON belongs; the accelerated transfer failed
        f"what {hub} sent for {name} cannot be used ({type(error).__name__}): check HF_ENDPOINT, or try again later"
    )


def _endpoint() -> str:
    """The hub's address: HF_ENDPOINT, or the public hub."""
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or constants.ENDPOINT
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError("HF_ENDPOINT is no web address: set it to https://HOST, or unset it for the public hub")
    return endpoint


def _host(endpoint: str) -> str:
    """The address without what may be secret in it."""
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"


def _token() -> str | bool:
    """HF_TOKEN, or False: then none is sent, not even one that was saved on this machine."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise UserError("HF_TOKEN holds characters that no token has: set it anew")
    return token or False
