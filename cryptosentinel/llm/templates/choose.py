"""The chat format of a tokenizer: the exact one of Qwen3 where its template writes that, else the template's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.templates.check import FormatReport, check_format
from cryptosentinel.llm.templates.codec import TemplateCodec, TemplateDefinition
from cryptosentinel.llm.templates.layout import find_layout, written_tokens
from cryptosentinel.llm.templates.limits import check_program, limited
from cryptosentinel.llm.templates.pieces import PieceEncoder
from cryptosentinel.llm.templates.rendering import Renderer
from simulator.errors import UserError

_GENERATION = "generation_config.json"


def chat_format(
    tokenizer: PreTrainedTokenizerFast, folder: Path, *, empty_think: bool = False, think: bool = False
) -> ChatFormat:
    """The codec for the model in `folder`. `think`: its answers may begin with a thought; `empty_think`: Qwen3's are
    begun with an empty one. Both together are refused.

    Raises `UserError`, with the way out, for a tokenizer without a template or with one that cannot be used.
    """
    return described_format(tokenizer, folder, empty_think=empty_think, think=think)[0]


def described_format(
    tokenizer: PreTrainedTokenizerFast, folder: Path, *, empty_think: bool = False, think: bool = False
) -> tuple[ChatFormat, FormatReport]:
    """The codec, and how far it writes what the template does. Raises `UserError` as `chat_format`."""
    try:
        if think and empty_think:
            raise UserError(
                "a model that begins every answer with an empty thought has no thoughts: "
                "set engine.empty_think = false, or team.thinking_tokens = 0"
            )
        definition = definition_of(tokenizer, folder, think=think)
        if writes_qwen3(tokenizer):
            return ChatCodec(tokenizer, empty_think=empty_think, think=think), FormatReport("exact", "hermes")
        codec = template_codec(tokenizer.backend_tokenizer, definition)
        return codec, check_format(codec)
    except UserError as error:
        raise UserError(f"in {folder}, {error}") from error


def template_codec(tokenizer: Tokenizer, definition: TemplateDefinition) -> TemplateCodec:
    """The codec of a template, whatever it writes. Raises `UserError` for one that cannot be used."""
    written = written_tokens(definition.template)
    tokens = {text: tokenizer.encode(text, add_special_tokens=False).ids for text in written}
    encoder = PieceEncoder(tokenizer, [text for text in written if tokens[text] == [tokenizer.token_to_id(text)]])
    variables = {**definition.tokens, "enable_thinking": definition.think, "thinking": definition.think}
    layout = find_layout(Renderer(definition.template, variables), encoder)
    texts = "".join(piece for piece in layout.opening + layout.response + layout.next_user if isinstance(piece, str))
    split = next((text for text in written if text in texts), None)
    if split:
        raise UserError(
            f"the tokenizer splits {split}, which the chat template writes, into {len(tokens[split])} tokens: it is "
            "not the one that the model was trained with; give that one"
        )
    return TemplateCodec(encoder, layout, definition)


def definition_of(tokenizer: PreTrainedTokenizerFast, folder: Path, *, think: bool = False) -> TemplateDefinition:
    """What the codec of the model in `folder` is made of. Raises `UserError` where there is no template."""
    eos = tokenizer.eos_token_id
    ends = {*_ends_in(folder), *([eos] if isinstance(eos, int) else [])}
    tokens = {name: text for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}
    return TemplateDefinition(_template_of(tokenizer), tokens, tuple(sorted(ends)), think)


def _ends_in(folder: Path) -> frozenset[int]:
    """The ids that end a turn by the model's generation_config.json, if it has one."""
    try:
        document = json.loads((folder / _GENERATION).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return frozenset()
    named = document.get("eos_token_id") if isinstance(document, Mapping) else None
    return frozenset(one for one in (named if isinstance(named, list) else [named]) if type(one) is int)


def writes_qwen3(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the tokenizer's own template writes a tool call's round trip as `ChatCodec` does. Raises `UserError` for
    one that takes too much."""
    try:
        codec = ChatCodec(tokenizer)
    except UserError:
        return False
    arguments = {"symbol": "AAAUSDT", "size": -0.25}
    call = f'<tool_call>\n{{"name": "look", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    ours = (
        codec.start("Be brief.", "Look.") + codec.encode_assistant(call) + codec.continue_after(True, '{"price": 12.5}')
    )
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": arguments}}],
        },
        {"role": "tool", "content": '{"price": 12.5}'},
    ]
    try:
        check_program(_template_of(tokenizer))
        with limited():
            theirs: Any = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
    except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return False
    return bool(ours == theirs)


def _template_of(tokenizer: PreTrainedTokenizerFast) -> str:
    template: Any = tokenizer.chat_template
    if isinstance(template, Mapping):  # several: for tools, for documents
        template = template.get("tool_use", template.get("default"))
    if not isinstance(template, str) or not template:
        raise UserError(
            "the tokenizer has no chat template, so the model cannot be told who speaks: use its chat (instruct) "
            "version, or put its chat_template.jinja into the folder"
        )
    return template
