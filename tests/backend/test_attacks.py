"""The attack suite: every kind of artefact says everything that it may not, with canaries that notice.

Kinds: a team's folder, a run in somebody's store, an imported run, a recording, a base model's folder, the folder of a
training, a demo or an `sft` that goes on, and a folder of market data. What is done again from a stored run, and the
files beside the database, are in `test_stored_attacks.py`. The dangers: a program that would be run, a
server that would be asked and get a key, files outside the artefact that would be read or written.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from backend.config.load import load_config, presets
from backend.config.schema import Config
from backend.decisions.checked_documents import check_document
from backend.distributed.files import RunFiles
from backend.experiments.run import ExperimentRequest, run_experiment
from backend.models.manifest import MANIFEST, TeamLora, TeamManifest, TeamModel, read_manifest
from backend.models.registry import base_of_team
from backend.paper.sessions import paper_parity
from backend.reporting.market_reload import market_of
from backend.store.errors import StoreError
from backend.store.records import RunRecord
from backend.store.store import Store
from backend.store.transfer import export_run, import_run
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.model_files import read_config
from cryptosentinel.llm.recording import record
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team_settings import Section, TeamConfig
from simulator.data.archive import write_market
from simulator.errors import UserError
from simulator.files import write_whole
from tests.backend.experiments.conftest import STRATEGIES
from tests.backend.test_malformed import Kind, mutated
from tests.command_line import Run, program
from tests.hostile import KEY, KEY_VARIABLE, Canary, canary, hostile_config, write_team
from tests.small_world import small_config, small_market

RUN = "train-20240101-000000-000"
MODULE = "canary_module"
NAMED = f"{MODULE}:ROLE"


@pytest.fixture
def bird(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canary]:
    """A canary outside every artefact; the user has keys."""
    for name in (KEY_VARIABLE, "OPENAI_API_KEY", "VLLM_API_KEY"):
        monkeypatch.setenv(name, KEY)
    with canary(tmp_path / "outside") as made:
        yield made


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """In a folder with a module; whoever imports it is noticed."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / f"{MODULE}.py").write_text(f"open({str(tmp_path / 'outside' / 'was-run')!r}, 'w').close()\n")
    return program(tmp_path / "here", monkeypatch, capsys)


def _stored(key: str, bird: Canary, kind: str = "train") -> RunRecord:
    document = {"config": hostile_config(key, str(bird.folder), bird.url), "team": "scripted"}
    return RunRecord(RUN, kind, 1, small_market().content_hash, 1_700_000_000_000, document, "interrupted")


# -- settings: a team's folder has no place for them, and an imported run is only read ---------------------------------

SECTIONS = [name for name in Config.model_fields if name != "team"]


