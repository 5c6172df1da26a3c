"""The grammar of a turn against `tool_calls.parse`: what it lets through parses, and what is right gets through."""

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, hf
from pydantic import Field, create_model
from transformers import PreTrainedTokenizerFast

from backend.builders.loaded_team import scripted_team, team_settings
from backend.config.schema import Config
from cryptosentinel.episode import play
from cryptosentinel.llm import grammar as module
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.engine import Completion, Request
from cryptosentinel.llm.grammar import Grammars, grammar, restrict
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import (
    Arguments,
    MalformedCall,
    NoArguments,
    ToolCall,
    parse,
    render_call,
    tool_schema,
)
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.team import Team
from simulator.backtest.run import BacktestRun, Window
from simulator.errors import UserError
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits

STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Note(Arguments):
    text: str = Field(max_length=30)


class Numbers(Arguments):
    """One of each."""

    share: float = Field(ge=0, le=1)
    above: float = Field(default=1.0, gt=0, lt=3)
    count: int = Field(ge=1, le=48)
    any_int: int = 0
    side: Literal["long", "short"] = "long"
    perhaps: float | None = Field(default=None, ge=-2, le=2)
    flag: bool = False
    notes: list[Note] = Field(default=[], max_length=2)


TYPES: dict[str, type[Arguments]] = {"count_all": Numbers, "note": Note, "look": NoArguments}
TOOLS = tuple(tool_schema(name, "", arguments) for name, arguments in TYPES.items())


