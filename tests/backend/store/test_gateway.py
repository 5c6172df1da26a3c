"""The gateway: ordinary clients, sessions of their own, sign-in, and whatever else may come through a port."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from surrealdb import BlockingWsSurrealConnection, RecordID
from surrealdb.data.cbor import decode, encode
from surrealdb.errors import SurrealError
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from backend.distributed.store_server import serve_store
from backend.store import RunRecord, Store, StoreError
from backend.store.gateway import server
from backend.store.gateway.rpc_messages import Malformed, engine_failed, parsed, request, where_to
from tests.backend.store.gateways import (
    ACCOUNT,
    CREDENTIALS,
    GatewayProcess,
    GatewayThread,
    environment,
    free_port,
    gateway_thread,
)  # fmt: skip

RUN = RunRecord("r", "train", 1, "hash", 1_000, {}, status="finished")
USER, PASSWORD = ACCOUNT.user, ACCOUNT.password
CBOR = [Subprotocol("cbor")]


@pytest.fixture(scope="module")
def served() -> Iterator[GatewayThread]:
    """For tests that leave it as it was."""
    with gateway_thread() as running:
        yield running


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REFUSAL_SECONDS", 0.01)


def client(running: GatewayThread | GatewayProcess, database: str = "x") -> BlockingWsSurrealConnection:
    raw = BlockingWsSurrealConnection(running.url)
    raw.signin({"username": USER, "password": PASSWORD})
    raw.use("tests", database)
    return raw


def raw_socket(running: GatewayThread, signed_in: bool = True) -> ClientConnection:
    raw = connect(f"{running.url}/rpc", subprotocols=CBOR, compression=None)
    if signed_in:
        raw.send(encode({"id": "in", "method": "signin", "params": [{"user": USER, "pass": PASSWORD}]}))
        raw.recv()
    return raw


def query(raw: BlockingWsSurrealConnection, text: str) -> Any:
    """The result of the last statement."""
    return raw.query(text).execute()[-1]


def alive(running: GatewayThread) -> bool:
    raw = client(running)
    try:
        return bool(query(raw, "RETURN 41 + 1") == 42)
    finally:
        raw.close()


def test_an_ordinary_client_works_unchanged(served: GatewayThread) -> None:
    raw = client(served, "ordinary")
    raw.create(RecordID("coin", 1), {"name": "A", "price": 0.1})
    raw.update(RecordID("coin", 1)).merge({"volume": 5})
    raw.insert("coin", [{"id": RecordID("coin", 2), "name": "B"}])
    coin = {"id": RecordID("coin", 1), "name": "A", "price": 0.1, "volume": 5}
    assert raw.select(RecordID("coin", 1)).execute() == coin
    assert query(raw, "SELECT VALUE name FROM coin ORDER BY name") == ["A", "B"]
    raw.delete(RecordID("coin", 2)).execute()
    assert query(raw, "SELECT VALUE name FROM coin") == ["A"]
    with pytest.raises(SurrealError, match="Parse error"):
        query(raw, "SELECT FROM")
    with pytest.raises(SurrealError, match="does not offer 'live'"):
        raw.live("coin")
    assert "surrealdb" in raw.version()
    raw.close()


def test_clients_have_databases_and_variables_of_their_own(served: GatewayThread) -> None:
    one, other = client(served, "one"), client(served, "other")
    one.let("limit", 5)
    other.let("limit", 7)
    other.let("more", 1)
    for _ in range(2):
        assert query(one, "RETURN [session::db(), $limit, $more]") == ["one", 5, None]
        assert query(other, "RETURN [session::db(), $limit, $more]") == ["other", 7, 1]
    one.unset("limit")
    assert query(one, "RETURN $limit") is None
    nobody = BlockingWsSurrealConnection(served.url)
    nobody.signin({"username": USER, "password": PASSWORD})
    with pytest.raises(SurrealError, match="namespace"):
        query(nobody, "CREATE coin")
    for raw in (one, other, nobody):
        raw.close()


# -- sign-in -----------------------------------------------------------------------------------------------------------


def test_the_store_signs_in_from_the_environment(served: GatewayThread) -> None:
    with Store.open(served.url) as store:
        store.add_run(RUN)
        assert store.run("r") == RUN


@pytest.mark.parametrize(
    ("user", "password", "complaint"),
    [
        (USER, "wrong", "wrong user or password"),
        ("wrong", PASSWORD, "wrong user or password"),
        (USER, PASSWORD[:-1], "wrong user or password"),
        ("", "", "sign in before any other request"),
        (USER, "", "go together"),
        ("", PASSWORD, "go together"),
    ],
)
def test_who_does_not_sign_in_rightly_is_refused(
    served: GatewayThread, monkeypatch: pytest.MonkeyPatch, user: str, password: str, complaint: str
) -> None:
    monkeypatch.setenv("CRYPTOSENTINEL_STORE_USER", user)
    monkeypatch.setenv("CRYPTOSENTINEL_STORE_PASSWORD", password)
    with pytest.raises(StoreError, match=complaint) as refused:
        Store.open(served.url)
    assert PASSWORD not in str(refused.value) and PASSWORD not in "".join(served.lines)


METHODS = (
    "query",
    "select",
    "create",
    "use",
    "let",
    "unset",
    "version",
    "info",
    "live",
    "delete",
    "signup",
    "nonsense",
)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_answered_before_sign_in(served: GatewayThread, method: str) -> None:
    with raw_socket(served, signed_in=False) as raw:
        raw.send(encode({"id": "1", "method": method, "params": ["REMOVE DATABASE main", {}]}))
        answer = raw.recv()
        assert isinstance(answer, bytes)
        assert "sign in before" in decode(answer)["error"]["message"]
        with pytest.raises(ConnectionClosed):
            raw.recv()


def test_a_token_signs_in_again_and_invalidate_signs_out(served: GatewayThread) -> None:
    first = BlockingWsSurrealConnection(served.url)
    token = first.signin({"username": USER, "password": PASSWORD}).access
    assert token is not None
    second = BlockingWsSurrealConnection(served.url)
    second.authenticate(token)
    second.use("tests", "x")
    assert query(second, "RETURN 1") == 1
    second.invalidate()
    with pytest.raises((SurrealError, ConnectionClosed)):
        query(second, "RETURN 1")
    third = BlockingWsSurrealConnection(served.url)
    with pytest.raises(SurrealError, match="wrong user or password"):
        third.authenticate(token[:-1] + ("a" if token[-1] != "a" else "b"))


def test_who_only_connects_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SIGN_IN_SECONDS", 0.1)
    with (
        gateway_thread() as running,
        raw_socket(running, signed_in=False) as raw,
        pytest.raises(ConnectionClosed, match="sign in within"),
    ):
        raw.recv(timeout=10)


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(StoreError, match="give it without") as refused:
        Store.open("ws://trader:secret@127.0.0.1:1")
    assert "secret" not in str(refused.value)


# -- whatever comes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\x00",
        b"GET / HTTP/1.1",
        b"\x81" * 50_000,  # nested deeper than anybody may recurse
        b"\xa1\x62id\x01",
        b"\xbf" + b"\x61a" * 100,
        b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",  # an array of 2^63 - 1
        b"\xa3\x62id\x61\x31\x66method\x63use\x66params\x81\xc8\x81\x81",
        encode({"id": "1", "method": 5}),
        encode({"id": "1", "method": "use", "params": "x"}),
        encode({"id": "1", "method": "query", "params": 7}),
        encode({"id": ["1"], "method": "signin", "params": [{"user": 1, "pass": 2}]}),
        encode({"id": "1", "method": "let", "params": []}),
    ],
)
def test_garbage_is_answered_with_an_error(served: GatewayThread, garbage: bytes) -> None:
    with raw_socket(served) as raw:
        raw.send(garbage)
        answer = raw.recv(timeout=10)
        assert isinstance(answer, bytes) and decode(answer)["error"]["message"]
    assert alive(served)


def _tagged(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """CBOR items around others: arrays, maps, and tags, among them those that SDKs make objects of."""
    tags = st.sampled_from([*range(6, 24)]).map(lambda tag: bytes([0xC0 + tag])) | st.integers(24, 255).map(
        lambda tag: bytes([0xD8, tag])
    )
    arrays = st.lists(inner, max_size=3).map(lambda items: bytes([0x80 + len(items)]) + b"".join(items))
    maps = st.lists(st.tuples(inner, inner), max_size=2).map(
        lambda items: bytes([0xA0 + len(items)]) + b"".join(key + value for key, value in items)
    )
    return arrays | maps | st.tuples(tags, inner).map(b"".join)


ITEMS = st.recursive(
    st.sampled_from([b"\x00", b"\x3b" + b"\xff" * 8, b"\x61a", b"\x41a", b"\xf6", b"\xfb" * 9]), _tagged
)


@given(st.binary(max_size=200) | ITEMS.map(lambda item: request("signin", ["u"])[:-2] + item))
@settings(max_examples=400, deadline=None)
def test_no_bytes_break_the_reading_of_a_request(message: bytes) -> None:
    for read in (where_to, parsed):
        with suppress(Malformed):
            read(message)


@given(st.text(max_size=300), st.text(max_size=40), st.booleans())
def test_the_method_is_found_wherever_it_stands(identity: str, method: str, first: bool) -> None:
    entries = {"id": identity, "method": method, "params": [1]}
    document = entries if first else dict(reversed(entries.items()))
    assert where_to(encode(document)) == method


def test_only_a_failed_statement_tells_of_a_failed_disk() -> None:
    def answer(status: str, text: str) -> bytes:
        return bytes(encode({"id": "1", "result": [{"status": status, "result": text}]}))

    assert engine_failed(answer("OK", "IO error: in a message of somebody")) is None
    assert engine_failed(answer("ERR", "no such field")) is None
    assert engine_failed(answer("ERR", "There was an IO error: full")) == "There was an IO error: full"


def test_a_text_message_is_refused(served: GatewayThread) -> None:
    with raw_socket(served) as raw:
        raw.send('{"id": 1, "method": "query", "params": ["RETURN 1"]}')
        with pytest.raises(ConnectionClosed, match="CBOR only"):
            raw.recv(timeout=10)
    assert alive(served)


def test_a_huge_message_costs_its_sender_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_BYTES", 100_000)
    with gateway_thread() as running, Store.open(running.url) as store:
        with pytest.raises(StoreError, match="larger than the server takes"):
            store.add_run(replace(RUN, config={"x": "y" * 200_000}))
        assert store.runs() == []
        assert "more than 100000 bytes" in running.lines[0]
        assert alive(running)


def test_who_has_not_signed_in_may_send_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_BYTES_UNKNOWN", 1_000)
    large = {"x": "y" * 200_000}
    with gateway_thread() as running:
        with raw_socket(running, signed_in=False) as raw:
            raw.send(encode({"id": "1", "method": "query", "params": ["RETURN $x", large]}))
            with pytest.raises(ConnectionClosed, match="1009"):
                raw.recv(timeout=10)
        with Store.open(running.url) as store:
            store.add_run(replace(RUN, config=large))
            assert store.run("r").config == large


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:8501", "null"])
def test_pages_in_a_browser_are_kept_out(served: GatewayThread, origin: str) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        connect(f"{served.url}/rpc", subprotocols=CBOR, additional_headers={"Origin": origin})


def test_other_paths_and_too_many_clients_are_turned_away(
    served: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidStatus, match="404"):
        connect(f"{served.url}/", subprotocols=CBOR)
    for limit in ("MOST_CLIENTS", "MOST_UNKNOWN"):
        with monkeypatch.context() as patched, pytest.raises(InvalidStatus, match="503"):
            patched.setattr(server, limit, 0)
            connect(f"{served.url}/rpc", subprotocols=CBOR)


def test_who_finds_a_store_full_is_told_so_and_comes_in_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway_thread() as served:
        monkeypatch.setattr(server, "MOST_CLIENTS", 0)
        with pytest.raises(StoreError, match=r"it has too many clients, and for \d+ seconds none has left") as full:
            Store.open(served.url, patience=0.3)
        assert "PASSWORD" not in str(full.value), "the password is not the matter"
        room = threading.Timer(0.5, lambda: monkeypatch.setattr(server, "MOST_CLIENTS", 8))
        room.start()
        with Store.open(served.url) as store:
            assert store.runs() == []
        room.join()


def test_answers_that_wait_for_room_all_come(served: GatewayThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one long answer at a time, whoever asks gets its own."""
    monkeypatch.setattr(server, "MOST_UNDER_WAY", 100_000)
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        with Store.open(served.url) as store:
            answers[number] = store.connection.query("RETURN $text", {"text": f"{number}" * 200_000})

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == {number: f"{number}" * 200_000 for number in range(6)}


