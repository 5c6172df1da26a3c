"""The pages of the reference that are read out of the source: the Python API, the metrics and the records.

They are made from the syntax trees, so that nothing of what they describe is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Definition = ast.FunctionDef | ast.ClassDef
_RECORDS = "backend/store/records.py"
_METRICS = "simulator/backtest/metrics.py"
_SECTIONS = {"Args:": "Arguments:", "Returns:": "It returns:", "Attributes:": "Attributes:", "Raises:": "It raises:"}


def api_page(places: Mapping[str, Sequence[str]], modules: Mapping[str, str]) -> str:
    """The public names of `cryptosentinel`; `places` has those of each module, `modules` where each public one is."""
    names = {name: place for place, inside in places.items() for name in inside} | dict(modules)
    functions = sorted(name for name in names if name[0].islower())
    classes = sorted(names.keys() - set(functions))
    lines = [
        "# Python API",
        "",
        f"The {len(names)} public names of the package `cryptosentinel`, as their source has them. "
        "[Python](../guides/python.md) shows how they are used, "
        "[parts of your own](../guides/extending.md) which of them a part of yours builds on.",
        "",
        " · ".join(f"[{name}](#{name.lower()})" for name in [*functions, *classes]),
    ]
    for name in [*functions, *classes]:
        file = f"{'/'.join(names[name].split('.'))}.py"
        if name not in modules:
            lines += ["", f"## {name}", "", *_described(name, file)]
            continue
        lines += ["", f"## {name}", "", "```text", ast.get_docstring(_tree(file)) or "", "```"]
        for node in _tree(file).body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                lines += ["", f"### {name}.{node.name}", "", *_described(node.name, file)]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """The metrics of a backtest."""
    functions = {node.name: node for node in _tree(_METRICS).body if isinstance(node, Definition)}
    keys = [(key, called) for key, called in _keys(functions["compute"]) if called in functions]
    returned = _text(functions["compute"]).partition("Returns:")[2].split("see the functions below.")[1]
    rows = [
        f"| `{key}` | {_cell(_text(functions[called]).partition('Args:')[0])} |"
        for key, called in keys
        if called is not None
    ]
    lines = [
        "# Metrics",
        "",
        "What is computed of each team and strategy of a backtest, as fractions: 0.02 is 2 %. How sure a number is, is "
        "a question of its own: [evaluation](../concepts/evaluation.md#how-sure-a-number-is). The metrics of a "
        "training are under [what to watch](../concepts/training.md#what-to-watch).",
        "",
        "## Of the returns",
        "",
        "`total_return` is the last equity over the first, less 1.",
        "",
        "| metric | meaning |",
        "| --- | --- |",
        *rows,
        "",
        "## Of drawdowns, exposure and turnover",
        "",
        *_entries(returned.partition("hit_rate, trades and")[0]),
    ]
    for title, name in (("Of the trades", "trade_statistics"), ("Of the costs", "cost_split")):
        lines += ["", f"## {title}", "", _paragraphs(_text(_definition(name, _METRICS)))]
    return "\n".join(lines) + "\n"


def records_page() -> str:
    """The tables of the store, with the fields of each."""
    source = (ROOT / _RECORDS).read_text(encoding="utf-8").splitlines()
    records = {
        table: node
        for node in _tree(_RECORDS).body
        if isinstance(node, ast.ClassDef) and (table := _constant(node, "table")) is not None
    }
    lines = [
        "# Records",
        "",
        "What the store holds, a table each. Times are milliseconds since the epoch, UTC. Every table has the field "
        "`run` besides, the id of the run. `cryptosentinel runs export` writes them out. "
        "[Architecture](../concepts/architecture.md#the-store) says which code writes what.",
        "",
        " · ".join(f"[{table}](#{table})" for table in records),
    ]
    for table, node in records.items():
        key = _constant(node, "identity")
        lines += ["", f"## {table}", "", _paragraph(_text(node)), "", f"Identified by {key}.", ""]
        lines += ["| field | type | meaning |", "| --- | --- | --- |"]
        for item in _fields(node):
            comment = source[item.lineno - 1].partition("  # ")[2]
            row = (f"`{ast.unparse(item.target)}`", f"`{ast.unparse(item.annotation)}`".replace("|", "\\|"), comment)
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def _definition(name: str, file: str) -> ast.stmt:
    """The statement at the top of a file that defines `name`. Raises KeyError where there is none."""
    for node in _tree(file).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if name in (getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)):
            return node
    raise KeyError(f"{file} defines no {name}")


def _described(name: str, file: str) -> Iterator[str]:
    """A name as Markdown: its signature, its words, and of a class its public fields and methods."""
    node = _definition(name, file)
    if isinstance(node, ast.Assign):
        yield from ("```text", f"{name} = {ast.unparse(node.value)}", "```")
        return
    assert isinstance(node, Definition)
    if isinstance(node, ast.FunctionDef):
        yield from ("```text", _signature(node), "```", "")
        yield _paragraphs(_text(node))
        return
    yield _paragraphs(_text(node))
    fields = [item for item in _fields(node) if not ast.unparse(item.target).startswith("_")]
    if fields:
        yield from ("", "```text", *(ast.unparse(item) for item in fields), "```")
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and ast.get_docstring(method):
            marks = {ast.unparse(mark) for mark in method.decorator_list}
            shown = method.name if marks & {"property", "cached_property"} else _signature(method)
            yield from ("", f"* `{' '.join(shown.split())}`: {_paragraph(_text(method))}")


def _signature(node: ast.FunctionDef) -> str:
    """Name, arguments and result, an argument a line where they are many; without `self`."""
    arguments = ast.unparse(node.args)
    arguments = re.sub(r"^(?:self|cls)(?:, /)?(?:, |$)", "", arguments)
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{node.name}({arguments}){result}"
    if len(line) <= 100:
        return line
    values = re.split(r", (?![^\[(]*[\])])", arguments)
    return f"{node.name}(\n" + "".join(f"    {value},\n" for value in values) + f"){result}"


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    """The fields of a class, without those of the class itself."""
    return [item for item in node.body if isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.unparse(item)]


def _keys(function: Definition) -> Iterator[tuple[str, str | None]]:
    """The keys of the first table in a function, with the function that each value is the result of."""
    table = next(node for node in ast.walk(function) if isinstance(node, ast.Dict))
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant):
            yield str(key.value), getattr(getattr(value, "func", None), "id", None)


def _constant(node: ast.ClassDef, name: str) -> str | None:
    """What a class states for itself, as text; None where it does not."""
    for item in node.body:
        if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == name:
            value = ast.literal_eval(item.value)
            return value if isinstance(value, str) else ", ".join(f"`{part}`" for part in value)
    return None


def _text(node: ast.stmt) -> str:
    assert isinstance(node, Definition)
    return ast.get_docstring(node) or ""


def _paragraph(text: str) -> str:
    return " ".join(text.split())


def _paragraphs(text: str) -> str:
    """A docstring as Markdown: its paragraphs, and the entries of its sections (`Args:` and others) as lists. What is
    indented otherwise stays as it is, as code."""
    parts = []
    for part in text.split("\n\n"):
        head, _, rest = part.partition("\n")
        if head in _SECTIONS:
            parts.append("\n".join([_SECTIONS[head], "", *_entries(rest)]))
        elif all(line.startswith("    ") for line in part.splitlines()) and part:
            parts.append(f"```text\n{part}\n```")
        else:
            parts.append(_paragraph(part))
    return "\n\n".join(parts)


def _entries(text: str) -> list[str]:
    """The entries of a section (`name, name: meaning.`), an item of a list each; without a name, one of all."""
    parts = re.split(r"(?<=\.) (?=\w+(?:, \w+)*(?: \([^)]*\))?: )", _paragraph(text))
    return [f"* {part}" for part in parts]


def _cell(text: str) -> str:
    return _paragraph(text).replace("|", "\\|")
