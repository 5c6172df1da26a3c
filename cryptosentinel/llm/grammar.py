"""Constrained decoding: a grammar of the turns that a role's tools allow, and what it leaves of the next token.

One turn is one call, written as the codec's syntax writes it, and the end of the turn. In Qwen's:

    <tool_call>\\n{"name": "get_trend", "arguments": {}}\\n</tool_call><|im_end|>

The grammar is in llguidance's dialect of Lark (its `docs/syntax.md` and `docs/json_schema.md`), the language of vLLM's
guidance backend too. Special tokens stand in it by id, so that no text can be taken for one.

What it holds a turn to: the tool's name; which arguments there are and must be, in the schema's order; their types,
choices and lengths, and the bounds of numbers (an integer has no fraction, a bounded number no exponent, 0 no minus);
text in which no tag of the chat format can be spelled; positions that name no coin twice; arguments that go with
some values of others alone (`tool_schemas.KINDS`). What neither says is still for `tool_calls.parse` to refuse: other
rules over several arguments, a number without bounds that no float can hold, and an answer of more than
`tool_calls.MAX_ANSWER_CHARS`. Letters beyond ASCII are written as they are, not as JSON's escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.protocol.syntaxes import ChoiceOf, GrammarPart, TextPart
from cryptosentinel.protocol.tool_schemas import IN_TURN, KINDS, kinds_of
from simulator.errors import UserError

# '<' only where no tag can begin with it: a tag in a string would end or begin a call, as `tool_calls.parse` reads it.
_NO_TAG = "^([^<]|<+[^<a-zA-Z/])*$"
_SPACING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_MOST_GRAMMARS = 64  # a team has one a role, or two where it thinks
_LEADS = ("<|start|>",)  # special tokens that may stand between a thought and a call
_NAMED = ("properties", "patternProperties", "$defs")  # keys of a schema that hold schemas by name
_WORD = 32  # bits in a word of a bitmask


def grammar(tools: Sequence[Mapping[str, Any]], codec: ChatFormat, lead: str = "", opening: Sequence[int] = ()) -> str:
    """The Lark grammar of one turn in which one of `tools` is called.

    `tools` are in the form of OpenAI's chat completions (`Role.schemas`). The turn begins behind the assistant header,
    or, with `lead`, behind a thought; there is no thought in it. Raises `UserError` for a tool whose schema cannot be
    made into a grammar. With `opening`, the ids that open a thought, these alone are allowed too.
    """
    if not tools:
        raise ValueError("a grammar needs at least one tool")
    calls = [_call(number, tool["function"], codec) for number, tool in enumerate(tools)]
    begin, end = (_literal(text, codec) for text in codec.syntax.frame)
    turn = " ".join(filter(None, (_literal(lead, codec), begin, "call", end, f"<[{codec.end_of_turn}]>")))
    opened = f" | {' '.join(f'<[{one}]>' for one in opening)}" if opening else ""
    return f"start: {turn}{opened}\ncall: {' | '.join(f'call_{number}' for number in range(len(calls)))}\n" + "".join(
        calls
    )


def why_no_grammar(codec: ChatFormat) -> str | None:
    """Why the turns of this chat format cannot be constrained; None where they can."""
    probe = {"function": {"name": "probe", "parameters": {"type": "object", "properties": {}}}}
    try:
        Grammars(codec, codec.vocab_size).begin((probe,))
    except UserError as error:
        return str(error)
    return None


class Grammars:
    """Compiled grammars of the turns of one tokenizer, for a model of `vocab_size` tokens. They are kept: all requests
    of a role have the same tools."""

    def __init__(self, codec: ChatFormat, vocab_size: int) -> None:
        self._codec = codec
        definition = json.loads(codec.tokenizer.to_str())
        definition["truncation"] = definition["padding"] = None
        for token in definition["added_tokens"]:
            token["special"] = True  # tags of calls are text to users, and never text to a grammar
        if (definition.get("decoder") or {}).get("type") == "Metaspace":
            definition["decoder"] = _spaces_by(definition["decoder"].get("replacement", "▁"))
        try:
            self._tokenizer = LLTokenizer(json.dumps(definition), n_vocab=vocab_size, eos_token=codec.end_of_turn)
        except ValueError as error:
            raise UserError(
                f"constrained decoding does not know this kind of tokenizer ({_first_line(str(error))})"
            ) from error
        self._begun: list[tuple[tuple[Mapping[str, Any], ...], str, LLMatcher]] = []

    def begin(self, tools: tuple[Mapping[str, Any], ...], lead: str = "") -> LLMatcher:
        """A matcher at the beginning of a turn with `tools`, as `grammar` has it; raises as that does."""
        for known, led, matcher in self._begun:  # equal elements are mostly the same objects: compared at once
            if known == tools and led == lead:
                return matcher.deep_copy()
        matcher = LLMatcher(self._tokenizer, grammar(tools, self._codec, lead), log_level=0)
        if matcher.is_error():
            raise UserError(f"no grammar can be made of these tools together: {_first_line(matcher.get_error())}")
        self._begun = [*self._begun[1 - _MOST_GRAMMARS :], (tools, lead, matcher)]
        return matcher.deep_copy()


def _spaces_by(sign: str) -> dict[str, Any]:
    """A decoder that writes spaces for their sign, as `Metaspace` does, in steps that llguidance knows."""
    return {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": sign}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }


def restrict(logits: torch.Tensor, matchers: Sequence[LLMatcher | None]) -> torch.Tensor:
    """`logits` (B, V), with -inf where the row's matcher forbids the token. A row without one stays as it is."""
    rows, vocabulary = logits.shape
    words = -(-vocabulary // _WORD)
    bits = np.full((rows, words), -1, dtype=np.int32)
    start, stride = bits.ctypes.data, bits.strides[0]
    for row, matcher in enumerate(matchers):
        if matcher is not None:
            matcher.unsafe_compute_mask_ptr(start + row * stride, stride)
            if matcher.is_error():
                raise RuntimeError(f"the grammar of a turn failed: {_first_line(matcher.get_error())}")
    allowed = np.unpackbits(bits.view(np.uint8), axis=1, count=vocabulary, bitorder="little")
    return logits.masked_fill(torch.from_numpy(allowed).to(logits.device) == 0, float("-inf"))


def _call(number: int, function: Mapping[str, Any], codec: ChatFormat) -> str:
    """The rules of a call of one tool: its name, and arguments by its schema."""
    name, items = f"call_{number}", list[str]()
    rule = " ".join(filter(None, (_part(part, codec, name, items) for part in codec.syntax.grammar(function))))
    rules = "".join(f"{name}_{item}: {body}\n" for item, body in enumerate(items))
    # Special tokens have their ids in one tokenizer alone; the check knows none.
    trouble = LLMatcher.validate_grammar(f"start: {re.sub(r'<.[0-9]+.>', '', rule)}\n{rules}")
    if trouble:
        raise UserError(
            f"the arguments of the tool {function['name']} cannot be held to by constrained decoding "
            f"({_first_line(trouble)}): simplify them"
        )
    return f"{name}: {rule}\n{rules}"


def _part(part: GrammarPart, codec: ChatFormat, name: str, items: list[str]) -> str:
    """One part of the rule `name`. What it names by itself are the rules `name`_0, `name`_1, …, whose bodies are added
    to `items`."""
    if isinstance(part, str):
        return _literal(part, codec)
    if isinstance(part, TextPart):
        return r"/[^<\n\r]*/"
    if isinstance(part, ChoiceOf):
        options = [" ".join(_part(inner, codec, name, items) for inner in option) for option in part.options]
        return f"({' | '.join(filter(None, options))}){'' if all(options) else '?'}"
    return _json(part.schema, name, items)


def _json(schema: Mapping[str, Any], name: str, items: list[str]) -> str:
    """A value of JSON by its schema. Lists with items in turn, alone or as an argument, are written out as rules."""
    if IN_TURN in schema:
        return _in_turn(schema, name, items)
    properties = schema.get("properties", {})
    if not any(IN_TURN in inner for inner in properties.values()):
        return "%json " + json.dumps({**_without_tags(schema), "x-guidance": _SPACING})
    if not set(properties) <= set(schema.get("required", ())):
        raise ValueError(f"{', '.join(properties)}: beside a list with items in turn nothing can be left out")
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    written = [
        f"{json.dumps(f'{json.dumps(key)}: ')} {_json({**inner, **shared}, name, items)}"
        for key, inner in properties.items()
    ]
    return '"{" ' + ' ", " '.join(written) + ' "}"'


def _in_turn(schema: Mapping[str, Any], name: str, items: list[str]) -> str:
    """A list of some of the items in their order, of which none comes twice: after the first come those behind it."""
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    rules = []
    for item in schema[IN_TURN]:
        body = _json({**item, **shared}, name, items)
        rules.append(f"{name}_{len(items)}")
        items.append(body)
    some = [" ".join((rule, *(f'(", " {after})?' for after in rules[place + 1 :]))) for place, rule in enumerate(rules)]
    return f'"[" ({" | ".join(some)}){"" if schema.get("minItems") else "?"} "]"'


def _literal(text: str, codec: ChatFormat) -> str:
    """A text of the syntax, its special tokens by id."""
    markers = [marker for marker in (*codec.syntax.markers, *_LEADS) if marker in codec.special_ids]
    parts = re.split(f"({'|'.join(map(re.escape, markers)) or '(?!)'})", text)
    written = [f"<[{codec.special_ids[part]}]>" if part in markers else json.dumps(part) for part in parts if part]
    return " ".join(written)


def _without_tags(schema: Any) -> Any:
    """`schema` (JSON schema, or any part of one) with text in which no tag can be spelled."""
    if isinstance(schema, list):
        return [_without_tags(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    if KINDS in schema:
        shared = {"$defs": _without_tags(schema["$defs"])} if "$defs" in schema else {}
        return {**shared, "anyOf": _without_tags(kinds_of(schema))}
    # Of what is named by the schema's author, "type" or "enum" may be a name; so go by the keys that hold schemas.
    inner = {
        key: {name: _without_tags(part) for name, part in value.items()}
        if key in _NAMED
        else _without_tags(value)
        if key in ("items", "additionalProperties", "anyOf", "oneOf", "allOf")
        else value
        for key, value in schema.items()
    }
    kinds = inner.get("type")
    if "string" not in (kinds if isinstance(kinds, list) else [kinds]) or "enum" in inner or "const" in inner:
        return inner
    return {**inner, "pattern": _NO_TAG} if "pattern" not in inner else {"allOf": [inner, {"pattern": _NO_TAG}]}


def _first_line(trouble: str) -> str:
    return trouble.strip().splitlines()[0][:200]