def test_connections_that_never_sign_in_keep_no_client_out(
    served: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_CLIENTS", 2)
    monkeypatch.setattr(server, "MOST_UNKNOWN", 5)
    idle = [raw_socket(served, signed_in=False) for _ in range(4)]
    assert alive(served)
    for raw in idle:
        raw.close()


def test_wrong_passwords_are_tried_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all connections: who opens ten of them learns no sooner."""
    waits: list[int] = []
    at_once = 0

    async def counted(seconds: float) -> None:
        nonlocal at_once
        at_once += 1
        waits.append(at_once)
        for _ in range(20):
            await yielded()
        at_once -= 1

    yielded = partial(asyncio.sleep, 0)
    with gateway_thread() as running:
        sockets = [raw_socket(running, signed_in=False) for _ in range(6)]
        monkeypatch.setattr(server, "pause", counted)
        for raw in sockets:
            raw.send(encode({"id": "1", "method": "signin", "params": [{"user": USER, "pass": "guess"}]}))
        for raw in sockets:
            answer = raw.recv(timeout=10)
            assert isinstance(answer, bytes) and "wrong user" in decode(answer)["error"]["message"]
            raw.close()
    assert waits == [1] * 6


def test_a_client_that_leaves_in_the_middle_disturbs_nobody(served: GatewayThread) -> None:
    other = client(served, "leaving")
    for _ in range(3):
        with raw_socket(served) as raw:
            raw.send(encode({"id": "0", "method": "use", "params": ["tests", "leaving"]}))
            raw.recv()
            raw.send(encode({"id": "1", "method": "query", "params": ["SLEEP 100ms; CREATE left RETURN NONE", {}]}))
            raw.socket.shutdown(socket.SHUT_RDWR)
        assert query(other, "RETURN 1") == 1
    half = socket.create_connection(("127.0.0.1", served.port))
    half.sendall(b"GET /rpc HTTP/1.1\r\nUpgrade: webs")
    half.close()
    assert query(other, "RETURN 1") == 1
    other.close()


def test_one_request_runs_at_a_time(served: GatewayThread) -> None:
    """A counter that is read and written in two statements stays exact."""
    setup = client(served, "counter")
    query(setup, "UPSERT counter:1 SET n = 0")

    def count() -> None:
        raw = client(served, "counter")
        for _ in range(20):
            query(raw, "LET $n = (SELECT VALUE n FROM ONLY counter:1); SLEEP 1ms; UPDATE counter:1 SET n = $n + 1")
        raw.close()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert query(setup, "SELECT VALUE n FROM counter") == [80]
    setup.close()


# -- as a process ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_under_way_is_finished_when_it_is_told_to_stop(tmp_path: Path, number: int) -> None:
    with GatewayProcess(tmp_path, free_port()) as running:
        assert f"listening on {running.url} with CRYPTOSENTINEL_STORE_USER" in running.first_line
        raw = client(running)
        query(raw, "RETURN 1")
        answers: list[object] = []
        late = "SLEEP 700ms; CREATE late:1; RETURN 42"
        asking = threading.Thread(target=lambda: answers.append(query(raw, late)))
        asking.start()
        time.sleep(0.3)
        code, said = running.stop(number)
        asking.join()
        assert (code, answers) == (0, [42])
        # The engine may keep the gateway from hearing of the signal until the request is done: then none is under way.
        assert "everything is written" in said
    with Store.open(tmp_path) as store:  # the folder was given back
        connection = store._connection
        connection.query("USE NS tests DB x; SELECT * FROM late")
        assert connection.query("USE NS tests DB x; SELECT VALUE id FROM late") == [RecordID("late", 1)]


def test_a_folder_or_a_port_in_use_is_told(tmp_path: Path) -> None:
    lines: list[str] = []
    with Store.open(tmp_path), pytest.raises(StoreError, match=r"in use by this very process.*end that one first"):
        serve_store(tmp_path, "127.0.0.1", 0, lines.append)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StoreError, match=f"port {port} of 127.0.0.1 is in use: choose another one with --port"):
            serve_store(tmp_path, "127.0.0.1", port, lines.append)
    assert lines == []
    Store.open(tmp_path).close()


def test_another_host_needs_credentials_and_must_be_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = "192.0.2.1"  # reserved for documentation, so no machine has it
    for host in (elsewhere, "0.0.0.0", "::", "example.invalid"):
        with monkeypatch.context() as patched:
            for name in CREDENTIALS:
                patched.delenv(name)
            with pytest.raises(StoreError, match="can be reached from other machines: set CRYPTOSENTINEL_STORE_USER"):
                serve_store(tmp_path, host, 0, print)
            patched.setenv("CRYPTOSENTINEL_STORE_USER", "u")
            patched.setenv("CRYPTOSENTINEL_STORE_PASSWORD", "eleven-char")
            with pytest.raises(StoreError, match="has 11 characters: give at least 12"):
                serve_store(tmp_path, host, 0, print)
    with pytest.raises(StoreError, match=r"port 8765 of 192.0.2.1 cannot be opened \(.*\): choose another --port or"):
        serve_store(tmp_path, elsewhere, 8765, print)
    Store.open(tmp_path).close()


FULL = """
import resource, signal, sys
from backend.distributed.store_server import serve_store
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
serve_store(Path(sys.argv[1]), "127.0.0.1", int(sys.argv[2]), lambda line: print(line, flush=True))
"""


def test_a_full_disk_stops_the_gateway_and_both_sides_say_so(tmp_path: Path) -> None:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", FULL, str(tmp_path), str(port)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**CREDENTIALS),
    )  # fmt: skip
    try:
        assert process.stdout is not None and "listening" in process.stdout.readline()
        stored = 0
        with (
            Store.open(f"ws://127.0.0.1:{port}", patience=0.5) as store,
            pytest.raises(StoreError, match="is the disk full"),
        ):
            for step in range(1_000):
                store.add_metrics("r", step, {f"m{n}": float(step) for n in range(40)})
                stored = step + 1
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 1 and "RunFailed" in errors and "is the disk full? Free some space" in errors
    finally:
        process.kill()
        process.wait()
    with Store.open(tmp_path) as store:
        assert [record.step for record in store.metrics("r")] == list(range(stored))