@given(
    st.sampled_from(["", "team", "lora", "model"]),
    st.text(st.characters(codec="ascii"), min_size=1) | st.sampled_from([*SECTIONS, "config", "plugins.roles"]),
    st.none() | st.text() | st.dictionaries(st.text(), st.integers()),
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_manifest_has_no_other_key_at_any_depth(tmp_path: Path, section: str, key: str, value: object) -> None:
    models: dict[str, type[Section]] = {"": TeamManifest, "team": TeamConfig, "lora": TeamLora, "model": TeamModel}
    known = models[section].model_fields
    assume(key not in known)
    team = write_team(tmp_path / "team", **({section: {key: value}} if section else {key: value}))
    with pytest.raises(UserError, match="cannot be used"):
        read_manifest(team)


def test_a_teams_folder_names_no_tool(tmp_path: Path) -> None:
    team = write_team(tmp_path / "team", team={"tools": ["manager=theirs:TOOL"]})
    with pytest.raises(UserError, match=r"set team\.tools yourself"):
        read_manifest(team)


def test_a_run_that_comes_out_of_a_file_is_imported_wherever_it_was_made(tmp_path: Path, bird: Canary) -> None:
    with Store.open("mem://") as store:
        store.add_run(_stored("engine.python", bird))
        export_run(store, RUN, tmp_path / "run.jsonl.gz")
        assert import_run(store, tmp_path / "run.jsonl.gz") == (RUN, 0) and not store.run(RUN).imported
    with Store.open("mem://") as store:
        import_run(store, tmp_path / "run.jsonl.gz", check_document)
        kept = store.run(RUN)
        assert kept.imported
        store.set_document(replace(kept, imported=False))
        assert store.run(RUN).imported, "only a new run is one's own"
        with pytest.raises(StoreError, match="was imported"):
            store.resume_run(kept)
        export_run(store, RUN, tmp_path / "again.jsonl.gz")
    assert (tmp_path / "again.jsonl.gz").read_bytes() == (tmp_path / "run.jsonl.gz").read_bytes()


@pytest.mark.parametrize("key", ["engine.python", "plugins.roles", "training.start_from"])
@pytest.mark.parametrize(
    ("kind", "words"), [("train", ("train", "--resume", RUN)), ("paper", ("paper", "resume", RUN))]
)
def test_an_imported_run_is_not_resumed(
    kind: str, words: tuple[str, ...], key: str, bird: Canary, command: Run, tmp_path: Path
) -> None:
    with Store.open(tmp_path / "here" / "runs" / "store") as store:
        store.add_run(replace(_stored(key, bird, kind), imported=True))
    (tmp_path / "here" / "runs" / RUN).mkdir()
    result = command(*words)
    assert result.code == 2 and "was imported" in result.err and "training.start_from" in result.err
    assert "Traceback" not in result.err
    bird.assert_untouched()


def test_the_page_of_an_imported_run_reads_no_file_that_it_names(tmp_path: Path) -> None:
    write_market(small_market(), tmp_path / "data")
    document = {"config": {"market": {"data": str(tmp_path / "data"), "timeframe": "4h"}}}
    own = RunRecord(RUN, "backtest", 1, small_market().content_hash, 1_700_000_000_000, document)
    assert market_of(own).content_hash == small_market().content_hash
    with pytest.raises(UserError, match="was imported"):
        market_of(replace(own, imported=True))


SMALL = (
    "--set", "evaluation.windows=2", "--set", "evaluation.decisions_per_window=1",
    "--set", "market.coins=1", "--set", "market.bars=400", "--baselines", "hold",
)  # fmt: skip


@pytest.mark.parametrize("key", ["engine.python", "engine.url"])
def test_no_command_that_takes_a_team_runs_or_asks_what_its_folder_names(
    key: str, nano: Path, bird: Canary, command: Run, tmp_path: Path
) -> None:
    team = write_team(tmp_path / "team", config=hostile_config(key, str(bird.folder), bird.url))
    shutil.copytree(nano, team / "nano")
    write_market(small_market(), tmp_path / "data")
    data = ("--data", tmp_path / "data", "--start", "2020-03-01", "--end", "2020-03-03")
    for arguments in (
        ("evaluate", team, *SMALL),
        ("check", "lookahead", "--team", team, *data),
        ("backtest", "--team", team, *data, "--baselines", "none"),
    ):
        result = command(*arguments)
        assert result.code in (1, 2) and "team.json cannot be used" in result.out + result.err, arguments
    bird.assert_untouched()


# -- paths: nothing outside the artefact is read or written ----------------------------------------------------------


@pytest.mark.parametrize("base", ["../outside", "nano/../../outside", "/etc", "link", "a\0b", "", "."])
def test_a_base_outside_the_teams_folder_is_not_read(base: str, nano: Path, tmp_path: Path) -> None:
    shutil.copytree(nano, tmp_path / "outside")
    team = write_team(tmp_path / "team", base=base)
    (team / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(UserError):
        base_of_team(team, read_manifest(team))


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_of_a_teams_base_that_leads_out_is_not_read(file: str, nano: Path, tmp_path: Path) -> None:
    team = write_team(tmp_path / "team")
    shutil.copytree(nano, team / "nano")
    shutil.move(team / "nano" / file, tmp_path / file)
    (team / "nano" / file).symlink_to(tmp_path / file)
    with pytest.raises(UserError, match="is a link out of"):
        base_of_team(team, read_manifest(team))


@pytest.mark.parametrize("field", ["adapters", "start"])
@pytest.mark.parametrize("value", ["..", "../outside", "/etc", "adapters/../../outside"])
def test_weights_outside_the_teams_folder_are_not_read(field: str, value: str, tmp_path: Path) -> None:
    team = write_team(tmp_path / "team", **{field: value})
    with pytest.raises(UserError, match="does not lie in"):
        read_manifest(team)


def test_a_manifest_that_is_a_link_out_of_its_folder_is_not_read(tmp_path: Path) -> None:
    write_team(tmp_path / "theirs")
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / MANIFEST).symlink_to(tmp_path / "theirs" / MANIFEST)
    with pytest.raises(UserError, match="does not lie in"):
        read_manifest(tmp_path / "team")


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


def test_a_base_model_is_called_by_its_folder_and_not_as_it_says(nano: Path, tmp_path: Path) -> None:
    shutil.copytree(nano, tmp_path / "base")
    path = tmp_path / "base" / "config.json"
    odd = {"name_or_path": "somebody/model", "_name_or_path": "x", "torchscript": True, "a_setting_of_tomorrow": 1}
    path.write_text(json.dumps({**json.loads(path.read_text()), **odd}))
    config = read_config(tmp_path / "base")
    assert config.name_or_path == str(tmp_path / "base")


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
        document = {"config": config}
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


@pytest.fixture
def foreign(command: Run, bird: Canary, tmp_path: Path) -> str:
    """A backtest out of a file whose record somebody has rewritten."""
    here = tmp_path / "here"
    write_market(small_market(), tmp_path / "data")
    result = command(
        "backtest", "--data", tmp_path / "data", "--start", "2020-03-01", "--end", "2020-03-03", "--baselines", "none"
    )
    assert result.code == 0, result.err
    with Store.open(here / "runs" / "store") as store:
        [run] = store.runs()
        run.config["config"]["engine"] |= {"kind": "vllm", "python": str(bird.program), "url": ""}
        run.config["config"]["plugins"]["roles"] = [NAMED]
        run.config["sources"] = {"scripted": {"team": NAMED, "variant": ""}}
        store.set_document(run)
    assert command("runs", "export", run.run, here / "theirs.gz").code == 0
    shutil.rmtree(here / "runs")
    assert command("runs", "import", here / "theirs.gz").code == 0
    return run.run


def test_nothing_is_done_again_of_an_imported_run(foreign: str, command: Run, bird: Canary) -> None:
    for arguments in (
        ("backtest", "--like", foreign),
        ("backtest", "--like", foreign, "--team", "scripted", "--baselines", "none"),
        ("runs", "replay", foreign, "--decision", "1"),
        ("runs", "replay", foreign, "--decision", "1", "--team", "scripted", "--rules"),
        ("runs", "show", foreign),
    ):
        result = command(*arguments)
        assert "Traceback" not in result.err, (arguments, result.err)
        again = arguments[1] != "show"
        assert result.code == 2 * again and ("was imported" in result.err) == again, (arguments, result.err)
    bird.assert_untouched()
    assert MODULE not in sys.modules


# -- paper sessions --------------------------------------------------------------------------------------------------


def test_an_imported_paper_session_is_not_played_again(command: Run, bird: Canary, tmp_path: Path) -> None:
    document = {"config": Config().to_dict(), "team": NAMED}
    session = RunRecord(
        "paper-20240101-000000-000", "paper", 1, "", 1_700_000_000_000, document, "interrupted", imported=True
    )
    with Store.open(tmp_path / "here" / "runs" / "store") as store:
        store.add_run(session)
    folder = tmp_path / "here" / "runs" / "store"
    with pytest.raises(UserError, match="was imported"):
        paper_parity(session.run, folder)
    bird.assert_untouched()
    assert MODULE not in sys.modules


# -- files beside the database ---------------------------------------------------------------------------------------

# What somebody else writes into the manifest of a backup.
MANIFESTS = (
    "7", "[]", "null", "{", '{"files": 7}', '{"files": {"a": 7}}', '{"files": {}}',
    '{"files": {"../../precious": "0"}}', '{"files": {"/dev/zero": "0"}}', '{"files": {"\\u001b[2J": "0"}}',
    '{"files": {"LOCK": null}}', "[" * 100_000,
    '{"a":' * 50_000 + "1" + "}" * 50_000, "9" * 6_000, "NaN", "\x1b[2J", "",
)  # fmt: skip


def _backup(command: Run, tmp_path: Path) -> Path:
    """A backup of a store with one run, as somebody hands it on."""
    here = tmp_path / "here"
    with Store.open(here / "theirs") as store:
        store.add_run(RunRecord(RUN, "train", 1, "", 1, {"config": {}}, "finished"))
    result = command("store", "backup", here / "backup", "--store", here / "theirs")
    assert result.code == 0, result.err
    return here / "backup"


@pytest.mark.parametrize("text", MANIFESTS, ids=lambda text: repr(text[:40]))
def test_a_manifest_of_somebody_else_is_refused_in_one_message(text: str, command: Run, tmp_path: Path) -> None:
    backup = _backup(command, tmp_path)
    (tmp_path / "precious").write_text("mine")
    (backup / "db" / "closed.json").write_text(text)
    for arguments in (("runs",), ("store", "check"), ("runs", "delete", RUN, "--yes")):
        result = command(*arguments, "--store", backup)
        assert result.code == 2, (arguments, result.out)
        assert "Traceback" not in result.err and "\x1b" not in result.err, arguments
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("name", ["demo", "demo.toml", "configs/demo.toml", "presets/demo.toml"])
def test_a_preset_beside_an_artefact_is_not_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = load_config("demo")
    monkeypatch.chdir(tmp_path)
    theirs = tmp_path / name
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text('[engine]\nkind = "vllm"\npython = "helper"\n')
    assert load_config("demo") == ours and "demo" in presets()


def test_a_file_that_is_written_whole_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "file.json.tmp").symlink_to(tmp_path / "mine")
    (tmp_path / "file.json").symlink_to(tmp_path / "mine")
    write_whole(tmp_path / "file.json", "theirs")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "file.json").read_text() == "theirs" and not (tmp_path / "file.json").is_symlink()


