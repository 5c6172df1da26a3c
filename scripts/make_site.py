"""Builds the documentation as a site: `make site`, or `python -m scripts.make_site`.

The pages of `docs/` are Markdown that reads well on its own, with links to files of the repository. A site has no such
files, so the pages are first laid out in `build/site-source`: the generated pages of `scripts.make_reference`, the
changelog and the page of the shipped data join them, and each file or folder outside `docs/` that a page links to lies
under `files/`. Then MkDocs, which has an environment of its own, builds `build/site` from `mkdocs.yml`. It is strict: a
link that leads nowhere, or a page that is missing from the navigation, ends the build.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.make_reference import pages as generated_pages

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "build" / "site-source"
# Pages outside `docs/` and where they lie on the site.
ELSEWHERE = {"CHANGELOG.md": "changelog.md", "data/README.md": "sample_market.md"}
FILES = "files"
_FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_PIPE_IN_CODE = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")
_NESTED = re.compile(r"^ {1,3}(?=[*-] )", re.MULTILINE)


def lay_out(target: Path) -> None:
    """Write the site's pages to `target`, a folder that is made again."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(DOCS, target)
    written = {path: path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))}
    written |= {ROOT / name: place for name, place in ELSEWHERE.items()}
    texts = {place: (path, path.read_text(encoding="utf-8")) for path, place in written.items()}
    texts |= {place: (DOCS / place, text) for place, text in generated_pages().items()}
    for place, (path, text) in texts.items():
        text, linked = on_the_site(text, path, place)
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_text(text, encoding="utf-8")
        for file in sorted(linked):
            _add_file(target, file)


def on_the_site(text: str, path: Path, place: str) -> tuple[str, set[Path]]:
    """The text of the page `path` as it stands at `place` on the site, and the files outside `docs/` that it links to.

    Blocks of code stay as they are. Of the bars in a table's cell of code Python-Markdown shows the backslash, so such
    code becomes an element. A list inside a list is indented by four columns, which Python-Markdown wants and
    other readers of Markdown understand too. A link to what is not there is left for MkDocs to refuse.
    """
    linked: set[Path] = set()

    def moved(match: re.Match[str]) -> str:
        name, _, heading = match[0].partition("#")
        if not name or re.match(r"[a-z]+:", name):
            return match[0]
        file = (path.parent / name).resolve()
        if not file.is_relative_to(ROOT) or not (file.exists() or file.is_relative_to(DOCS)):
            return match[0]
        inside = file.relative_to(ROOT).as_posix()
        if inside in ELSEWHERE:
            there = ELSEWHERE[inside]
        elif file.is_relative_to(DOCS):
            there = file.relative_to(DOCS).as_posix()
        else:
            linked.add(file)
            there = _place_of_file(file)
        return os.path.relpath(there, Path(place).parent) + (f"#{heading}" if heading else "")

    parts = _FENCE.split(text)
    parts[::2] = [_NESTED.sub("    ", _PIPE_IN_CODE.sub(_as_element, _LINK.sub(moved, part))) for part in parts[::2]]
    return "".join(parts), linked


def _as_element(match: re.Match[str]) -> str:
    code = html.escape(match[1]).replace("\\|", "&#124;")
    return f"<code>{code}</code>"


def _place_of_file(file: Path) -> str:
    """Where a file or folder outside `docs/` lies: a file as text, which a browser shows; a folder as a page."""
    inside = file.relative_to(ROOT).as_posix()
    return f"{FILES}/{inside}/index.md" if file.is_dir() else f"{FILES}/{inside}.txt"


def _add_file(target: Path, file: Path) -> None:
    place = target / _place_of_file(file)
    place.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_dir():
        shutil.copyfile(file, place)
        return
    inside = sorted(path for path in file.iterdir() if path.is_file() and not path.name.startswith("."))
    for path in inside:
        _add_file(target, path)
    lines = [f"* [{path.name}]({path.name}.txt)" for path in inside]
    place.write_text("\n".join([f"# {file.relative_to(ROOT).as_posix()}/", "", *lines, ""]), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """The exit code is MkDocs's own, 2 where it is not installed."""
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument("--mkdocs", default=str(ROOT / ".venv-site" / "bin" / "mkdocs"), metavar="PROGRAM")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", metavar="FOLDER")
    parser.add_argument("--source", type=Path, default=SOURCE, metavar="FOLDER", help="where the pages are laid out")
    given = parser.parse_args(arguments)
    if shutil.which(given.mkdocs) is None:
        print(f"there is no {given.mkdocs}: `make site` installs it", file=sys.stderr)
        return 2
    lay_out(given.source)
    command = [given.mkdocs, "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    # Without the second, Material prints a notice about a later MkDocs, which the lock does not take.
    environment = os.environ | {"SITE_SOURCE": str(given.source.resolve()), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([*command, "--site-dir", str(given.out.resolve())], env=environment)
    if done.returncode == 0:
        print(f"the site: {os.path.relpath(given.out / 'index.html')}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
