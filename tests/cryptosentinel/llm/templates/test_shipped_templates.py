"""The templates that TRL ships: each is written, read again, and closed to whatever data tries."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.templates import FormatReport, described_format
from cryptosentinel.protocol.tool_calls import Arguments, ToolCall, render_call, tool_schema
from scripts.template_table import PAGE, judged, shipped_templates, table, tokenizer_for
from tests.test_architecture import ROOT

TEMPLATES = shipped_templates()
pytestmark = pytest.mark.skipif(not TEMPLATES, reason="TRL, which ships the templates, is not installed")

# One of each way to write calls, and the ones that are most unlike others.
KINDS = [
    "qwen3_6", "glm4moe", "llama3_1", "gptoss", "gemma4_v5", "lfm2_v2", "deepseekv3", "cohere2", "phi3",
    "gemma", "qwen3_training",
]  # fmt: skip


class Look(Arguments):
    symbol: str
    size: float


SCHEMA = tool_schema("look", "Look at a coin.", Look)


def test_the_page_counts_all_of_them() -> None:
    assert len(TEMPLATES) == 72
    page = PAGE.read_text(encoding="utf-8")
    assert PAGE.is_relative_to(ROOT) and table().splitlines()[0] in page


@pytest.mark.parametrize("name", KINDS)
def test_a_conversation_is_read_as_it_was_written(name: str) -> None:
    codec, _ = described_format(tokenizer_for(TEMPLATES[name]), PAGE.parent)
    call = render_call("look", {"size": -0.25, "symbol": "C1"})  # some templates sort the names
    ids = codec.start("Be brief.", "Look at C1.", [SCHEMA])
    spoken = codec.encode_assistant(call)
    assert codec.parse(codec.decode_answer(spoken), {"look": Look}) == ToolCall("look", Look(symbol="C1", size=-0.25))
    assert spoken[-1] in codec.ends and not set(spoken[:-1]) & codec.ends
    ids += spoken + codec.tool_response('{"price": "1\\n"}', "look") + codec.encode_assistant("Done.")
    ids += codec.user_turn("Go on.") + codec.encode_assistant(call)
    assert codec.messages(ids) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look at C1."},
        {"role": "assistant", "content": call},
        {"role": "tool", "content": '{"price": "1\\n"}'},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": call},
    ]


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_data_is_ever_structure(name: str, data: st.DataObject) -> None:
    """The template's own special tokens in system text, user text, tool results and tools stay text: the special
    tokens of a conversation are those of the same one with harmless words."""
    codec, _ = _codecs.setdefault(name, described_format(tokenizer_for(TEMPLATES[name]), PAGE.parent))
    special = sorted(codec.special_ids)
    hostile = st.lists(st.sampled_from([*special, "a", " ", "\n", "}", '"']), min_size=1, max_size=8).map("".join)
    words = [data.draw(hostile) for _ in range(4)]

    def structure(system: str, user: str, heard: str, described: str) -> list[int]:
        tool = {**SCHEMA, "function": {**SCHEMA["function"], "description": described}}
        ids = codec.start(system, user, [tool]) + codec.encode_assistant(
            render_call("look", {"symbol": "C1", "size": 1})
        )
        ids += codec.tool_response(heard, heard) + codec.user_turn(heard)
        return [index for index in ids if index in set(codec.special_ids.values())]

    assert structure(*words) == structure("one", "two", "three", "four")
    for word in words:
        assert not set(codec.encode_data(word)) & set(codec.special_ids.values())
        assert codec.decode(codec.encode_data(word)) == word


_codecs: dict[str, tuple[ChatFormat, FormatReport]] = {}


def test_only_templates_of_models_that_see_are_refused_and_each_says_what_differs() -> None:
    reports = {name: judged(template) for name, template in TEMPLATES.items()}
    refused = {name.partition("_")[0] for name, report in reports.items() if isinstance(report, Exception)}
    assert refused == {"idefics3", "llava", "smolvlm"}
    for report in reports.values():
        assert isinstance(report, Exception) or (report.verdict == "exact") == (not report.differs)
