"""A model or a data set from the model hub into a folder: config, tokenizer and safetensors, or a manifest and Parquet,
never anything that may hold code.

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
_MOST_BYTES = 2 * 2**30  # of a data set
_MODEL, _DATA_SET = "model", "data set"
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

    def fetch(patterns: list[str]) -> None:
        with _explained(name, revision, endpoint), _without_words_of_threads():
            snapshot_download(
                name,
                revision=commit,
                local_dir=partial,
                endpoint=endpoint,
                token=token,
                allow_patterns=patterns,
                etag_timeout=_TIMEOUT,
            )

    fetch([CONFIG])
    _check_architecture(name, partial, files)  # before its weights are fetched
    fetch([file.name for file in files])
    for file in files:
        _check_file(partial / file.name, file)
    _take_its_place(partial, target, name, revision, commit, files)
    return Pulled(target, commit, len(files), size, True)


def pull_data_set(name: str, revision: str, target: Path, manifest: str) -> Pulled:
    """Download the data set `name` of the hub, at a branch, tag or commit, to the folder `target`: the file `manifest`
    and the Parquet files beside it.

    Raises as `pull_model` does, and `UserError` for a data set without that manifest or of more than 2 GiB.
    """
    if not is_hub_name(name):
        raise UserError(f"{name!r} is no name of a data set on the hub: give hf://OWNER/NAME")
    endpoint, token = _endpoint(), _token()
    with _explained(name, revision, endpoint, _DATA_SET):
        info = HfApi(endpoint=endpoint, token=token).dataset_info(
            name, revision=revision, timeout=_TIMEOUT, files_metadata=True
        )
    commit = info.sha
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UserError(f"{_host(endpoint)} names no commit for {name}: check that HF_ENDPOINT is a model hub")
    files = [file for file in _listed(info.siblings or []) if file.name == manifest or file.name.endswith(".parquet")]
    if manifest not in {file.name for file in files}:
        raise UserError(
            f"{name} has no {manifest} on the hub: give a data set of conversations as `sft` writes it into its folder "
            "`data`"
        )
    size = sum(file.size for file in files)
    if size > _MOST_BYTES:
        raise UserError(f"{name} has {size / 2**30:,.1f} GiB on the hub, and at most 2 are fetched: choose another")
    if _is_there(target, name, commit, files):
        return Pulled(target, commit, len(files), size, False)
    partial = target.with_name(f".{target.name}.partial")
    _make_room(partial, files)
    with _explained(name, revision, endpoint, _DATA_SET), _without_words_of_threads():
        snapshot_download(
            name,
            repo_type="dataset",
            revision=commit,
            local_dir=partial,
            endpoint=endpoint,
            token=token,
            allow_patterns=[file.name for file in files],
            etag_timeout=_TIMEOUT,
        )
    for file in files:
        _check_file(partial / file.name, file)
    _take_its_place(partial, target, name, revision, commit, files)
    return Pulled(target, commit, len(files), size, True)


def _take_its_place(partial: Path, target: Path, name: str, revision: str, commit: str, files: list[HubFile]) -> None:
    """Record where the files are from, and give their folder its name."""
    with _explained(name, revision, _endpoint()):
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
    files = [file for file in _listed(siblings) if any(fnmatch(file.name, pattern) for pattern in WANTED)]
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


def _listed(siblings: list[Any]) -> list[HubFile]:
    """The files at the top of what the hub lists, by name."""
    return sorted(
        (
            HubFile(one.rfilename, int(one.size or 0), None if one.lfs is None else one.lfs.sha256)
            for one in siblings
            if "/" not in one.rfilename
        ),
        key=lambda file: file.name,
    )


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
def _explained(name: str, revision: str, endpoint: str, what: str = _MODEL) -> Iterator[None]:
    """What goes wrong with the hub, as one sentence. The library's own texts are left out: they quote what a server
    sent."""
    hub = _host(endpoint)
    try:
        yield
    except GatedRepoError as error:
        raise UserError(
            f"{name} is gated: accept its terms on its page of the hub, and set HF_TOKEN to a token that may read it"
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(f"{name} has no revision {revision!r}: give a branch, tag or commit with --revision") from error
    except DisabledRepoError as error:
        raise UserError(f"{name} was disabled on {hub}: choose another {what}") from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{hub} knows no {what} {name} that {_reader()} may see: check the name, or set HF_TOKEN to one that may "
            "read it"
        ) from error
    except OfflineModeIsEnabled as error:
        raise UserError("HF_HUB_OFFLINE is set, so nothing can be pulled: unset it, or copy the model here") from error
    except LocalEntryNotFoundError as error:
        cause = error.__cause__
        if isinstance(cause, HfHubHTTPError):
            raise _answered(cause, name, hub, what) from error
        raise _unreachable(hub, cause or error, what) from error
    except FileMetadataError as error:
        raise UserError(f"{hub} does not answer as a model hub does: check HF_ENDPOINT") from error
    except HfHubHTTPError as error:
        raise _answered(error, name, hub, what) from error
    except HTTPError as error:  # of the connection: refused, timed out, cut off, no such host, a proxy
        raise _unreachable(hub, error, what) from error
    except OSError as error:
        if error.errno in DISK_FULL:
            raise RunFailed(
                f"the disk is full, so {name} could not be pulled: free some space and run the same command again, or "
                "give another folder with --to"
            ) from error
        if error.errno is not None:
            raise RunFailed(
                f"{error.filename or 'the folder'} cannot be written ({error.strerror}): give another folder with --to"
            ) from error
        # The library's only other OSError: what came is longer or shorter than was announced.
        raise UserError(
            f"a file of {name} came cut short: run the same command again; files that are whole are kept"
        ) from error
    except (ValueError, RuntimeError) as error:  # no JSON where JSON belongs; the accelerated transfer failed
        raise UserError(
            f"what {hub} sent for {name} cannot be used ({type(error).__name__}): check HF_ENDPOINT, or try again later"
        ) from error


def _answered(error: HfHubHTTPError, name: str, hub: str, what: str) -> UserError:
    """What an answer that is no success means."""
    status = error.response.status_code
    if status in (401, 403):
        return UserError(
            f"{hub} refuses {_reader()} the {what} {name} ({status}): set HF_TOKEN to one that may read it"
        )
    if status == 429:
        return UserError(f"{hub} has had too many requests from here (429): try again later, or set HF_TOKEN")
    if status >= 500:
        return UserError(f"{hub} has a fault of its own ({status}): try again later")
    return UserError(f"{hub} answers {status} for {name}: check the name and HF_ENDPOINT")


def _unreachable(hub: str, error: BaseException, what: str) -> UserError:
    return UserError(
        f"the model hub {hub} cannot be reached ({type(error).__name__}): check the connection and HF_ENDPOINT, or "
        f"copy the {what}'s folder here from elsewhere"
    )


def _reader() -> str:
    return "this token" if os.environ.get("HF_TOKEN", "").strip() else "a visitor without a token"


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
