"""Tensor files come back as they were, and a write that fails leaves the former one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from backend.policies import tensor_files
from backend.policies.tensor_files import fingerprint, read_tensors, write_tensors
from simulator.errors import UserError

TENSORS = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(2.5, dtype=torch.bfloat16), "c": torch.ones(0)}


def test_tensors_and_header_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "x.safetensors"
    write_tensors(path, TENSORS, {"steps": 3, "names": ["a"]})
    tensors, header = read_tensors(path)
    assert header == {"steps": 3, "names": ["a"]}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert fingerprint(tensors) == fingerprint(TENSORS), "a transposed tensor has the content of its copy"


def test_a_write_that_fails_leaves_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, {"steps": 1})

    def full_disk(tensors: dict[str, torch.Tensor], target: Path, metadata: dict[str, str]) -> None:
        Path(target).write_bytes(b"half a fi")
        raise OSError("no space left on device")

    monkeypatch.setattr(tensor_files, "save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_tensors(path, TENSORS, {"steps": 2})
    assert read_tensors(path)[1] == {"steps": 1}


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(UserError, match="not written by this program"):
        read_tensors(path)


def test_the_fingerprint_sees_names_dtypes_shapes_and_bytes() -> None:
    one = {"a": torch.zeros(4)}
    others = [
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int32)},
        {"a": -one["a"]},
    ]
    assert len({fingerprint(tensors) for tensors in [one, *others]}) == 5
    assert fingerprint({"a": one["a"], "b": one["a"]}) == fingerprint({"b": one["a"], "a": one["a"]})
