"""Pulling a model from a hub: the library's own code path against a hub on this machine, and each way it can fail."""

from __future__ import annotations

import errno
import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.models.hub import SOURCE, pull_model, read_source
from backend.models.registry import hub_folder, resolve_base
from cryptosentinel.llm.nano import load_model
from simulator.errors import RunFailed, UserError
from tests.local_hub import COMMIT, LocalHub, as_the_hub
from tests.small_world import tree

NAME = "Qwen/Qwen3-tiny"
FETCHED = ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
           "tokenizer_config.json"]  # fmt: skip


@pytest.fixture
def served(nano: Path, tmp_path: Path) -> Path:
    """What the hub holds: nano, and beside it what must never be fetched."""
    folder = tmp_path / "served"
    shutil.copytree(nano, folder)
    for name in (
        "pytorch_model.bin", "consolidated.safetensors", "modeling.py", "training_args.pt", "README.md", "notes.txt",
    ):  # fmt: skip
        (folder / name).write_bytes(b"not to be fetched")
    return folder


@pytest.fixture
def hub(served: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with as_the_hub(LocalHub({NAME: served}), monkeypatch) as running:
        yield running


def test_a_model_is_pulled_whole_and_nothing_else_is(hub: LocalHub, nano: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    done = pull_model(NAME, models=models)
    assert done.folder == hub_folder(NAME, models) == models / "Qwen--Qwen3-tiny"
    assert (done.revision, done.files, done.fetched) == (COMMIT, len(FETCHED), True)
    pulled = tree(done.folder)
    assert pulled.pop(SOURCE) and pulled == tree(nano)
    assert sorted(set(hub.fetched())) == FETCHED
    assert [path.name for path in models.iterdir()] == ["Qwen--Qwen3-tiny"], "nothing unfinished is left"
    source = read_source(done.folder)
    assert source is not None and (source["name"], source["revision"]) == (NAME, COMMIT)
    load_model(resolve_base(NAME, models))


def test_what_is_there_is_not_fetched_again(hub: LocalHub, tmp_path: Path) -> None:
    pull_model(NAME, to=tmp_path / "one")
    before = tree(tmp_path / "one")
    hub.asked.clear()
    assert not pull_model(NAME, to=tmp_path / "one").fetched
    assert hub.fetched() == []
    (tmp_path / "one" / "tokenizer.json").write_text("{}")  # no longer whole, by its size
    assert pull_model(NAME, to=tmp_path / "one").fetched
    assert tree(tmp_path / "one") == before


def test_another_commit_takes_the_place_of_the_former(hub: LocalHub, served: Path, tmp_path: Path) -> None:
    (served / "generation_config.json").write_text('{"top_k": 6}')
    pull_model(NAME, to=tmp_path / "one")
    (served / "generation_config.json").write_text('{"top_k": 7}')  # of the same size
    hub.commit = COMMIT[::-1]
    hub.revisions |= {hub.commit}
    assert pull_model(NAME, to=tmp_path / "one").fetched
    assert json.loads((tmp_path / "one" / "generation_config.json").read_text()) == {"top_k": 7}
    assert [path.name for path in tmp_path.iterdir() if "one" in path.name] == ["one"]


def test_a_connection_that_breaks_off_is_taken_up_where_it_broke(hub: LocalHub, nano: Path, tmp_path: Path) -> None:
    hub.dropped = {"model.safetensors"}
    pull_model(NAME, to=tmp_path / "one")
    assert hub.fetched().count("model.safetensors") == 2
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (nano / "model.safetensors").read_bytes()


def test_a_file_that_came_cut_short_is_refused_and_the_rest_is_kept(hub: LocalHub, tmp_path: Path) -> None:
    hub.cut = {"model.safetensors"}
    with pytest.raises(UserError, match=r"came damaged or cut short .*run the same command again"):
        pull_model(NAME, to=tmp_path / "one")
    assert not (tmp_path / "one").exists()
    hub.cut = set()
    hub.asked.clear()
    pull_model(NAME, to=tmp_path / "one")
    assert "model.safetensors" in hub.fetched() and "tokenizer.json" not in hub.fetched()
    load_model(tmp_path / "one")


def test_shards_come_with_their_index(hub: LocalHub, served: Path, tmp_path: Path) -> None:
    model, _ = load_model(served)
    (served / "model.safetensors").unlink()
    model.save_pretrained(served, max_shard_size="100KB")
    pull_model(NAME, to=tmp_path / "one")
    assert len(list((tmp_path / "one").glob("model-*-of-*.safetensors"))) > 2
    load_model(tmp_path / "one")


def setting(**changes: Any) -> Callable[[LocalHub, Path], None]:
    def change(hub: LocalHub, served: Path) -> None:
        for name, value in changes.items():
            setattr(hub, name, value)

    return change


def without(*names: str) -> Callable[[LocalHub, Path], None]:
    def change(hub: LocalHub, served: Path) -> None:
        for name in names:
            (served / name).unlink()

    return change


def another_architecture(hub: LocalHub, served: Path) -> None:
    config = json.loads((served / "config.json").read_text())
    (served / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))


REFUSED: dict[str, tuple[Callable[[LocalHub, Path], None], dict[str, Any], str]] = {
    "no such name": (setting(), {"name": "Qwen/None"}, "not a model of .* that a visitor without a token"),
    "no name at all": (setting(), {"name": "Qwen3"}, "'Qwen3' is not a name of a model on the hub"),
    "a path for a name": (setting(), {"name": "../up"}, "is not a name of a model"),
    "no such revision": (setting(), {"revision": "v9"}, "has no revision 'v9'"),
    "gated": (setting(refuse=(403, "GatedRepo")), {}, "is gated: accept its terms .* HF_TOKEN"),
    "gated without an account": (setting(refuse=(401, "GatedRepo")), {}, "is gated"),
    "private": (setting(refuse=(401, "RepoNotFound")), {}, "is not a model of"),
    "files are gated": (setting(refuse_files=(403, "GatedRepo")), {}, "is gated"),
    "forbidden": (setting(refuse=(403, "")), {}, r"not given by .* to a visitor without a token \(403\)"),
    "too many requests": (setting(refuse=(429, "")), {}, r"\(429\): .* try again later"),
    "the hub is ill": (setting(refuse=(500, "")), {}, r"\(500\): .* try again later"),
    "no commit": (setting(commit="main"), {}, "gives no commit"),
    "only pickles": (without("model.safetensors"), {}, "no safetensors weights .*pytorch_model.bin"),
    "no tokenizer": (without("tokenizer.json"), {}, "has no tokenizer.json on the hub"),
    "no config": (without("config.json"), {}, "has no config.json on the hub"),
    "another architecture": (another_architecture, {}, "cannot be used here, so it was not pulled: .*bert is no"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_pulled_is_told_in_one_sentence(hub: LocalHub, served: Path, tmp_path: Path, what: str) -> None:
    change, arguments, message = REFUSED[what]
    change(hub, served)
    with pytest.raises(UserError, match=message) as refused:
        pull_model(**{"name": NAME, "to": tmp_path / "models" / "one", **arguments})
    told = str(refused.value)
    assert "\n" not in told and "from the server" not in told
    assert "model.safetensors" not in hub.fetched()
    assert not (tmp_path / "models" / "one").exists()


def test_a_hub_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch, hub: LocalHub, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://user:secret@127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:.* cannot be reached") as refused:
        pull_model(NAME, to=tmp_path / "one")
    assert "secret" not in str(refused.value)
    monkeypatch.setenv("HF_ENDPOINT", "huggingface")
    with pytest.raises(UserError, match="HF_ENDPOINT is not a web address"):
        pull_model(NAME, to=tmp_path / "one")
    assert list(tmp_path.glob("*one*")) == []


def test_the_token_is_the_environment_s_and_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, hub: LocalHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.readers = {"hf_goodgood"}
    monkeypatch.setenv("HF_TOKEN", "hf_badbadbad")
    with pytest.raises(UserError, match="is gated") as refused:
        pull_model(NAME, to=tmp_path / "one")
    monkeypatch.setenv("HF_TOKEN", "hf_goodgood\n")
    pull_model(NAME, to=tmp_path / "one")
    assert hub.tokens == {"hf_badbadbad", "hf_goodgood"}
    monkeypatch.setenv("HF_TOKEN", "hf_\u00e9\nx")
    with pytest.raises(UserError, match="HF_TOKEN contains characters") as odd:
        pull_model(NAME, to=tmp_path / "two")
    shown = f"{refused.value} {odd.value} {capfd.readouterr()} {tree(tmp_path / 'one')[SOURCE]!r}"
    assert "hf_" not in shown.replace("hf_hub", "")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_fills_up_under_way_is_told(
    monkeypatch: pytest.MonkeyPatch, hub: LocalHub, tmp_path: Path, number: int
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(number, "as the system says")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(RunFailed, match="cannot be written"):
        pull_model(NAME, to=tmp_path / "one")
    monkeypatch.undo()


def test_a_folder_of_one_s_own_is_never_replaced(hub: LocalHub, nano: Path, tmp_path: Path) -> None:
    mine, link, empty = tmp_path / "mine", tmp_path / "link", tmp_path / "empty"
    shutil.copytree(nano, mine)
    link.symlink_to(mine)
    empty.mkdir()
    before = tree(mine)
    for to in (mine, link, mine / "config.json"):
        with pytest.raises(UserError, match="is there already and was not pulled"):
            pull_model(NAME, to=to)
    assert tree(mine) == before
    assert pull_model(NAME, to=empty).fetched
