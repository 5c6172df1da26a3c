"""What `train --launch ray` says before it starts anything: no Ray, no cluster, no room, other code."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from backend.cli.main import app
from backend.config.load import config_from_dict
from backend.config.schema import Config, ConfigError
from backend.distributed import cluster as module
from backend.distributed.actor import ServicePlace
from backend.distributed.cluster import LOCAL, cluster, cluster_address
from backend.distributed.placement import CPU_SHARES, GPU_SHARES, Capacity, allocate
from backend.runs.train import OnRay
from backend.store.run_record import code_version
from simulator.errors import UserError


def config_of(kind: str, url: str) -> Config:
    engine = {"kind": kind, "url": url} if url else {"kind": kind}
    return config_from_dict({"engine": engine}, "test")


@given(
    machines=st.lists(
        st.builds(Capacity, st.integers(0, 90).map(lambda tenths: tenths / 10), st.integers(0, 4).map(float)),
        max_size=5,
    ),
    workers=st.integers(1, 8),
    roles=st.integers(1, 4),
    engine=st.sampled_from([("local", ""), ("vllm", ""), ("vllm", "http://127.0.0.1:8000")]),
)
def test_what_is_given_out_is_there(
    machines: list[Capacity], workers: int, roles: int, engine: tuple[str, str]
) -> None:
    """Each resource by itself: all processes can be put on the machines; who is refused would not have fitted."""
    config = config_of(*engine)
    try:
        rollout, trainer = allocate(machines, config, workers, roles)
    except ConfigError as error:
        servers = engine == ("vllm", "") and sum(int(one.gpus) for one in machines) < workers
        assert servers or sum(int(one.cpus / CPU_SHARES[-1]) for one in machines) < workers + roles, str(error)
        return
    for left, shares in (
        ([one.cpus for one in machines], [rollout.cpus] * workers + [trainer.cpus] * roles),
        ([one.gpus for one in machines], [rollout.gpus] * workers + [trainer.gpus] * roles),
    ):
        for share in sorted(shares, reverse=True):
            place = left.index(max(left))
            left[place] -= share
            assert left[place] >= -1e-9
    assert min(rollout.cpus, trainer.cpus) > 0.0
    assert trainer.gpus in (0.0, *GPU_SHARES)
    has_gpus = sum(one.gpus for one in machines) > 0
    assert (rollout.gpus == 1.0) or engine != ("vllm", "") or not has_gpus, "a server without a GPU of its own"


def test_too_small_a_cluster_is_refused_with_numbers() -> None:
    config = config_of("local", "")
    with pytest.raises(ConfigError, match=r"9 rollout workers and 4 trainers need 0.25 CPUs each.* have 1, 2: lower"):
        allocate([Capacity(1.0, 0.0), Capacity(2.0, 0.0)], config, 9, 4)
    with pytest.raises(ConfigError, match=r"each of the 2 rollout workers.* have 1: lower --workers, or .*engine.url"):
        allocate([Capacity(8.0, 1.0)], config_of("vllm", ""), 2, 4)


def test_the_address_is_checked_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(module.ADDRESS, raising=False)
    assert cluster_address("", "runs/store") == LOCAL
    assert cluster_address("10.0.0.1:6379", "ws://10.0.0.1:8765") == "10.0.0.1:6379"
    for wrong in ("ray://10.0.0.1:10001", "10.0.0.1", "head"):
        with pytest.raises(ConfigError, match=f"--ray-address {wrong}: give HOST:PORT"):
            cluster_address(wrong, "ws://10.0.0.1:8765")
    with pytest.raises(
        ConfigError, match=r"cannot open the folder --store runs/store: start a SurrealDB .*ws:// address"
    ):
        cluster_address("auto", "runs/store")
    monkeypatch.setenv(module.ADDRESS, "10.0.0.2:6379")
    assert cluster_address("", "wss://store") == "10.0.0.2:6379"


@pytest.mark.parametrize("given", [("--ray-address", "auto"), ("--files", "s3://bucket/runs")])
def test_options_of_ray_need_ray(given: tuple[str, str]) -> None:
    result = CliRunner().invoke(app, ["train", "--config", "quick", *given])
    assert isinstance(result.exception, UserError) and "are for --launch ray" in str(result.exception)


@pytest.mark.parametrize(
    ("store", "files", "words"),
    [("mem://", "", "in this process alone"), ("runs/store", "nothing://x", "--files nothing://x cannot be used")],
)
def test_what_actors_cannot_reach_is_refused(store: str, files: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        OnRay(store, 1, files, "").check(config_of("local", ""))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--launch ray needs Ray, .*cryptosentinel\[ray\]"):
        cluster_address("", "runs/store")


def test_who_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no Ray cluster answers at {address}"), cluster(address):
            pass
        nobody.listen(5)  # and from here on somebody takes calls and never says a word
        monkeypatch.setattr(module, "_ANSWER", 2.0)
        with pytest.raises(UserError, match=f"at {address} "), cluster(address):
            pass


def test_a_machine_with_other_code_or_another_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    config = config_of("local", "")

    def place(code: str = code_version(), token: str = "a", url: str = "") -> ServicePlace:
        return ServicePlace(config, "ws://store", "run", tmp_path, tmp_path, url, code, token)

    place().token_path().write_text("a")
    place().require_same()
    place(token="b", url="s3://bucket").require_same()
    with pytest.raises(UserError, match=r"has version .* of this program, and here it is 0.0.0"):
        place(code="0.0.0").require_same()
    with pytest.raises(UserError, match=r"does not share the folder .* or --files an fsspec URL"):
        place(token="b").require_same()
    place().token_path().unlink()
    with pytest.raises(UserError, match="does not share the folder"):
        place().require_same()
