"""All syntaxes of tool calls, the most particular first: whose text a template writes is the one that it uses.

Several may fit: Llama 3's call is JSON in no frame, so it would be found in another's frame too. Where two differ only
in how they write lists and constants, they have one name and stand side by side; the one that fits these is taken.

To add one: a class with `write` and `read` (`syntax.CallSyntax`), or an entry of one of the classes here, in its place
below. It is then found by itself in the templates that write it, and constrained decoding knows it where it has a
`grammar`.

`tests/cryptosentinel/protocol/test_call_syntaxes.py` tries all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptosentinel.protocol.calls.json_calls import DEEPSEEK, HARMONY, HERMES, LLAMA3, MISTRAL, MISTRAL11, PLAIN_JSON
from cryptosentinel.protocol.calls.syntax import CallSyntax
from cryptosentinel.protocol.calls.tagged_calls import GLM, QWEN_XML, QWEN_XML_PYTHON

# What a model is told to write whose template knows no tool calls.
FALLBACK: CallSyntax = PLAIN_JSON

SYNTAXES: Sequence[CallSyntax] = (
    HERMES,
    QWEN_XML,
    QWEN_XML_PYTHON,
    GLM,
    HARMONY,
    DEEPSEEK,
    MISTRAL11,
    MISTRAL,
    LLAMA3,
    PLAIN_JSON,
)
