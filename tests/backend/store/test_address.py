"""The file that tells the user's own programs where the store is served and how to sign in: nobody else may use it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from backend.store import Store, StoreError
from backend.store.gateway import address
from backend.store.gateway.address import FILE, Address
from backend.store.gateway.credentials import random_account
from backend.store.lock import FolderLock


def published(launch: str = "one") -> Address:
    return Address(launch, "ws://127.0.0.1:1", random_account("writer"), random_account("reader", reads_only=True))


def test_it_comes_back_and_holds_for_one_launch(tmp_path: Path) -> None:
    there = published()
    address.publish(tmp_path, there)
    assert address.find(tmp_path, "one") == there
    assert address.find(tmp_path, "another") is None
    address.withdraw(tmp_path)
    assert address.find(tmp_path, "one") is None
    assert os.listdir(tmp_path) == []


def test_nobody_else_could_read_it_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[tuple[int, int]] = []
    opened = os.open

    def noted(path: str | Path, flags: int, mode: int = 0o777, **more: int) -> int:
        created.append((flags, mode))
        return opened(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", noted)
    former = os.umask(0)
    try:
        address.publish(tmp_path, published())
    finally:
        os.umask(former)
    (flags, mode), *rest = created
    assert not rest and mode == 0o600
    assert flags & os.O_EXCL and flags & os.O_CREAT and flags & os.O_NOFOLLOW
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("name", [FILE, "lock"])
def test_a_planted_link_is_refused_and_what_it_names_is_left_alone(tmp_path: Path, name: str) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "store"
    victim.write_text("precious")
    folder.mkdir()
    (folder / name).symlink_to(victim)
    for _ in range(2):
        with pytest.raises(StoreError, match=rf"{name} is a link.*find out who put it there"):
            Store.open(folder)
    assert victim.read_text() == "precious" and (folder / name).is_symlink()
    (folder / name).unlink()
    Store.open(folder).close()


def test_a_planted_link_is_not_read_either(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    address.publish(tmp_path / "elsewhere", published())
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere" / FILE)
    with pytest.raises(StoreError, match="is a link"):
        address.find(tmp_path, "one")


def test_what_another_user_wrote_or_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address.publish(tmp_path, published())
    for mode in (0o640, 0o604, 0o620):
        (tmp_path / FILE).chmod(mode)
        with pytest.raises(StoreError, match="can be read by others"):
            address.find(tmp_path, "one")
    (tmp_path / FILE).chmod(0o600)
    os.link(tmp_path / FILE, tmp_path / "second name")
    with pytest.raises(StoreError, match="no file of its own"):
        address.find(tmp_path, "one")
    (tmp_path / "second name").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(StoreError, match="a file of another user"):
        address.find(tmp_path, "one")
    with pytest.raises(StoreError, match="a file of another user"):
        address.publish(tmp_path, published())
    address.withdraw(tmp_path)  # not ours
    assert (tmp_path / FILE).exists()


def test_a_store_of_another_user_says_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system answers to one who may not read the file, or not lock the folder."""
    address.publish(tmp_path, published())

    def refused(path: str | Path, flags: int, mode: int = 0o777) -> int:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "lock").touch()
    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(StoreError, match=r"is in use by a program of .*, which serves it to programs of that"):
        address.find(tmp_path, "one")
    with pytest.raises(StoreError, match=r"its lock belongs to .*: only programs of that user can use it"):
        FolderLock(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", '{"launch": "one"}', "[" * 3000, json.dumps({"launch": "one", "url": 1, "writer": 2}),
     json.dumps({"launch": "one", "url": "ws://x", "writer": {"user": "u"}, "reader": {}})],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    (tmp_path / FILE).chmod(0o600)
    assert address.find(tmp_path, "one") is None


def test_the_file_lies_there_while_the_folder_is_held_and_no_longer(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        found = json.loads((tmp_path / FILE).read_text())
        assert found["url"] == store.address
        assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
        assert len({found["writer"]["password"], found["reader"]["password"]}) == 2
        first = found["writer"]["password"]
        assert len(first) > 40 and first not in repr(published()) + repr(store)
    assert not (tmp_path / FILE).exists()
    with Store.open(tmp_path):
        assert json.loads((tmp_path / FILE).read_text())["writer"]["password"] != first
