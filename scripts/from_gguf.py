"""Makes an ordinary model folder of a GGUF file: `python -m scripts.from_gguf FILE FOLDER`.

The folder holds `config.json`, `tokenizer.json` with the chat template beside it, and `model.safetensors` in float32:
what the file's quantization left of each weight, and nothing rounded again. transformers reads the file; it knows some
twenty architectures, and refuses the others by name. It reads every tokenizer of the GPT-2 kind as GPT-2's own, so
`SPLITS` puts right how text is cut before the merges, where that is known; of any other the script says that
`tokenizer.json` should come from the original model.

Wants the package `gguf`: `python scripts/install.py gguf`.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

# How text is cut before merges, by the name that llama.cpp has for it (`tokenizer.ggml.pre`).
SPLITS = {
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
}
_MODEL, _SPLIT = "tokenizer.ggml.model", "tokenizer.ggml.pre"


class NoFolder(Exception):
    """Why no folder could be made, and what to do."""


def convert(file: Path, folder: Path) -> str:
    """Write the model in `file` to `folder`, whole or not at all; returns what to know of the tokenizer, or nothing.

    Raises `NoFolder` where `folder` is there already, `file` is no GGUF file, or its architecture is not known.
    """
    if importlib.util.find_spec("gguf") is None:
        raise NoFolder("the package gguf is not installed: run `python scripts/install.py gguf` first")
    if folder.exists():
        raise NoFolder(f"{folder} is there already: remove it, or give another folder")
    if not file.is_file():
        raise NoFolder(f"there is no file {file}: give a *.gguf file")
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        split = _splitting(file)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
        read = AutoModelForCausalLM.from_pretrained(file.parent, **where, dtype="float32")
        config = AutoConfig.from_pretrained(file.parent, **where)
    except Exception as error:  # of a damaged file the libraries raise whatever comes, a plain `Exception` among it
        raise NoFolder(f"{file} cannot be read ({' '.join(str(error).split())[:300]}): give another file") from error
    note = ""
    if split in SPLITS:
        tokenizer.backend_tokenizer.pre_tokenizer = SPLITS[split]
    elif split is not None:
        note = (
            f"the tokenizer cuts text as '{split}', which is not known here, so its tokens may differ from the "
            "original's: put the original model's tokenizer.json into the folder"
        )
    config.dtype, config.name_or_path = "float32", ""
    # A model made anew, since one that was read from a quantised file refuses to be saved.
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(read.state_dict())
    unfinished = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(folder)
    return note


def _splitting(file: Path) -> str | None:
    """The name of how text is cut before merges; None where there are no merges."""
    from gguf import GGUFReader

    fields = GGUFReader(file).fields
    if _MODEL not in fields or fields[_MODEL].contents() != "gpt2":
        return None
    return str(fields[_SPLIT].contents()) if _SPLIT in fields else "gpt-2"


def main(arguments: list[str]) -> int:
    """The exit code is 2 where the folder could not be made."""
    parser = argparse.ArgumentParser(description="Make an ordinary model folder of a GGUF file.")
    parser.add_argument("file", type=Path, help="a *.gguf file")
    parser.add_argument("folder", type=Path, help="the folder to make")
    given = parser.parse_args(arguments)
    return run(given.file, given.folder)


def run(file: Path, folder: Path) -> int:
    """`convert`, with its words on the terminal and its exit code."""
    try:
        note = convert(file, folder)
    except NoFolder as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{folder} is made" + (f"; {note}" if note else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
