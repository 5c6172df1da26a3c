"""Which folders go into the wheel: the packages, and the presets and the sample as data of the packages that read them.

The rest is in pyproject.toml, which cannot say that a folder is installed under another name.
"""

from setuptools import find_namespace_packages, setup

FOLDERS = {"backend.config.presets": "configs", "backend.runs.sample": "data/synthetic"}

setup(
    packages=[
        *find_namespace_packages(include=["cryptosentinel*", "backend*", "simulator*", "ui*"]),
        *FOLDERS,
    ],
    package_dir=FOLDERS,
)
