"""What the engine has merged does not stay in memory: a session of a month held nearly all of its journal by it."""

from __future__ import annotations

import time
from pathlib import Path

from surrealdb.data.cbor import decode

from backend.store.gateway.engine import Session, StoreEngine
from backend.store.gateway.rpc_messages import request

ROWS = 20
MERGES_AT = 4  # tables that it finds when it is opened
PATIENCE = 10.0  # seconds; a merge of so little takes some milliseconds


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
