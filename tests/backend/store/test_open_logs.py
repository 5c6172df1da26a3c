"""Logs are followed as they grow: no byte is missed, whichever log it comes in and however they come and go."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.store.integrity.open_logs import Extent, OpenLogs, logs_of

CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from([1, 100, (1 << 14) - 1, 1 << 14, (1 << 20) + 20_000])),
        st.tuples(st.sampled_from(["new log", "remove the oldest", "ask"]), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(changes=CHANGES)
def test_no_byte_is_missed(changes: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """As the engine does: it appends to the newest log, begins another one, and removes what is in tables."""
    database: Path = tmp_path_factory.mktemp("db")
    (database / "wal").mkdir()
    logs = OpenLogs(str(database))
    known: dict[str, Extent] = {}
    number = 0
    for what, size in [*changes, ("ask", 0)]:
        if what == "new log":
            number += 1
            (database / "wal" / f"{number:020d}.wal").touch()
        elif what == "write":
            with (database / "wal" / f"{number:020d}.wal").open("ab") as log:
                log.write(bytes([size % 251]) * size)
        elif what == "remove the oldest":
            for name in logs_of(str(database))[:-1][:1]:
                (database / name).unlink()
        else:
            known.update(logs.grown(known))
            assert logs.grown(known) == {}
            for name in logs_of(str(database)):
                content = (database / name).read_bytes()
                assert logs.has(name) and known.get(name, (0, 0)) == (len(content), zlib.crc32(content))
            assert not any(logs.has(name) for name in known.keys() - set(logs_of(str(database))))
    logs.close()
    logs.close()


def test_a_database_without_logs_has_none_that_grow(tmp_path: Path) -> None:
    logs = OpenLogs(str(tmp_path))
    assert logs.grown({}) == {} and logs_of(str(tmp_path)) == []
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "1.wal").write_bytes(b"now there is one")
    assert logs.grown({}) == {"wal/1.wal": (16, zlib.crc32(b"now there is one"))}
    logs.close()