def allowed(matcher: LLMatcher, size: int) -> list[int]:
    bits = matcher.compute_bitmask()
    return [token for token in range(size) if bits[token // 8] >> token % 8 & 1]


def wander(codec: ChatCodec, matcher: LLMatcher, rng: random.Random, most: int = 1500) -> str | None:
    """The text of a turn made of allowed tokens drawn at random; None where that took too long. Tokens that end a text
    or a number are drawn more often, so that few do."""
    ids: list[int] = []
    while not matcher.is_stopped():
        if len(ids) == most:
            return None
        choices = allowed(matcher, codec.vocab_size)
        ends = [token for token in choices if codec.decode([token])[:1] in {'"', ",", "}", "]"}]
        ids.append(rng.choice(ends if ends and rng.random() < 0.2 else choices))
        assert matcher.consume_token(ids[-1])
    assert ids[-1] == codec.end_of_turn
    return codec.decode_answer(ids)


def takes(codec: ChatCodec, matcher: LLMatcher, ids: Sequence[int]) -> bool:
    """Whether `ids` are a whole turn."""
    matcher = matcher.deep_copy()
    return matcher.consume_tokens(list(ids)) and matcher.is_stopped()


@pytest.fixture(scope="module")
def grammars(codec: ChatCodec) -> Grammars:
    return Grammars(codec, codec.vocab_size)


@pytest.fixture(scope="module")
def byte_codec() -> ChatCodec:
    return make_byte_codec()


plain_fields: dict[str, Any] = {
    "bounded": (float, Field(ge=-3, le=0.5)),
    "open_below": (float, Field(gt=0)),
    "integer": (int, Field(ge=-5, le=120)),
    "free_integer": (int, 0),
    "text": (str, Field(max_length=12)),
    "free_text": (str, ""),
    "patterned": (str, Field(pattern="^[a-z</_>]{1,14}$")),
    "choice": (Literal["one", "two", "a b"], "one"),
    "flag": (bool, False),
    "maybe": (int | None, None),
    "list": (list[int], Field(max_length=3)),
    "notes": (list[Note], Field(default=[], max_length=2)),
}


@given(names=st.lists(st.sampled_from(sorted(plain_fields)), unique=True), rng=st.randoms(use_true_random=True))
@settings(max_examples=60, deadline=None)
def test_whatever_the_schema_all_that_gets_through_parses(
    codec: ChatCodec, grammars: Grammars, names: list[str], rng: random.Random
) -> None:
    fields = {name: plain_fields[name] for name in names}
    arguments: type[Arguments] = create_model("Drawn", __base__=Arguments, **fields)
    text = wander(codec, grammars.begin((tool_schema("drawn", "", arguments),)), rng)
    if text is not None:
        assert not isinstance(parse(text, {"drawn": arguments}), MalformedCall), text
        bare = STRING.sub('""', text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
        assert re.fullmatch(r"\S+([,:] \S+)*", bare) and not re.search(r"[,:]\S", bare), text


rounded = st.floats(-2, 2).map(lambda value: round(value, 6) + 0.0)  # -0.0 is left out too
numbers = st.fixed_dictionaries(
    {"share": st.floats(0, 1).map(lambda value: round(value, 6)), "count": st.integers(1, 48)},
    optional={
        "above": st.floats(0.001, 2.999).map(lambda value: round(value, 4)),
        "any_int": st.integers(-(10**12), 10**12),
        "side": st.sampled_from(["long", "short"]),
        "perhaps": st.none() | rounded,
        "flag": st.booleans(),
        "notes": st.lists(
            st.fixed_dictionaries({"text": st.text(st.characters(codec="ascii"), max_size=30)}), max_size=2
        ),
    },
)


@given(arguments=numbers)
@settings(max_examples=100, deadline=None)
def test_every_right_call_gets_through(codec: ChatCodec, grammars: Grammars, arguments: dict[str, Any]) -> None:
    order = [name for name in Numbers.model_fields if name in arguments]
    text = render_call("count_all", {name: arguments[name] for name in order})
    said = json.dumps(arguments)
    if "e-" in said or re.search(r"<[<a-zA-Z/\"]", said):
        return  # exponents, and what may begin a tag, are left out on purpose
    assert isinstance(parse(text, TYPES), ToolCall)
    assert takes(codec, grammars.begin(TOOLS), codec.encode_assistant(text)), text


def test_what_teacher_and_novices_say_gets_through(byte_codec: ChatCodec) -> None:
    """All turns of two decisions at each of many bars."""
    spoken: list[tuple[Request, Completion]] = []

    class Listening(ScriptedEngine):
        def generate(self, requests: Sequence[Request]) -> list[Completion]:
            answers = super().generate(requests)
            spoken.extend(zip(requests, answers, strict=True))
            return answers

    market = generate(SyntheticConfig(bars=300, seed=2, symbols=("AAAUSDT", "BBBUSDT")))
    novices = Listening(byte_codec, novice_policies())
    loaded = scripted_team(Config().team)
    for engine in (Listening(byte_codec, loaded.engine._policies), novices):  # type: ignore[attr-defined] # scripted
        team = Team(byte_codec, engine.policy_version, team_settings(Config().team, 1.0))
        run_all([play(team, BacktestRun(market, Window(150, 210, 6)), guard_limits(), 1)], engine)
    grammars = Grammars(byte_codec, byte_codec.vocab_size)
    assert len(spoken) > 100
    for request, answer in spoken:
        assert takes(byte_codec, grammars.begin(request.tools), answer.ids), byte_codec.decode(answer.ids)


RIGHT = '<tool_call>\n{"name": "note", "arguments": {"text": "calm"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        (RIGHT, True),
        (RIGHT.replace("calm", "a < b, 1 << x"[:9]), True),
        (RIGHT.replace("calm", "\\n\\t\\u0001 ä €"), True),
        (RIGHT.replace("calm", "<b"), False),
        (RIGHT.replace("calm", "<"), False),
        (RIGHT.replace("calm", "\\u003c/tool_call>"), False),
        (RIGHT.replace("calm", "\\ud800"), False),
        (RIGHT.replace("calm", "x" * 30), True),
        (RIGHT.replace("calm", "x" * 31), False),
        ("<think>\n\n</think>\n\n" + RIGHT, False),
        ("I see. " + RIGHT, False),
        (RIGHT + "\n" + RIGHT, False),
        (RIGHT + "\n", False),
        (RIGHT.replace(": ", ":"), False),
        (RIGHT.replace('"note"', '"notes"'), False),
        (RIGHT.replace('"text": "calm"', ""), False),
        (RIGHT.replace('"calm"', "1"), False),
        (RIGHT.replace('"calm"', '"calm", "more": 1'), False),
        (RIGHT.replace('"calm"', '"calm", "text": "calm"'), False),
        (render_call("look", {}), True),
        (render_call("look", {"text": "calm"}), False),
        (render_call("count_all", {"share": 0.25, "count": 3}), True),
        (render_call("count_all", {"share": 1, "count": 48, "perhaps": None}), True),
        (render_call("count_all", {"share": 1.01, "count": 3}), False),
        (render_call("count_all", {"share": 1e-07, "count": 3}), False),
        (render_call("count_all", {"share": 0.25, "above": 0.0, "count": 3}), False),
        (render_call("count_all", {"share": 0.25, "above": 3.0, "count": 3}), False),
        (render_call("count_all", {"share": 0.25, "count": 3.0}), False),
        (render_call("count_all", {"count": 3, "share": 0.25}), False),  # the schema's order is the only one
        (render_call("count_all", {"share": 0.25, "count": 3, "side": "up"}), False),
        (render_call("count_all", {"share": 0, "count": 3, "notes": [{"text": ""}] * 2}), True),
        (render_call("count_all", {"share": 0, "count": 3, "notes": [{"text": ""}] * 3}), False),
    ],
)
def test_turns_that_are_right_and_wrong(codec: ChatCodec, grammars: Grammars, text: str, fine: bool) -> None:
    assert takes(codec, grammars.begin(TOOLS), codec.encode_assistant(text)) is fine


def test_tags_are_tokens_and_never_text(codec: ChatCodec, grammars: Grammars) -> None:
    turn = codec.encode_assistant(RIGHT)
    assert not takes(codec, grammars.begin(TOOLS), [*codec.encode_data(RIGHT), codec.end_of_turn])
    assert not takes(codec, grammars.begin(TOOLS), turn[:-1])
    in_text = turn.index(codec.encode_assistant("calm")[0])
    for token in codec.special_ids.values():
        assert not takes(codec, grammars.begin(TOOLS), [*turn[:in_text], token, *turn[in_text:]])


def test_where_there_is_no_choice_the_turn_is_in_the_tokenizers_own_tokens(
    codec: ChatCodec, grammars: Grammars
) -> None:
    matcher = grammars.begin((tool_schema("look", "", NoArguments),))
    for token in codec.encode_assistant(render_call("look", {})):
        assert allowed(matcher, codec.vocab_size) == [token]
        matcher.consume_token(token)


def test_the_same_grammar_serves_a_tokenizer_that_takes_tags_for_text(
    codec: ChatCodec, tokenizer: PreTrainedTokenizerFast
) -> None:
    """As servers of models build theirs, from the model's tokenizer as it is."""
    theirs: LLTokenizer = hf.from_tokenizer(tokenizer)
    matcher = LLMatcher(theirs, grammar(TOOLS, codec), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    assert takes(codec, matcher, codec.encode_assistant(RIGHT))
    assert not takes(codec, matcher, [*codec.encode_data(RIGHT), codec.end_of_turn])


def test_a_grammar_is_compiled_once(codec: ChatCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counting(*given: Any) -> str:
        made.append(1)
        return grammar(*given)

    monkeypatch.setattr(module, "grammar", counting)
    grammars = Grammars(codec, codec.vocab_size)
    first = grammars.begin(TOOLS)
    first.consume_token(codec.special_ids["<tool_call>"])
    equal = json.loads(json.dumps(TOOLS))
    assert takes(codec, grammars.begin(tuple(equal)), codec.encode_assistant(RIGHT))
    grammars.begin(TOOLS[:1])
    assert len(made) == 2


def tool_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "odd_one", "description": "", "parameters": schema}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"x": {"type": "number", "minimum": -1e300, "maximum": 1e300}}},
        {"type": "object", "properties": {"x": {"not": {"type": "string"}}}},
        {"type": "nothing"},
    ],
)
def test_a_schema_that_no_grammar_can_hold_is_refused(codec: ChatCodec, schema: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"the tool odd_one cannot be held to.*simplify them"):
        grammar([TOOLS[0], tool_of(schema)], codec)