# -- the file of an experiment ---------------------------------------------------------------------------------------


def _experiment(folder: Path, *changes: tuple[str, str]) -> Path:
    text = STRATEGIES
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "theirs.toml").write_text(text)
    return folder / "theirs.toml"


def test_a_secret_of_the_environment_is_not_taken_into_an_experiment(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_API_KEY", "a-key-that-nobody-may-see")
    path = _experiment(tmp_path / "here", ('"market.coins=1"', '"market.data=$CANARY_API_KEY"'))
    result = command("experiment", "run", path)
    assert result.code == 2 and "may be a secret" in result.err and "Traceback" not in result.err
    assert "a-key-that-nobody-may-see" not in result.err + result.out


# -- finished parts --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with a finished experiment, and its file."""
    folder = tmp_path_factory.mktemp("finished")
    path = _experiment(folder)
    run_experiment(ExperimentRequest(file=path, workers=1), "mem://", folder / "runs")
    return folder


EXPERIMENT = ("experiment.json", "results.json", "cells/hold-1.json", "cells/short-2.json")


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 100), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [f"experiments/theirs/{one}" for one in EXPERIMENT])
def test_a_malformed_part_is_taken_for_what_it_says_or_refused(
    name: str, seeds: range, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    kind = Kind(lambda folder: folder, lambda folder: None)
    content = (finished / "runs" / name).read_bytes()
    command = program(tmp_path, monkeypatch, capsys)
    for seed in seeds:
        shutil.copytree(finished / "runs", tmp_path / "runs")
        changed = mutated(content, kind, random.Random(f"{name} {seed}"))
        (tmp_path / "runs" / name).write_bytes(changed)
        try:
            run_experiment(ExperimentRequest(file=finished / "theirs.toml", workers=1), "mem://", tmp_path / "runs")
        except UserError as error:
            assert str(error), seed
        (tmp_path / "runs" / name).write_bytes(changed)
        for arguments in (("experiment", "list"), ("experiment", "show", "theirs")):
            result = command(*arguments)
            assert result.code in (0, 2) and "Traceback" not in result.err, (seed, result.err)
        shutil.rmtree(tmp_path / "runs")


@pytest.mark.parametrize("place", ["", "cells", "results.json"])
def test_parts_that_lie_elsewhere_or_belong_to_nothing_are_refused(place: str, finished: Path, tmp_path: Path) -> None:
    """Also where the folder does not say yet what it is of: then it would be said now, of another's parts."""
    runs, precious = tmp_path / "runs", tmp_path / "precious"
    shutil.copytree(finished / "runs", runs)
    state = runs / "experiments/theirs/experiment.json"

    def go_on() -> None:
        run_experiment(ExperimentRequest(file=finished / "theirs.toml", workers=1), "mem://", runs)

    if not place:
        state.unlink()
        with pytest.raises(UserError, match="not their plan"):
            go_on()
        shutil.move(state.parent, precious)
        state.parent.symlink_to(precious)
        with pytest.raises(UserError, match="does not lie in"):
            go_on()
        return
    precious.mkdir()
    (precious / "mine").write_text("mine")
    part = state.parent / place
    shutil.rmtree(part, ignore_errors=True)
    part.unlink(missing_ok=True)
    part.symlink_to(precious if "." not in place else precious / "mine")
    with pytest.raises(UserError, match="is a link out of"):
        go_on()
    assert os.listdir(precious) == ["mine"] and (precious / "mine").read_text() == "mine"
