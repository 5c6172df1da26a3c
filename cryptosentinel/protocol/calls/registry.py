"""All syntaxes of tool calls, the most particular first: whose text a template writes is the one that it uses."""

from __future__ import annotations

from collections.abc import Sequence

from cryptosentinel.protocol.calls.json_calls import DEEPSEEK, HARMONY, HERMES, JSON, LLAMA3, MISTRAL, MISTRAL11
from cryptosentinel.protocol.calls.literal_calls import GemmaCalls, PythonCalls
from cryptosentinel.protocol.calls.syntax import CallSyntax
from cryptosentinel.protocol.calls.tagged_calls import ATEM, GLM, QWEN_XML, QWEN_XML_PYTHON

# What a model is told to write whose template knows no tool calls.
FALLBACK: CallSyntax = JSON

SYNTAXES: Sequence[CallSyntax] = (
    HERMES,
    QWEN_XML,
    QWEN_XML_PYTHON,
    GLM,
    ATEM,
    HARMONY,
    DEEPSEEK,
    MISTRAL11,
    MISTRAL,
    PythonCalls(),
    PythonCalls(whole=True),
    GemmaCalls(),
    GemmaCalls(null="None"),
    LLAMA3,
    JSON,
)
