"""The documentation as a site: strict, whole, and without a request to another host."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from scripts.make_site import ELSEWHERE, lay_out, on_the_site
from tests.ui.browsing import CHROMIUM, PATIENCE, needs_chromium

ROOT = Path(__file__).resolve().parents[1]
MKDOCS = ROOT / ".venv-site" / "bin" / "mkdocs"
needs_mkdocs = pytest.mark.skipif(not MKDOCS.exists(), reason="MkDocs is not installed: `make site` installs it")
# Scripts that the theme would fetch: one for a browser of before 2020, one for a page with a Mermaid diagram.
GUARDED = ("https://unpkg.com/resize-observer-polyfill", "https://unpkg.com/mermaid@11/dist/mermaid.min.js")
LOADING = {"src", "srcset", "poster", "data"}
NARROW = 390  # pixels, a telephone


class Loads(HTMLParser):
    """What a page makes a browser load, what it links to, and the classes of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.classes.update(values.get("class", "").split())
        self.loaded += [values[name] for name in LOADING & values.keys()]
        if tag == "link":
            self.loaded.append(values.get("href", ""))
        elif tag == "a":
            self.links.append(values.get("href", ""))


def read(page: Path) -> Loads:
    parser = Loads()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def is_outside(address: str) -> bool:
    return bool(re.match(r"(?:[a-z]+:)?//", address))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    places = ["--source", str(folder / "source"), "--out", str(folder / "site")]
    command = [sys.executable, "-m", "scripts.make_site", *places, "--mkdocs", str(MKDOCS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_every_link_of_a_laid_out_page_leads_to_a_file(tmp_path: Path) -> None:
    lay_out(tmp_path / "source")
    pages = sorted((tmp_path / "source").rglob("*.md"))
    assert len(pages) > 25
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        targets = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if not is_outside(target)]
        assert [target for target in targets if not (page.parent / target).exists()] == [], page
    assert all((tmp_path / "source" / place).exists() for place in ELSEWHERE.values())


def test_the_reference_is_generated_and_not_in_git(tmp_path: Path) -> None:
    lay_out(tmp_path / "source")
    generated = {path.name for path in (tmp_path / "source" / "reference").iterdir()}
    assert generated == {
        f"{name}.md" for name in ("settings", "commands", "layers", "api", "metrics", "records", "licenses")
    }
    assert not (ROOT / "docs" / "reference").exists()
    assert "`context_tokens`" in (tmp_path / "source" / "reference" / "settings.md").read_text(encoding="utf-8")


def test_a_page_keeps_its_code_and_its_addresses() -> None:
    text = "see [a](../../CHANGELOG.md#x), [b](https://arxiv.org/abs/1), [c](demo.md)\n"
    text += "```\n[d](../../CHANGELOG.md)\n  * e\n```\n"
    usage = ROOT / "docs" / "start" / "usage.md"
    moved, linked = on_the_site(text + "* f\n  * g\n", usage, "start/usage.md")
    assert moved == text.replace("../../CHANGELOG.md#x", "../changelog.md#x") + "* f\n    * g\n"
    assert linked == set()
    moved, linked = on_the_site("[a](../../deploy/compose.yaml)", usage, "start/usage.md")
    assert (moved, linked) == ("[a](../files/deploy/compose.yaml.txt)", {ROOT / "deploy" / "compose.yaml"})


@needs_mkdocs
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = {page: read(page) for page in sorted(site.rglob("*.html"))}
    assert len(pages) > 25
    own = {page: reading for page, reading in pages.items() if "experiments" not in page.relative_to(site).parts}
    for page, reading in own.items():
        assert reading.loaded, page
        assert [address for address in reading.loaded if is_outside(address)] == [], page
        assert "mermaid" not in reading.classes, page
    for path in [*site.rglob("*.css"), *site.rglob("*.js")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"""(?:@import|url\()\s*["']?(?:https?:)?//""", text), path
        if path.name.startswith("bundle."):
            assert {*re.findall(r"https://unpkg\.com[^\"'`]*", text)} <= {*GUARDED}, path


@needs_mkdocs
def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    lay_out(tmp_path / "source")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = config.replace("build/site-source", "source").replace("build/site", "site")
    (tmp_path / "mkdocs.yml").write_text(config, encoding="utf-8")
    page = tmp_path / "source" / "start" / "demo.md"
    with page.open("a", encoding="utf-8") as text:
        text.write("\n[nowhere](nowhere.md) and [no heading](tutorial.md#nowhere)\n")
    (tmp_path / "source" / "lonely.md").write_text("# In no navigation\n")
    command = [str(MKDOCS), "build", "--strict", "--config-file", str(tmp_path / "mkdocs.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr and "tutorial.md#nowhere" in done.stderr and "lonely.md" in done.stderr


@pytest.mark.slow
@needs_mkdocs
@needs_chromium
def test_a_browser_finds_words_without_a_network_and_a_telephone_shows_it_whole(site: Path) -> None:
    requested: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": NARROW, "height": 800})
        page.set_default_timeout(4 * PATIENCE)
        page.on("request", lambda request: requested.append(request.url))
        for name in ("index.html", "concepts/mgrpo.html", "reference/commands.html", "concepts/architecture.html"):
            page.goto((site / name).as_uri())
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= NARROW, f"{name} is {width} pixels wide"
        page.set_viewport_size({"width": 1200, "height": 900})
        page.goto((site / "index.html").as_uri())
        page.fill(".md-search__input", "duplicate_drop")
        page.wait_for_selector(".md-search-result__item a")
        found = page.eval_on_selector_all(".md-search-result__item a", "links => links.map(link => link.href)")
        assert any("mgrpo.html" in address for address in found), found
        browser.close()
    assert [address for address in requested if not address.startswith(("file:", "data:", "blob:", "about:"))] == []
