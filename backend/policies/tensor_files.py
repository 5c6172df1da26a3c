"""Tensors and their settings in one safetensors file each: written whole or not at all, refused when unreadable."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from simulator.documents import parse_json
from simulator.errors import RunFailed, UserError

HEADER = "cryptosentinel"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a JSON-safe header to `path`; an interrupt or a full disk leaves the former file as it was.

    Raises `RunFailed` when the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".tmp")
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        save_file(plain, partial, metadata={HEADER: json.dumps(header)})
    except SafetensorError as error:  # what the library makes of a full disk
        raise RunFailed(
            f"{path} cannot be written ({error}): free some space or choose another folder; what was written before "
            "is intact"
        ) from error
    else:
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a file from `write_tensors`. Raises UserError when it is missing or is not one."""
    if not path.is_file():
        raise UserError(f"{path} does not exist: give the folder of a finished checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(HEADER)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}): use another checkpoint") from error
    if header is None:
        raise UserError(f"{path} was not written by this program: use a checkpoint folder that it made")
    try:
        about = parse_json(header)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): use another checkpoint") from error
    if not isinstance(about, dict):
        raise UserError(f"{path} was not written by this program: use a checkpoint folder that it made")
    return tensors, about


def fingerprint(tensors: Mapping[str, Tensor], *, as_float32: bool = False) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of the names; hexadecimal, 64 characters. With
    `as_float32` numbers of 16 bits count as float32, one tensor after another."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        if as_float32 and tensor.is_floating_point():
            tensor = tensor.float()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
