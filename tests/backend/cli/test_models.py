"""`cryptosentinel models`: what it prints, and how it ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.cli import main as cli
from backend.cli.models import models_app
from backend.models.manifest import TeamManifest, write_manifest
from backend.policies.adapters import read_adapter, save_versions
from backend.policies.build import role_policies
from cryptosentinel.agents.registry import ROLES
from tests.command_line import Run, program
from tests.local_hub import COMMIT, LocalHub, as_the_hub
from tests.small_world import small_config

NAME = "Qwen/Qwen3-tiny"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """run("list"), run("check", ...): the group alone, with the program's handling of errors."""
    monkeypatch.setattr(cli, "app", models_app)
    return program(tmp_path, monkeypatch, capsys)


@pytest.fixture
def team(nano: Path, tmp_path: Path) -> Path:
    """A finished run."""
    folder = tmp_path / "runs" / "sft"
    shutil.copytree(nano, folder / "nano")
    policies, _ = role_policies(folder / "nano", small_config().training)
    save_versions(policies, folder / "adapters", "sft", 0)
    write_manifest(folder, TeamManifest.of(small_config(), base="nano", adapters="adapters"))
    return folder


@pytest.fixture
def hub(nano: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with as_the_hub(LocalHub({NAME: nano}), monkeypatch) as running:
        yield running


def test_bases_and_adapters_are_listed(run: Run, team: Path, nano: Path, tmp_path: Path) -> None:
    shutil.copytree(nano, tmp_path / "models" / "Qwen--Qwen3-tiny")
    (tmp_path / "models" / "broken").mkdir()
    result = run("list")
    assert result.code == 0
    assert NAME in result.out and "Qwen3, 2 x 64" in result.out and "runs/sft/nano" in result.out
    assert "wrong: models/broken holds no config.json" in result.out


def test_a_good_model_passes(run: Run, team: Path) -> None:
    result = run("check", "runs/sft/nano")
    assert result.code == 0 and "wrong" not in result.out and result.err == ""
    assert "ok chat format:" in result.out


def test_what_is_wrong_is_shown_and_ends_with_2(run: Run, team: Path) -> None:
    (team / "nano" / "tokenizer.json").unlink()
    result = run("check", "runs/sft/nano")
    assert result.code == 2
    assert "wrong tokenizer: runs/sft/nano holds no tokenizer.json: save" in result.out
    assert "error: runs/sft/nano: 1 of 6 checks failed" in result.err
    result = run("check", "nowhere")
    assert result.code == 2 and "there is no model folder nowhere" in result.out


def test_adapters_are_exported_and_peft_loads_them(run: Run, team: Path, nano: Path, tmp_path: Path) -> None:
    result = run("export", "runs/sft", "--to", "adapters")
    assert result.code == 0
    for role in ROLES:
        one = read_adapter(tmp_path / "adapters" / role)
        assert (one.role, one.run, one.base_name) == (role, "sft", "nano") and one.version in result.out


def test_a_team_that_is_its_base_has_nothing_to_export(run: Run, team: Path) -> None:
    write_manifest(team, TeamManifest.of(small_config(), base="nano", adapters=None))
    result = run("export", "runs/sft", "--to", "adapters")
    assert result.code == 2 and "no adapter to export" in result.err


def test_a_model_is_pulled_checked_and_used_by_its_name(run: Run, hub: LocalHub, tmp_path: Path) -> None:
    result = run("pull", NAME)
    assert result.code == 0
    assert f"of commit {COMMIT[:12]}: fetched into" in result.out and "ok chat format" in result.out
    assert f"use it with: --set training.base_model={NAME}" in result.out
    assert (tmp_path / "models" / "Qwen--Qwen3-tiny" / "model.safetensors").is_file()
    assert "is whole already in" in run("pull", NAME).out


def test_a_form_that_is_not_known_is_refused_with_those_that_are(run: Run) -> None:
    result = run("export", "sample", "--to", "out", "--as", "pefft")
    assert result.code == 2 and "--as pefft is not known (did you mean 'peft'?): use peft, merged" in result.err
