"""Files of runs in an S3-compatible bucket: the same records for whoever reads, copies, compacts, exports or deletes
them, and one sentence for what is wrong with the bucket. A folder stands for it, and in slow tests moto's server."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from backend.cli.main import app
from backend.distributed.files.store_files import StoreFiles
from backend.runs.store_check import check_store
from backend.store.errors import StoreError
from backend.store.maintenance.backup import backup_store
from backend.store.maintenance.compaction import compact_store
from backend.store.maintenance.object_copy import choose_bucket
from backend.store.records import RunRecord, TrajectoryRecord
from backend.store.sharing.bucket import BucketObjects
from backend.store.store import Store
from tests.backend.store.buckets import BUCKET, SERVER_PYTHON, FolderClient, files_below, s3_client, s3_server
from tests.backend.store.gateways import CREDENTIALS, gateway_thread
from tests.backend.store.test_token_files import RUN, add_run, add_step, some

SECRET = "a very secret key"
URL = f"s3://{BUCKET}/trainings"
PLACES = ["folder", pytest.param("server", marks=pytest.mark.slow)]
NO_SERVER = "needs an S3 server: `make test-all` installs it, or `make .venv-s3`"
needs_server = pytest.mark.skipif(not SERVER_PYTHON.is_file(), reason=NO_SERVER)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str | Path]:
    """Where a bucket is that this process may use: a folder that stands for it, or a server."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "trader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    if request.param == "folder":
        folder = tmp_path / "served"
        (folder / BUCKET).mkdir(parents=True)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        monkeypatch.setattr(BucketObjects, "_connected", lambda objects: FolderClient(folder))
        yield folder
        return
    if not SERVER_PYTHON.is_file():
        pytest.skip(NO_SERVER)
    with s3_server() as address:
        s3_client(address).create_dir(BUCKET)
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield address


def fresh_url() -> str:
    return f"s3://{BUCKET}/{secrets.token_hex(6)}"


def assert_reads(store: Store, records: list[TrajectoryRecord]) -> None:
    assert store.trajectories(RUN, 0) == sorted(records, key=lambda one: (one.query, one.role))
    tokens = store.conversation_tokens(RUN, 0, "trader")
    assert [one.ids.tolist() for _, one in tokens] == [list(one.ids) for one in records if one.role == "trader"]


def test_tokens_lie_in_the_bucket_and_every_reader_finds_them(place: str | Path, tmp_path: Path) -> None:
    url, records = fresh_url(), some()
    prefix = url.rpartition("/")[2]
    with Store.open(tmp_path / "store") as store:
        assert choose_bucket(store, f"{url}/") == url
        add_run(store)
        add_step(store, records)
        assert len(files_below(place, prefix)) == 4 and not (tmp_path / "store" / "objects").exists()
    with Store.open(tmp_path / "store") as store:  # whoever opens it next needs to be told nothing
        assert_reads(store, records)
        assert not check_store(store, tmp_path / "runs", lambda *_: None).problems
        backup_store(store, tmp_path / "backup", lambda *_: None)
    compact_store(tmp_path / "store", lambda *_: None)
    with Store.open(tmp_path / "store") as store:
        assert store.connection.bucket() == url
        assert_reads(store, records)
        assert store.drop_trajectories(RUN, [0]) == 4 and not files_below(place, prefix)
        add_step(store, records)
        store.delete_run(RUN)
        assert not files_below(place, prefix)
    with Store.open(tmp_path / "backup") as copy:  # which is whole by itself
        assert copy.connection.bucket() is None
        assert_reads(copy, records)


@given(content=st.binary(max_size=3000), piece=st.integers(1, 1000))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_file_comes_back_as_it_was_sent_in_any_pieces(place: str | Path, content: bytes, piece: int) -> None:
    objects = BucketObjects(fresh_url(), 5.0)
    upload, checksum = secrets.token_hex(16), sha256(content).hexdigest()
    for offset in range(0, max(1, len(content)), piece):
        objects.write("r", upload, offset, content[offset : offset + piece])
        objects.write("r", upload, offset, content[offset : offset + piece])  # saying it twice does no harm
    other = secrets.token_hex(16)
    objects.write("r", other, 0, content + b"x")
    assert not objects.finish("r", other, "part", checksum), "another content than its name says"
    assert objects.finish("r", upload, "part", checksum)
    assert objects.finish("r", upload, "part", checksum), "the answer got lost, so it is said again"
    found, offset = b"", 0
    while answer := objects.read("r", "part", checksum, offset):
        found, offset = found + answer, offset + len(answer)
    assert found == content
    objects.remove("r", "part", [checksum])
    objects.remove("r", "part", [checksum])
    with pytest.raises(StoreError, match=r"is not in s3://teams/\w+ any more"):
        objects.read("r", "part", checksum, 0)


