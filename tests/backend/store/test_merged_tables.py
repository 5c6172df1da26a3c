"""What the engine has merged does not stay in memory: a session of a month held nearly all of its journal by it.
And who writes much has it merged before it closes the database."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from surrealdb.data.cbor import decode

from backend.store.gateway import engine as engine_module
from backend.store.gateway.engine import Session, StoreEngine
from backend.store.gateway.rpc_messages import request

ROWS = 20
MERGES_AT = 4  # tables that it finds when it is opened
PATIENCE = 10.0  # seconds; a merge of so little takes some milliseconds


@pytest.mark.parametrize("reopened", [False, True])
def test_who_has_written_much_merges_it_before_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reopened: bool
) -> None:
    """So that no later opening has to, which may be by somebody who only looks."""
    tables, url, session = tmp_path / "db" / "sstables", f"surrealkv://{tmp_path / 'db'}", Session("it", "main")
    text = f"FOR $k IN 0..{ROWS} {{ CREATE type::record('row', $k) SET text = 'x'.repeat(2000) RETURN NONE }}"
    monkeypatch.setattr(engine_module, "LARGE_TABLE", 10_000)

    def large() -> set[str]:
        return {path.name for path in tables.iterdir() if path.stat().st_size > engine_module.LARGE_TABLE}

    engine = StoreEngine(url)
    answer = decode(engine.execute(session, request("query", ["USE NS it DB main; " + text])))
    assert {part["status"] for part in answer["result"]} == {"OK"}, answer
    written = engine.while_closed(large) if reopened else {f"{1:020d}.sst"}  # the first that a database has
    engine.close()
    assert len(large()) == 1 and not large() & written
    engine = StoreEngine(url)
    answer = decode(engine.execute(session, request("query", ["SELECT count() FROM row GROUP ALL"])))
    assert answer["result"][0]["result"] == [{"count": ROWS}]
    engine.close()


def test_a_database_that_has_merged_its_tables_is_opened_anew_once(tmp_path: Path) -> None:
    engine, tables = StoreEngine(f"surrealkv://{tmp_path / 'db'}"), tmp_path / "db" / "sstables"
    session = Session("cryptosentinel", "main")
    try:
        written, there = 0, 0
        while there < MERGES_AT:
            assert not engine.forget_merged()
            text = f"FOR $k IN 0..{ROWS} {{ CREATE type::record('row', {written} + $k) RETURN NONE }}"
            assert decode(engine.execute(session, request("query", [text])))["result"][0]["status"] == "OK"
            there = engine.while_closed(lambda: len([*tables.iterdir()]))
            written += ROWS
        until = time.monotonic() + PATIENCE
        while not engine.forget_merged():
            assert time.monotonic() < until, "nothing was merged"
            time.sleep(0.01)
        assert len([*tables.iterdir()]) < MERGES_AT and not engine.forget_merged()
        answer = decode(engine.execute(session, request("query", ["SELECT count() FROM row GROUP ALL"])))
        assert answer["result"][0]["result"] == [{"count": written}]
    finally:
        engine.close()
