"""A Modelfile of Ollama for a role's GGUF file, with the template that builds the conversations it was trained on.

The template is in Go's language. It builds what `ChatCodec` builds: turns of ChatML, calls and results of tools in the
form of Qwen3. A team that learnt its tools in a warm start has no list of them in its conversations, so none is put
there; one with full prompts gets the list in the system turn.
"""

from __future__ import annotations

from collections.abc import Mapping

from cryptosentinel.llm.chat_codec import (
    CALL_END,
    CALL_START,
    RESPONSE_END,
    RESPONSE_START,
    TURN_END,
    TURN_START,
    ChatCodec,
)
from cryptosentinel.llm.chat_format import ChatFormat
from simulator.errors import UserError

_TOOLS = """
{{- if $.Tools }}

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{{- range $.Tools }}
{"type": "function", "function": {{ .Function }}}
{{- end }}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>
{{- end }}"""


def template(lists_tools: bool) -> str:
    """The chat template in Go's language; with `lists_tools` the system turn lists the request's tools."""
    return f"""{{{{- range .Messages }}}}
{{{{- if eq .Role "system" }}}}{TURN_START}system
{{{{ .Content }}}}{_TOOLS if lists_tools else ""}{TURN_END}
{{{{ else if eq .Role "user" }}}}{TURN_START}user
{{{{ .Content }}}}{TURN_END}
{{{{ else if eq .Role "assistant" }}}}{TURN_START}assistant
{{{{ .Content }}}}{{{{- range .ToolCalls }}}}{CALL_START}
{{"name": "{{{{ .Function.Name }}}}", "arguments": {{{{ .Function.Arguments }}}}}}
{CALL_END}{{{{ end }}}}{TURN_END}
{{{{ else if eq .Role "tool" }}}}{TURN_START}user
{RESPONSE_START}
{{{{ .Content }}}}
{RESPONSE_END}{TURN_END}
{{{{ end }}}}
{{{{- end }}}}{TURN_START}assistant
"""


def modelfile(file: str, codec: ChatFormat, settings: Mapping[str, float | int | bool]) -> str:
    """The Modelfile for the GGUF file `file` beside it. Raises `UserError` for conversations in another format."""
    if not isinstance(codec, ChatCodec):
        raise UserError(
            "a Modelfile is written for conversations in ChatML, and this base has another chat template: use --as "
            "gguf, whose file holds the base's own template"
        )
    return "\n".join(
        [
            f"FROM ./{file}",
            f'TEMPLATE """{template(bool(settings["lists_tools"]))}"""',
            f'PARAMETER stop "{TURN_END}"',
            f"PARAMETER temperature {settings['temperature']:g}",
            f"PARAMETER num_ctx {settings['num_ctx']}",
            "",
        ]
    )
