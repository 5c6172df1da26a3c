"""How the wheel is laid out: one package at the top, with the layers, the presets and the sample in it.

In the repository `backend`, `simulator` and `ui` lie at the top and are imported by these names. Installed, such names
would hide other people's packages, so the wheel has them as `cryptosentinel.backend` and so on, and each import of them
is written anew while the wheel is built. An editable installation (`make`) uses the repository as it is. The rest is in
pyproject.toml, which cannot say any of this. `docs/concepts/architecture.md` says why.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

HOME = "cryptosentinel"
MOVED = ("backend", "simulator", "ui")
# Folders of data that packages read where they are installed, by the package that does.
DATA = {
    "backend.config.presets": "configs",
    "simulator.data.sample": "data/synthetic",
    "backend.models.sample_team": "data/sample_team",
}
_PLACE = re.compile(r"((?:backend|simulator|ui)(?:\.\w+)+)((?::\w+)?)")  # `module` or `module:name`


def is_module(name: str, root: Path) -> bool:
    """Whether the repository at `root` has a module or a package of this dotted name."""
    path = root.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def in_namespace(source: str, root: Path) -> str:
    """A module's source with every import of a moved package, and every string that names a module of one, under
    `cryptosentinel`. Lines and all else stay as they are. Raises `ValueError` for an import that cannot be moved so."""
    lines = source.encode().splitlines(keepends=True)
    places = sorted(_places(ast.parse(source), root), reverse=True)
    for line, column, name in places:
        row, named = lines[line - 1], name.encode()
        at = row.index(named, column)
        lines[line - 1] = row[:at] + f"{HOME}.".encode() + row[at:]
    return b"".join(lines).decode()


def _places(tree: ast.Module, root: Path) -> set[tuple[int, int, str]]:
    """(line, first byte of the statement or string, the name that is moved) of all that names a moved package."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module.partition(".")[0] in MOVED:
                found.add((node.lineno, node.col_offset, node.module))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in MOVED:
                    if alias.asname is None:  # it would bind `cryptosentinel` and not the name that the code uses
                        raise ValueError(
                            f"line {node.lineno}: write `import {alias.name} as ...`, or `from ... import`"
                        )
                    found.add((alias.lineno, alias.col_offset, alias.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            place = _PLACE.fullmatch(node.value)
            if place and is_module(place[1], root):
                found.add((node.lineno, node.col_offset, place[1]))
    return found


class InNamespace(build_py):
    """Copies the modules into the wheel with their imports in the namespace."""

    def build_module(self, module: str, module_file: str, package: str | list[str]) -> object:
        """Copy one module, and write its imports anew."""
        done = super().build_module(module, module_file, package)
        parts = package.split(".") if isinstance(package, str) else package
        target = Path(self.get_module_outfile(self.build_lib, parts, module))
        try:
            moved = in_namespace(Path(module_file).read_text(encoding="utf-8"), Path.cwd())
        except ValueError as error:
            raise ValueError(f"{module_file}, {error}") from None
        target.write_text(moved, encoding="utf-8")
        return done

    def build_package_data(self) -> None:
        """Copy the data, and write the imports of stubs anew."""
        super().build_package_data()
        for stub in Path(self.build_lib).rglob("*.pyi"):
            stub.write_text(in_namespace(stub.read_text(encoding="utf-8"), Path.cwd()), encoding="utf-8")


def layout(*, editable: bool) -> dict[str, object]:
    """What `setup` is told of packages."""
    found = find_namespace_packages(include=[f"{HOME}*", *(f"{name}*" for name in MOVED)])
    if editable:
        return {"packages": [*found, *DATA], "package_dir": DATA}
    folders = {f"{HOME}.{name}": name for name in MOVED} | {f"{HOME}.{name}": path for name, path in DATA.items()}
    packages = [name if name.partition(".")[0] == HOME else f"{HOME}.{name}" for name in found]
    return {
        "packages": [*packages, *folders.keys() - packages],
        "package_dir": folders,
        "cmdclass": {"build_py": InNamespace},
    }


if __name__ == "__main__":
    setup(**layout(editable=any(word in sys.argv for word in ("editable_wheel", "develop"))))
