"""The attack suite: every kind of artefact says everything that it may not, with canaries that notice.

Kinds: a team's folder, a run in somebody's store, an imported run, a recording, a base model's folder, the folder of a
training, a demo or an `sft` that goes on, and a folder of market data. What is done again from a stored run, and the
files beside the database, are in `test_stored_attacks.py`. The dangers: a program that would be run, a
server that would be asked and get a key, files outside the artefact that would be read or written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backend.config.load import config_from_dict
from backend.config.ownership import SIGNATURE, signed
from backend.decisions.checked_documents import check_document
from backend.distributed.files import RunFiles
from backend.models.manifest import MANIFEST, read_manifest, write_manifest
from backend.models.registry import base_of_team
from backend.policies.adapters import save_versions
from backend.policies.build import role_policies
from backend.reporting.market_reload import market_of
from backend.store.records import RunRecord
from backend.store.run_record import stored_config
from backend.store.store import Store
from backend.store.transfer import export_run, import_run
from backend.training.start import begin
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.model_files import read_config
from cryptosentinel.llm.recording import record
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import expert_policies
from simulator.data.archive import write_market
from simulator.errors import UserError
from tests.command_line import Run, program
from tests.hostile import KEY, KEY_VARIABLE, Canary, canary, dangerous_keys, hostile_config, write_team
from tests.small_world import small_config, small_market

RUN = "train-20240101-000000-000"


@pytest.fixture
def bird(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canary]:
    """A canary outside every artefact; the user has keys."""
    for name in (KEY_VARIABLE, "OPENAI_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, KEY)
    with canary(tmp_path / "outside") as made:
        yield made


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "here").mkdir()
    return program(tmp_path / "here", monkeypatch, capsys)


def _stored(key: str, bird: Canary, document: Callable[[dict[str, object]], dict[str, object]]) -> RunRecord:
    config = hostile_config(key, str(bird.folder), bird.url)
    return RunRecord(RUN, "train", 1, small_market().content_hash, 1_700_000_000_000, document({"config": config}))


# -- settings: every kind that carries a configuration, every setting that only the user may say ---------------------


@pytest.mark.parametrize("key", dangerous_keys())
def test_a_teams_folder_sets_nothing_of_it(key: str, tmp_path: Path, bird: Canary) -> None:
    team = write_team(tmp_path / "team", hostile_config(key, str(bird.folder), bird.url))
    manifest = read_manifest(team)
    assert _value(manifest.config.to_dict(), key) == _default(key)
    assert key in {one.key for one in manifest.withheld()}


@pytest.mark.parametrize("key", dangerous_keys())
def test_a_run_in_a_store_sets_nothing_of_it_unless_this_user_has_signed_it(key: str, bird: Canary) -> None:
    foreign = _stored(key, bird, lambda document: {**document, SIGNATURE: "0" * 64})
    config, withheld = stored_config(foreign)
    assert _value(config.to_dict(), key) == _default(key) and key in {one.key for one in withheld}
    own = _stored(key, bird, lambda document: signed(RUN, document))
    config, withheld = stored_config(own)
    assert _value(config.to_dict(), key) != _default(key) and not withheld


def test_an_imported_run_is_nobodys_own_even_if_it_was_exported_here(tmp_path: Path, bird: Canary) -> None:
    own = _stored("engine.python", bird, lambda document: signed(RUN, document))
    with Store.open("mem://") as store:
        store.add_run(own)
        store.finish_run(RUN, "interrupted")
        export_run(store, RUN, tmp_path / "run.jsonl.gz")
        assert import_run(store, tmp_path / "run.jsonl.gz") == (RUN, 0)  # the very same run, signed here or not
    with Store.open("mem://") as store:
        import_run(store, tmp_path / "run.jsonl.gz", check_document)
        record_ = store.run(RUN)
        assert SIGNATURE not in record_.config
        config, withheld = stored_config(record_)
    assert config.engine.python == "" and config.engine.kind == "local"
    assert {"engine.python", "engine.kind"} <= {one.key for one in withheld}


@pytest.mark.parametrize("key", ["engine.python", "engine.url", "engine.kind", "market.data", "training.start_from"])
def test_a_resume_of_an_imported_run_asks_the_user(key: str, bird: Canary, command: Run, tmp_path: Path) -> None:
    with Store.open(tmp_path / "here" / "runs" / "store") as store:
        store.add_run(_stored(key, bird, lambda document: document))
        store.finish_run(RUN, "interrupted")
    (tmp_path / "here" / "runs" / RUN).mkdir()
    result = command("train", "--resume", RUN)
    assert result.code == 2 and key in result.err and "runs adopt" in result.err and "Traceback" not in result.err
    bird.assert_untouched()


def test_a_run_that_the_user_adopts_is_his_own(bird: Canary, command: Run, tmp_path: Path) -> None:
    where = tmp_path / "here" / "runs" / "store"
    with Store.open(where) as store:
        store.add_run(_stored("engine.python", bird, lambda document: document))
    result = command("runs", "adopt", RUN)
    assert result.code == 0 and "engine.python" in result.out, result.err
    with Store.open(where) as store:
        assert stored_config(store.run(RUN))[1] == ()


def test_the_page_of_an_imported_run_reads_no_file_that_it_names(tmp_path: Path) -> None:
    write_market(small_market(), tmp_path / "data")
    document = {"config": {"market": {"data": str(tmp_path / "data"), "timeframe": "4h"}}}
    record_ = RunRecord(RUN, "backtest", 1, small_market().content_hash, 1_700_000_000_000, document)
    with pytest.raises(UserError, match=r"market\.data"):
        market_of(record_)
    own = RunRecord(RUN, "backtest", 1, small_market().content_hash, 1_700_000_000_000, signed(RUN, document))
    assert market_of(own).content_hash == small_market().content_hash


SMALL = (
    "--set", "evaluation.windows=2", "--set", "evaluation.decisions_per_window=1", "--set",
    "evaluation.bootstrap_samples=100", "--set", "market.coins=1", "--set", "market.bars=400", "--baselines", "hold",
)  # fmt: skip


@pytest.mark.parametrize("how", ["python", "url", "endpoint"])
def test_an_evaluation_runs_and_asks_nothing_that_the_folder_names(
    how: str, nano: Path, bird: Canary, command: Run, tmp_path: Path
) -> None:
    config = small_config().to_dict()
    config["engine"] |= {
        "python": {"kind": "vllm", "python": str(bird.program)},
        "url": {"kind": "vllm", "url": bird.url.removesuffix("/v1"), "key_variable": KEY_VARIABLE},
        "endpoint": {"kind": "openai_api", "url": bird.url, "key_variable": KEY_VARIABLE, "model": "theirs"},
    }[how]
    team = write_team(tmp_path / "team", config)
    shutil.copytree(nano, team / "nano")
    result = command("evaluate", team, *SMALL)
    bird.assert_untouched()
    assert result.code == 0, result.err
    assert "engine.kind" in result.out and "--set engine.kind=" in result.out


@pytest.mark.parametrize("key", ["market.data", "market.news", "market.funding_dir", "venue.rules", "venue.mark"])
def test_an_evaluation_of_data_that_the_folder_names_is_refused(key: str, command: Run, tmp_path: Path) -> None:
    team = write_team(tmp_path / "team", hostile_config(key, str(tmp_path)))
    result = command("evaluate", team, *SMALL)
    assert result.code == 2 and key in result.err and "say it yourself" in result.err


def test_every_command_that_takes_a_team_says_what_it_did_not_take(
    nano: Path, bird: Canary, command: Run, tmp_path: Path
) -> None:
    config = small_config().to_dict()
    config["engine"] |= {"kind": "vllm", "python": str(bird.program)}
    team = write_team(tmp_path / "team", config)
    shutil.copytree(nano, team / "nano")
    write_market(small_market(), tmp_path / "data")
    data = ("--data", tmp_path / "data", "--start", "2020-03-01", "--end", "2020-03-03")
    for arguments in (
        ("models", "check", team),
        ("check", "lookahead", "--team", team, *data, "--times", "2", "--draws", "1"),
        ("backtest", "--team", team, *data, "--baselines", "none"),
    ):
        result = command(*arguments)
        assert "engine.python" in result.out + result.err, arguments
    bird.assert_untouched()


# -- paths: nothing outside the artefact is read or written ----------------------------------------------------------


@pytest.mark.parametrize("base", ["../outside", "nano/../../outside", "/etc", "link", "a\0b", "", "."])
def test_a_base_outside_the_teams_folder_is_not_read(base: str, nano: Path, tmp_path: Path) -> None:
    shutil.copytree(nano, tmp_path / "outside")
    team = write_team(tmp_path / "team", small_config().to_dict(), base=base)
    (team / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError):
        base_of_team(team, read_manifest(team))


def test_a_team_that_this_user_trained_says_where_base_and_data_lie_and_nothing_more(
    nano: Path, tmp_path: Path, bird: Canary
) -> None:
    config = hostile_config("engine.python", str(bird.folder))
    config["market"]["data"] = "data/mine"
    team = write_team(tmp_path / "team", config, base=str(nano))
    write_manifest(team, read_manifest(team).signed())
    manifest = read_manifest(team)
    assert base_of_team(team, manifest) == nano and manifest.config.market.data == "data/mine"
    assert manifest.config.engine.python == "" and manifest.config.engine.kind == "local"
    document = json.loads((team / MANIFEST).read_text())
    for field, value in (("base", "/etc"), ("config", hostile_config("market.news", "/etc"))):
        (team / MANIFEST).write_text(json.dumps({**document, field: value}))
        altered = read_manifest(team)
        assert not altered.own and altered.config.market.data == altered.config.market.news == ""


def test_a_training_does_not_sign_what_a_stranger_wrote(nano: Path, tmp_path: Path) -> None:
    team = write_team(tmp_path / "team", hostile_config("market.data", "/etc"), adapters="adapters")
    shutil.copytree(nano, team / "nano")
    policies, _ = role_policies(nano, small_config().training)
    save_versions(policies, team / "adapters", "theirs", 1)
    begin(small_config(start_from=str(team)), small_market(), tmp_path / "run", lambda what, done, total: None)
    start = read_manifest(tmp_path / "run" / "adapters" / "start")
    assert not start.own and start.config.market.data == ""


def test_a_base_that_the_user_names_is_read_in_its_place(nano: Path, tmp_path: Path) -> None:
    team = write_team(tmp_path / "team", small_config().to_dict(), base="../elsewhere")
    assert base_of_team(team, read_manifest(team), str(nano)) == nano


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_of_a_teams_base_that_leads_out_is_not_read(file: str, nano: Path, tmp_path: Path) -> None:
    team = write_team(tmp_path / "team", small_config().to_dict())
    shutil.copytree(nano, team / "nano")
    shutil.move(team / "nano" / file, tmp_path / file)
    (team / "nano" / file).symlink_to(tmp_path / file)
    with pytest.raises(UserError, match="is a link out of"):
        base_of_team(team, read_manifest(team))


@pytest.mark.parametrize("field", ["adapters", "start"])
@pytest.mark.parametrize("value", ["..", "../outside", "/etc", "adapters/../../outside"])
def test_weights_outside_the_teams_folder_are_not_read(field: str, value: str, tmp_path: Path) -> None:
    team = write_team(tmp_path / "team", small_config().to_dict(), **{field: value})
    with pytest.raises(UserError, match="does not lie in"):
        read_manifest(team)


def test_a_manifest_that_is_a_link_out_of_its_folder_is_not_read(tmp_path: Path) -> None:
    write_team(tmp_path / "theirs", small_config().to_dict())
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / MANIFEST).symlink_to(tmp_path / "theirs" / MANIFEST)
    with pytest.raises(UserError, match="does not lie in"):
        read_manifest(tmp_path / "team")


def test_a_training_copies_nothing_from_outside_the_team_that_it_starts_from(nano: Path, tmp_path: Path) -> None:
    team = write_team(tmp_path / "team", small_config().to_dict(), base="../secret", adapters="adapters")
    shutil.copytree(nano, tmp_path / "secret")
    (team / "adapters").mkdir()
    config = config_from_dict({**small_config().to_dict(), "training": {"start_from": str(team)}})
    with pytest.raises(UserError, match="does not lie in its folder"):
        begin(config, small_market(), tmp_path / "run", lambda what, done, total: None)
    assert not (tmp_path / "run" / "nano").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attn_implementation", "somebody/kernel"),
        ("_attn_implementation", "somebody/kernel"),
        ("quantization_config", {"quant_method": "somebody"}),
    ],
)
def test_a_base_model_names_no_code(key: str, value: object, nano: Path, tmp_path: Path) -> None:
    shutil.copytree(nano, tmp_path / "base")
    path = tmp_path / "base" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(UserError, match=key):
        read_config(tmp_path / "base")


def test_a_base_model_passes_on_only_its_architecture(nano: Path, tmp_path: Path) -> None:
    shutil.copytree(nano, tmp_path / "base")
    path = tmp_path / "base" / "config.json"
    odd = {"name_or_path": "somebody/model", "_name_or_path": "x", "torchscript": True, "a_setting_of_tomorrow": 1}
    path.write_text(json.dumps({**json.loads(path.read_text()), **odd}))
    config = read_config(tmp_path / "base")
    assert not config.name_or_path and not hasattr(config, "a_setting_of_tomorrow")


def test_a_recording_writes_through_no_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "tape.jsonl").symlink_to(precious)
    engine = ScriptedEngine(make_byte_codec(), expert_policies())
    with pytest.raises(UserError, match="cannot use this file"):
        record(engine, tmp_path / "tape.jsonl", make_byte_codec(), ["manager"], {})
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("path", ["../precious/file", "/etc/passwd", "link/file"])
def test_a_record_that_names_a_file_outside_the_run_fetches_and_removes_nothing(path: str, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    (tmp_path / "precious" / "other").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "precious")
    for url in ("", (tmp_path / "shared").as_uri()):
        with pytest.raises(UserError, match="does not lie in"):
            RunFiles(tmp_path / "run", url).fetch(path, "0" * 64)
    assert sorted(os.listdir(tmp_path / "precious")) == ["file", "other"]


@pytest.mark.parametrize("kind", ["train", "sft", "demo"])
def test_a_folder_that_goes_on_has_no_link_out_of_it(kind: str, command: Run, tmp_path: Path) -> None:
    here, precious = tmp_path / "here", tmp_path / "precious"
    (precious / "step-000001").mkdir(parents=True)
    folder = {"train": here / "runs" / RUN, "sft": here / "sft", "demo": here / "runs" / "demo"}[kind]
    folder.mkdir(parents=True)
    (folder / "checkpoints").symlink_to(precious)
    (folder / "demo.json").write_text("{}")
    config = small_config().to_dict()
    with Store.open(here / "runs" / "store") as store:
        document = signed(RUN, {"config": config})
        store.add_run(RunRecord(RUN, "train", 1, small_market().content_hash, 1_700_000_000_000, document, "failed"))
    arguments = {"train": ("train", "--resume", RUN), "sft": ("sft", "--out", folder), "demo": ("demo",)}[kind]
    result = command(*arguments)
    assert result.code == 2 and "is a link out of" in result.err
    assert (precious / "step-000001").is_dir()


def test_the_list_of_a_markets_files_reaches_nothing_outside_its_folder(tmp_path: Path) -> None:
    (tmp_path / "precious.parquet").write_text("mine")
    write_market(small_market(), tmp_path / "data")
    manifest = tmp_path / "data" / "market.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "files": ["../precious.parquet", "/etc/x", 7]}))
    for path in (tmp_path / "data").glob("*.parquet"):
        path.unlink()
    with pytest.raises(UserError):
        write_market(small_market(), tmp_path / "data")
    assert (tmp_path / "precious.parquet").read_text() == "mine"


def _value(document: object, key: str) -> object:
    for part in key.split("."):
        assert isinstance(document, dict)
        document = document[part]
    return document


def _default(key: str) -> object:
    return _value(config_from_dict({}).to_dict(), key)