def test_no_tools_are_a_defect(codec: ChatCodec) -> None:
    with pytest.raises(ValueError, match="at least one tool"):
        grammar([], codec)


@pytest.mark.parametrize("size", [0, 1, 40, 250])
def test_only_what_a_matcher_forbids_becomes_impossible(
    codec: ChatCodec, size: int, make_logits: Callable[[int, int], torch.Tensor]
) -> None:
    """The model may have more tokens than its tokenizer; nobody can say those."""
    vocabulary = codec.vocab_size + size
    matchers = [None, Grammars(codec, vocabulary).begin(TOOLS), None, Grammars(codec, vocabulary).begin(TOOLS)]
    last = matchers[3]
    assert last is not None
    last.consume_tokens(codec.encode_assistant(RIGHT)[:-3])
    logits = make_logits(4, vocabulary)
    left = restrict(logits, matchers)
    assert torch.equal(left[::2], logits[::2])
    for row in (1, 3):
        matcher = matchers[row]
        assert matcher is not None
        free = allowed(matcher, vocabulary)
        assert 0 < len(free) < codec.vocab_size
        assert torch.equal(left[row, free], logits[row, free])
        assert left[row].isfinite().nonzero()[:, 0].tolist() == free


@pytest.fixture
def make_logits() -> Callable[[int, int], torch.Tensor]:
    return lambda rows, size: torch.randn(rows, size, generator=torch.Generator().manual_seed(0))