def test_a_server_of_surrealdb_has_a_place_for_files_with_a_bucket(
    place: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway of a database in memory takes no files itself, as a server of SurrealDB takes none."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    records, url = some(), fresh_url()
    with gateway_thread() as gateway:
        with Store.open(gateway.url) as store:
            assert not store.objects.offered()
        with Store.open(gateway.url) as store:
            choose_bucket(store, url)
        with Store.open(gateway.url) as store:
            add_run(store)
            add_step(store, records)
            assert store.tensors(RUN) and store.objects.offered()
            assert_reads(store, records)
            folder = tmp_path / "a"
            (folder / "services" / "trader").mkdir(parents=True)
            weights = folder / "services" / "trader" / "step-000000.safetensors"
            weights.write_bytes(np.arange(5000).tobytes())
            StoreFiles(folder, store, RUN).keep("services/trader")
        with Store.open(gateway.url) as other:
            StoreFiles(tmp_path / "b", other, RUN).restore("services/trader")
        assert (tmp_path / "b" / weights.relative_to(folder)).read_bytes() == weights.read_bytes()


def test_the_command_binds_a_new_store_once_and_for_good(place: str | Path, tmp_path: Path) -> None:
    store, runner = str(tmp_path / "store"), CliRunner()

    def bind(url: str, where: str = store) -> str:
        result = runner.invoke(app, ["store", "bucket", url, "--store", where])
        assert result.exception is None or isinstance(result.exception, StoreError), result.exception
        text = " ".join((str(result.exception) if result.exception else result.output).split())
        assert SECRET not in text and "\n" not in text.strip()
        return text

    assert "files of runs of" in bind(URL) and "lie in s3://teams/trainings" in bind(URL)
    assert "lie in s3://teams/trainings: take another store for another bucket" in bind("s3://teams/other")
    for wrong in ("teams", "s3://", "s3://UPPER", "s3://teams/../up", "https://host/teams", f"s3://teams/{'a' * 300}"):
        assert "is no bucket: write it as s3://BUCKET" in bind(wrong)
    assert "there is no bucket elsewhere at http://127.0.0.1" in bind("s3://elsewhere", str(tmp_path / "b"))
    assert "mem:// keeps no files" in bind(URL, "mem://")
    with Store.open(tmp_path / "used") as used:
        add_run(used)
        add_step(used, some())
        used.add_run(RunRecord("other", "train", 1, "hash", 1_000, {}))
    assert f"has files of run {RUN} beside its database" in bind(URL, str(tmp_path / "used"))
    with Store.open(tmp_path / "busy") as busy:
        busy.add_run(RunRecord("busy", "train", 1, "hash", 1_000, {}))
        with pytest.raises(StoreError, match=r"run busy of store .* is being written: choose its bucket before"):
            choose_bucket(busy, URL)


def test_who_has_no_keys_is_told_so_and_reads_the_rest(place: str | Path, tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        choose_bucket(store, fresh_url())
        add_run(store)
        add_step(store, some())
    with Store.open(tmp_path / "store") as store, pytest.MonkeyPatch.context() as patch:
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(StoreError, match="read from the environment alone: set AWS_SECRET_ACCESS_KEY, and AWS_END"):
            store.trajectories(RUN, 0)
        assert [record.run for record in store.runs()] == [RUN], "what needs no file needs no key"


@pytest.mark.slow
@needs_server
def test_wrong_keys_are_refused_in_one_sentence_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "trader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with s3_server(INITIAL_NO_AUTH_ACTION_COUNT="0") as address:  # it knows no account
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(StoreError) as refused:
            BucketObjects(URL, 1.0).check()
    assert "does not take the keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in str(refused.value)
    assert SECRET not in str(refused.value) and "trader" not in str(refused.value)


def test_a_bucket_that_does_not_answer_is_tried_again_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "trader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{probe.getsockname()[1]}")
        objects = BucketObjects(URL, 0.2)
        with pytest.raises(StoreError, match=r"bucket teams at http://127\S+ has not answered for 0 seconds \(NETWORK"):
            objects.read("r", "part", "0" * 64, 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "ftp://somewhere")
    with pytest.raises(StoreError, match="AWS_ENDPOINT_URL is no address of a server"):
        BucketObjects(URL, 0.2)
