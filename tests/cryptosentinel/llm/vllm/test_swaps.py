"""Adapters of roles on a server: loaded, swapped while requests run, unloaded when nothing needs them."""

import threading
import time
from pathlib import Path

import pytest

from cryptosentinel.llm.vllm.engine import VllmEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import AgentTask
from simulator.errors import RunFailed, UserError
from tests.mock_vllm import MODEL, MockVllm
from tests.vllm_scenes import adapter_in, engine_for, expected, request, until


def test_an_adapter_that_someone_unloaded_is_loaded_again(mock: MockVllm, engine: VllmEngine, tmp_path: Path) -> None:
    engine.publish("manager", "v1", adapter_in(tmp_path, "v1"))
    another = engine_for(mock)
    another.publish("trader", "v1", adapter_in(tmp_path, "v1"))
    another.close()
    assert not mock.adapters
    wanted = [request(seed) for seed in range(8)]
    assert engine.generate(wanted) == [expected(mock, one, "v1") for one in wanted]
    mock.adapters.clear()
    (tmp_path / "v1" / "adapter_config.json").unlink()
    (tmp_path / "v1").rmdir()
    with pytest.raises(RunFailed, match=r"no longer serves 'v1' to us .*No adapter found for .*v1"):
        engine.generate([request()])


def test_roles_answer_with_their_own_adapters(mock: MockVllm, engine: VllmEngine, tmp_path: Path) -> None:
    assert engine.policy_version("manager") == engine.policy_version("trader") == "base"
    engine.publish("manager", "m1", adapter_in(tmp_path, "m1"))
    engine.publish("trader", "t1", adapter_in(tmp_path, "t1"))
    roles = {"manager": "m1", "trader": "t1"}
    answers = engine.generate([request(1, role) for role in roles])
    assert answers == [expected(mock, request(1, role), model) for role, model in roles.items()]
    assert len({expected(mock, request(), model).ids for model in (MODEL, "m1", "t1")}) == 3
    assert engine.policy_version("manager") == "m1" and engine.policy_version("risk_analyst") == "base"
    assert mock.adapters == {"m1": str(tmp_path / "m1"), "t1": str(tmp_path / "t1")}


def test_base_model_and_adapters_never_share_a_batch(mock: MockVllm, engine: VllmEngine, tmp_path: Path) -> None:
    mock.gate.clear()
    under_way = engine.submit(request())
    with pytest.raises(ValueError, match="while requests of the base model are under way"):
        engine.publish("manager", "v1", adapter_in(tmp_path, "v1"))
    mock.gate.set()
    assert under_way.result().failure is None
    until(lambda: not mock.running.total())
    engine.publish("manager", "v1", adapter_in(tmp_path, "v1"))
    with pytest.raises(ValueError, match="trader has no adapter although other roles have"):
        engine.submit(request(1, "trader"))


def test_a_version_is_loaded_once_and_can_come_back(mock: MockVllm, engine: VllmEngine, tmp_path: Path) -> None:
    for role in ("manager", "trader"):
        engine.publish(role, "same", adapter_in(tmp_path, "same"))
    assert mock.events.count(("load", "same")) == 1
    for version in ("v1", "v2", "v1", "v3", "v4", "v1"):
        engine.publish("manager", version, adapter_in(tmp_path, version))
        assert engine.generate([request()]) == [expected(mock, request(), version)]
    until(lambda: set(mock.adapters) == {"v1", "v4", "same"})


def test_a_version_that_comes_back_is_loaded_after_its_unloading(
    mock: MockVllm, engine: VllmEngine, tmp_path: Path
) -> None:
    mock.unload_latency = 0.2
    for version in ("v1", "v2", "v3", "v1"):
        engine.publish("manager", version, adapter_in(tmp_path, version))
    until(lambda: ("unload", "v2") in mock.events)
    of_v1 = [event for event in mock.events if event[1] == "v1"]
    assert of_v1 == [("load", "v1"), ("unload", "v1"), ("load", "v1")] and "v1" in mock.adapters


def test_versions_may_change_while_many_talk(mock: MockVllm, engine: VllmEngine, tmp_path: Path) -> None:
    """Every answer is that of one version, whole."""
    mock.latency = 0.01
    names = [f"v{number % 5}" for number in range(20)]  # each comes back after it was unloaded
    engine.publish("manager", names[0], adapter_in(tmp_path, names[0]))
    ended = threading.Event()

    def publish_all() -> None:
        for name in names[1:]:
            engine.publish("manager", name, adapter_in(tmp_path, name))
            time.sleep(0.02)
        ended.set()

    publisher = threading.Thread(target=publish_all)
    publisher.start()
    seen: set[str] = set()

    def talk(number: int) -> AgentTask[None]:
        turn = 0
        while not ended.is_set() or turn < 3:
            wanted = request(1000 * number + turn)
            (answer,) = yield [wanted]
            assert answer.failure is None
            seen.update(name for name in set(names) if expected(mock, wanted, name) == answer)
            turn += 1

    run_all([talk(number) for number in range(6)], engine)
    publisher.join()
    assert len(seen) > 2 and names[-1] in seen
    until(lambda: set(mock.adapters) >= set(names[-2:]))


def test_a_loading_whose_answer_was_lost_counts(mock: MockVllm, engine: VllmEngine, tmp_path: Path) -> None:
    mock.drop_load_answers = 1
    engine.publish("manager", "v1", adapter_in(tmp_path, "v1"))
    assert engine.generate([request()]) == [expected(mock, request(), "v1")]


def test_an_adapter_that_cannot_be_loaded_changes_nothing(mock: MockVllm, engine: VllmEngine, tmp_path: Path) -> None:
    engine.publish("manager", "v1", adapter_in(tmp_path, "v1"))
    with pytest.raises(UserError, match=r"no adapter_config\.json"):
        engine.publish("manager", "v2", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="name of the base model"):
        engine.publish("manager", MODEL, adapter_in(tmp_path, "v2"))
    mock.rank_error = True
    with pytest.raises(UserError, match=r"greater than max_lora_rank 8.*--max-lora-rank"):
        engine.publish("manager", "v2", adapter_in(tmp_path, "v2"))
    assert mock.events.count(("refuse", "v2")) == 1
    assert engine.policy_version("manager") == "v1"
    assert engine.generate([request()]) == [expected(mock, request(), "v1")]
    mock.rank_error = False
    engine.publish("manager", "v2", adapter_in(tmp_path, "v2"))
    assert engine.generate([request()]) == [expected(mock, request(), "v2")]


def test_close_takes_our_adapters_off_and_ends_the_thread(mock: MockVllm, tmp_path: Path) -> None:
    before = threading.active_count()
    engine = engine_for(mock)
    mock.adapters["another's"] = "elsewhere"
    engine.publish("manager", "v1", adapter_in(tmp_path, "v1"))
    engine.close()
    assert set(mock.adapters) == {"another's"}
    until(lambda: not [one for one in threading.enumerate() if one.name == "vllm-client"] or before > 1)
