"""Says how each chat template that TRL ships is written here: `python -m scripts.template_table`.

It prints a table, whose first line stands in `docs/guides/models.md`. The templates come without their tokenizers, so
each gets one of bytes in which what it writes as special tokens are special tokens. Names and findings are printed,
nothing of a template.
"""

from __future__ import annotations

import re
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cryptosentinel.llm.templates import FormatReport, described_format
from simulator.errors import UserError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "models.md"
_SPECIAL = re.compile(
    r"<\|[^|<>\s]{1,60}\|>|<｜[^｜<>\s]{1,60}｜>|<(?:start|end)_of_[a-z]+>|<\|[a-z_]+>|<[a-z_]+\|>|<\|\"\|>"
    r"|\[gMASK\]|<sop>|</?think>|</?tool_call>|</?tool_response>|\[/?INST\]|</?arg_(?:key|value)>"
)


def shipped_templates() -> dict[str, str]:
    """TRL's templates by name; empty where it is not installed."""
    found = find_spec("trl")
    folders = [] if found is None else found.submodule_search_locations or []
    paths = [path for folder in folders for path in Path(folder).glob("chat_templates/*.jinja")]
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(paths)}


def tokenizer_for(template: str) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes with the special tokens that a template writes, and `<s>` and `</s>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<s>", "</s>", *sorted(set(_SPECIAL.findall(template)))]
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=template
    )


def judged(template: str) -> FormatReport | UserError:
    """The findings on a template, or why it is refused."""
    try:
        return described_format(tokenizer_for(template), Path())[1]
    except UserError as error:
        return error


def table() -> str:
    """The table in Markdown, a row for each kind of finding."""
    rows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for name, template in shipped_templates().items():
        report = judged(template)
        if isinstance(report, UserError):
            key: tuple[str, ...] = ("refused", "", str(report))
        else:
            key = (report.verdict, report.syntax, "; ".join(report.adapted + report.differs))
        rows[key].append(name)
        counts[key[0]] += 1
    order = ["exact", "approximate", "refused"]
    lines = [
        ", ".join(f"{counts[one]} {one}" for one in order) + f", of {sum(counts.values())}.",
        "",
        "| verdict | calls | what is written otherwise | templates |",
        "| --- | --- | --- | --- |",
    ]
    for (verdict, syntax, words), names in sorted(rows.items(), key=lambda row: (order.index(row[0][0]), row[0])):
        lines.append(f"| {verdict} | {syntax} | {words} | {', '.join(names)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    if not shipped_templates():
        raise SystemExit("TRL is not installed, so there are no templates: install the extra that brings it")
    print(table())


if __name__ == "__main__":
    main()
