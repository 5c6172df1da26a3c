"""Which adapters stay on the server: never one that is in use, and no more than that."""

from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.llm.vllm.adapters import Adapters

ROLES = ("manager", "analyst", "trader")
VERSIONS = ("v1", "v2", "v3", "v4")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("switch"), st.sampled_from(ROLES), st.sampled_from(VERSIONS)),
        st.tuples(st.just("take"), st.sampled_from(ROLES), st.just("")),
        st.tuples(st.just("give back"), st.integers(0, 5).map(str), st.just("")),
    ),
    max_size=40,
)


@given(STEPS)
def test_what_is_loaded_is_what_may_be_needed(steps: list[tuple[str, str, str]]) -> None:
    adapters = Adapters()
    history: dict[str, list[str]] = {role: [] for role in ROLES}
    flying: list[str | None] = []
    for what, which, version in steps:
        before = set(adapters.loaded)
        freed: list[str] = []
        if what == "switch":
            freed = adapters.switch(which, version)
            before.add(version)
            if history[which][-1:] != [version]:
                history[which].append(version)
        elif what == "take":
            flying.append(adapters.take(which))
            assert flying[-1] == (history[which][-1] if history[which] else None)
        elif flying:
            freed = adapters.give_back(flying.pop(int(which) % len(flying)))
        assert adapters.base_in_use == (None in flying)
        needed = {one for past in history.values() for one in past[-2:]} | {one for one in flying if one is not None}
        assert adapters.loaded == needed
        assert sorted(freed) == sorted(before - needed)
        for role in ROLES:
            assert adapters.current(role) == (history[role][-1] if history[role] else None)
