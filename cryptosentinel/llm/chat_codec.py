"""The chat format as token ids: which ids open and close a turn, and how text becomes part of one.

The format is ChatML as Qwen3 models use it. One conversation, generation prompt last:

    <|im_start|>system\\n{system}<|im_end|>\\n
    <|im_start|>user\\n{text}<|im_end|>\\n
    <|im_start|>assistant\\n            <- the model samples: <tool_call>\\n{json}\\n</tool_call><|im_end|>
    \\n<|im_start|>user\\n<tool_response>\\n{json}\\n</tool_response><|im_end|>\\n<|im_start|>assistant\\n

`ChatCodec` appends and never rewrites: the ids that a model sampled stay as they were sampled. Structure (the tokens
above) is placed by id; everything else is encoded by a copy of the tokenizer that knows no special token at all, so
no text, whatever it contains, can open or close a turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers

from cryptosentinel.llm.chat_format import ChatFormat, ChatMessages, FastTokenizer, ThoughtFormat
from cryptosentinel.llm.pieces import Piece, PieceEncoder, Special, bytes_model
from cryptosentinel.protocol.syntaxes import HERMES, CallSyntax
from simulator.errors import UserError

TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
PADDING = "<|endoftext|>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
RESPONSE_START, RESPONSE_END = "<tool_response>", "</tool_response>"
THINK_START, THINK_END = "<think>", "</think>"

CONTROL_TOKENS = (PADDING, TURN_START, TURN_END)
MARKUP_TOKENS = (CALL_START, CALL_END, RESPONSE_START, RESPONSE_END, THINK_START, THINK_END)
SPECIAL_TOKENS = CONTROL_TOKENS + MARKUP_TOKENS

_REQUIRED = (TURN_START, TURN_END, CALL_START, CALL_END, RESPONSE_START, RESPONSE_END)
_THOUGHT_TAIL = "\n\n"  # between a thought and what is then said
_EMPTY_THINK = f"{THINK_START}\n\n{THINK_END}{_THOUGHT_TAIL}"
# What an assistant may say by id: calls and thoughts. Never the tokens that open or close a turn or a tool's answer.
_OWN_VOICE = (CALL_START, CALL_END, THINK_START, THINK_END)
_TOOLS_INTRODUCTION = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_INSTRUCTION = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    f"{CALL_START}{CALL_END} XML tags:\n{CALL_START}\n"
    '{"name": <function-name>, "arguments": <args-json-object>}'
    f"\n{CALL_END}"
)


# Nano's: what `ChatCodec` writes, as a template that other programs read.
CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n" }}
    {{- "You are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" + tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within " }}
    {{- "<tool_call></tool_call> XML tags:\\n<tool_call>\\n" }}
    {{- "{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""


class ChatCodec(ChatFormat):
    """Builds and reads conversations in token ids.

    `empty_think` puts an empty `<think>` block after every assistant header, which is how Qwen3's hybrid models are
    told not to think. It stays in the history, since that is what the model saw when it answered; Qwen3's own
    template drops it from earlier turns. With `think` an answer may begin with a thought, which the model itself opens;
    as in Qwen3's template it stays in the conversation as long as tools answer.

    Raises `UserError` if the tokenizer lacks a token of the format.
    """

    def __init__(self, tokenizer: Tokenizer | FastTokenizer, *, empty_think: bool = False, think: bool = False) -> None:
        if think and empty_think:
            raise ValueError("a codec whose answers begin with an empty thought has none of their own")
        backend = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.backend_tokenizer
        required = _REQUIRED + ((THINK_START, THINK_END) if empty_think else ())
        added = {token.content: index for index, token in backend.get_added_tokens_decoder().items()}
        if think and not {THINK_START, THINK_END} <= added.keys():
            raise UserError(
                "the tokenizer has no tokens that open and close a thought: set team.thinking_tokens = 0, or use a "
                "model that thinks"
            )
        missing = [token for token in required if token not in added]
        if missing:
            raise UserError(
                f"the tokenizer does not know {', '.join(missing)} as special tokens: "
                "use a model of the Qwen3 chat format"
            )
        self.empty_think = empty_think
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.special_ids: Mapping[str, int] = added
        self.turn_start: int = added[TURN_START]
        self.end_of_turn: int = added[TURN_END]
        self._tokenizer = backend
        self._encoder = PieceEncoder(backend)
        # What stands between texts is the same in every conversation, and encoded once.
        thought = self._encoder.split(_EMPTY_THINK) if empty_think else []
        self._opening = self._encoder.encode(
            [Special(TURN_END), "\n", Special(TURN_START), "assistant\n", *thought], {}
        )
        self._after_system = self._encoder.encode([Special(TURN_END), "\n", Special(TURN_START)])
        self._before_user = self._encoder.encode(["\n", Special(TURN_START)])
        self._before_response = self._encoder.encode(["\n", Special(TURN_START), "user\n", Special(RESPONSE_START)])
        self._after_response = [added[RESPONSE_END], *self._opening]
        if think:
            self.thoughts = ThoughtFormat(
                opening=(added[THINK_START],),
                closing=added[THINK_END],
                begun=False,
                cut_off=tuple(self._encoder.encode(["\n", Special(THINK_END), _THOUGHT_TAIL])),
                lead=_THOUGHT_TAIL,
            )

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer itself, with its special tokens."""
        return self._tokenizer

    @property
    def syntax(self) -> CallSyntax:
        """That of Qwen and Hermes."""
        return HERMES

    def start(self, system: str, user: str, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """System turn, user turn, assistant header. `tools`: JSON schemas that the system turn lists, as in Qwen3."""
        parts: list[Piece] = [Special(TURN_START), f"system\n{system}"]
        if tools:
            parts += ["\n\n", _TOOLS_INTRODUCTION]
            parts += ["\n" + json.dumps(tool, ensure_ascii=False) for tool in tools]
            parts += self._encoder.split(_TOOLS_INSTRUCTION, _OWN_VOICE)
        return self._encoder.encode(parts) + self._after_system + self.encode_data(f"user\n{user}") + self._opening

    def tool_response(self, text: str, tool: str = "") -> list[int]:
        """What follows a finished assistant turn: a user turn with the tool's answer, then the assistant header."""
        return self._before_response + self.encode_data(f"\n{text}\n") + self._after_response

    def user_turn(self, text: str) -> list[int]:
        """What follows a finished assistant turn when the user writes again, assistant header included."""
        return self._before_user + self.encode_data(f"user\n{text}") + self._opening

    def encode_data(self, text: str) -> list[int]:
        """Ids of untrusted text. No id is a special token, whatever `text` contains; lone surrogates become '?'."""
        return self._encoder.data(text)

    def encode_assistant(self, text: str) -> list[int]:
        """Ids of an assistant's own answer, end of turn included: its call and think tags become special tokens.

        Tokens that open or close a turn stay plain text here too.
        """
        return [*self._encoder.encode(self._encoder.split(text, _OWN_VOICE)), self.end_of_turn]

    def messages(self, ids: Sequence[int]) -> ChatMessages:
        """The turns of a conversation; inverts what is built here. Tool answers are the text inside `<tool_response>`.
        An empty `<think>` block that the codec placed is left out."""
        turns: ChatMessages = []
        ids = list(ids)
        position = 0
        while position < len(ids):
            if ids[position] != self.turn_start:  # the newline between turns
                position += 1
                continue
            # A turn ends at its first end-of-turn id: data cannot contain one, and engines stop a model at its own.
            try:
                end = ids.index(self.end_of_turn, position)
                closed = True
            except ValueError:
                end, closed = len(ids), False
            turn = self._turn(ids[position + 1 : end])
            if closed or turn["content"]:
                turns.append(turn)
            position = end + 1
        return turns

    def _turn(self, ids: Sequence[int]) -> dict[str, str]:
        """One turn, without the ids that open and close it."""
        role, _, content = self.decode(ids).partition("\n")
        if role == "user" and self.special_ids[RESPONSE_START] in ids:
            return {
                "role": "tool",
                "content": content.removeprefix(f"{RESPONSE_START}\n").removesuffix(f"\n{RESPONSE_END}"),
            }
        if role == "assistant" and self.empty_think:
            content = content.removeprefix(_EMPTY_THINK)
        return {"role": role, "content": content}


def make_byte_codec(*, empty_think: bool = False, think: bool = False) -> ChatCodec:
    """A codec in which every byte is a token: for engines without a model, such as the scripted one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(bytes_model({symbol: index for index, symbol in enumerate(alphabet)}))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    add_special_tokens(tokenizer)
    return ChatCodec(tokenizer, empty_think=empty_think, think=think)


def add_special_tokens(tokenizer: Tokenizer) -> None:
    """Add the chat format's tokens behind the vocabulary, as in Qwen3: tags of calls and thoughts are text to users."""
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKUP_TOKENS])
