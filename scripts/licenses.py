"""The page of licenses: the license of each installed package, from its own metadata."""

from __future__ import annotations

from importlib.metadata import metadata
from pathlib import Path

from packaging.requirements import Requirement

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
# Not in the metadata; read in the package's own license file.
_UNNAMED = {"ta-lib": "BSD-2-Clause"}
# Not installed for development, so that their metadata cannot be read here: what the packages say on their own pages.
_OTHER_EXTRAS = {
    "wandb": "`wandb`: MIT",
    "qlora": "`bitsandbytes`: MIT",
    "vllm": "`vllm`: Apache-2.0, and Nvidia's libraries under Nvidia's own terms",
}


def locked(name: str) -> dict[str, Requirement]:
    """The packages of a lock file that are for this platform, by name."""
    found = {}
    for line in (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            requirement = Requirement(line.removesuffix("\\"))
            if requirement.marker is None or requirement.marker.evaluate():
                found[requirement.name] = requirement
    return found


def license(name: str) -> str:
    """The license of an installed package. Raises `PackageNotFoundError`, and ValueError where it names none."""
    fields = metadata(name)
    classifiers = [
        line.rpartition("::")[2].strip() for line in fields.get_all("Classifier", []) if "License ::" in line
    ]
    for text in (fields["License-Expression"], "; ".join(sorted(classifiers)), fields["License"], _UNNAMED.get(name)):
        if text and len(text) < 150:
            return str(text)
    raise ValueError(f"{name} names no license in its metadata: read it, and add it to {__name__}")


def licenses_page() -> str:
    """The whole page."""
    light, dev = locked("base"), locked("dev")
    whole = {one: pin for name in ("base", "train", "torch", "llm", "ui", "paper") for one, pin in locked(name).items()}
    lines = [
        "# Licenses",
        "",
        "The project is under the [Apache License 2.0](../../LICENSE). The packages below are installed beside it and "
        "are not part of it. Their versions are in `requirements/`, with the hashes of their files.",
        "",
        "## What a user installs",
        "",
        "`pip install` of the project without an extra brings these packages, and no others.",
        "",
        *_table(light),
        "",
        "`make demo`, `make ui` and the extra `all` (`train`, `llm`, `ui` and `paper`) bring these besides.",
        "",
        *_table({name: requirement for name, requirement in whole.items() if name not in light}),
        "",
        "PyTorch's build for Nvidia's cards brings the packages of `requirements/cuda.txt` as well. They are under "
        "Nvidia's own terms; `triton` is under MIT.",
        "",
        "Extras that are not installed by default:",
        "",
        *(f"* `{extra}`: {text}" for extra, text in _OTHER_EXTRAS.items()),
        "* `ray`: `ray`: Apache-2.0",
        "",
        "## What only development installs",
        "",
        "`make test` adds these. **`backtesting` is under the AGPL-3.0**: it is one of the engines that the exchange "
        "is compared with in tests and benchmarks. No file of the program imports it, no extra names it and no user "
        "installs it. The same holds for the engines in `.venv-peers`, which only `make bench` installs: `backtesting` "
        "again, `vectorbt` (Apache-2.0 with the Commons Clause) and `gym-trading-env` (MIT).",
        "",
        "`make site` builds the documentation with `mkdocs` (BSD-2-Clause) and `mkdocs-material` (MIT), in an "
        "environment of their own.",
        "",
        *_table({name: requirement for name, requirement in dev.items() if name not in whole}),
        "",
        "## Parts of the project that others' work went into",
        "",
        "`cryptosentinel/conversation/english_words.txt` holds ordinary English words, chosen by their rank in the "
        "frequency lists of symspellpy (MIT, copyright 2025 mmb L, 2021 Wolf Garbe) and pyspellchecker (MIT, copyright "
        "2018-2021 Tyler Barrus).",
        "",
        "`backend/reporting/plotly/plotly-finance.min.js.gz` is the file of that name of the npm package "
        "`plotly.js-finance-dist-min` 4.1.0, packed by `gzip -9 -n` (MIT, copyright 2012-2026 Plotly, Inc.). A report "
        "holds a copy of it.",
        "",
        "`docs/assets/iframe-worker.js` is `shim/index.js` of the npm package `iframe-worker` 1.0.4 (MIT, copyright "
        "2020-2022 Martin Donath). The documentation's site holds a copy of it, and of the scripts, styles and icons "
        "of `mkdocs-material`.",
        "",
    ]
    return "\n".join(lines)


def _table(packages: dict[str, Requirement]) -> list[str]:
    rows = [f"| {name} | {license(name)} |" for name in sorted(packages)]
    return ["| package | license |", "| --- | --- |", *rows]
