"""Makes an ordinary model folder of a GGUF file: `python -m scripts.from_gguf FILE FOLDER`.

The folder holds `config.json`, `tokenizer.json` with the chat template beside it, and `model.safetensors` in float32:
what the file's quantization left of each weight, and nothing rounded again. transformers reads the weights; it knows
some twenty architectures, and refuses the others by name. A tokenizer of the GPT-2 kind is put together here out of
what the file says, since releases of transformers differ in what they make of it: 5.17 takes the token that begins a
turn for the one that ends it. How text is cut before the merges has a name in the file; of one that `SPLITS` does not
know the script says that `tokenizer.json` should come from the original model.

Wants the package `gguf`: `python scripts/install.py gguf`.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# How text is cut before merges, by the name that llama.cpp has for it (`tokenizer.ggml.pre`).
SPLITS = {
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
}
# What a tokenizer is told of its special tokens, by the file's names for it.
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_NAME = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4  # types of tokens that are no text, and that are never cut


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
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:
        fields = {name: field.contents() for name, field in GGUFReader(file).fields.items()}
        byte_level = fields.get(_NAME + "model") == "gpt2"
        tokenizer = byte_level_tokenizer(fields) if byte_level else AutoTokenizer.from_pretrained(file.parent, **where)
        read = AutoModelForCausalLM.from_pretrained(file.parent, **where, dtype="float32")
        config = AutoConfig.from_pretrained(file.parent, **where)
    except Exception as error:  # of a damaged file the libraries raise whatever comes, a plain `Exception` among it
        raise NoFolder(f"{file} cannot be read ({' '.join(str(error).split())[:300]}): give another file") from error
    note, split = "", fields.get(_NAME + "pre", "gpt-2")
    if byte_level and split not in SPLITS:
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


def byte_level_tokenizer(fields: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """The tokenizer of what a file says: tokens with their types, merges, the ids of special tokens, and the template.

    Raises `KeyError` or `ValueError` for a file that contradicts itself.
    """
    from transformers import PreTrainedTokenizerFast

    tokens, types = list(fields[_NAME + "tokens"]), list(fields[_NAME + "token_type"])
    merges = [tuple(line.split(" ", 1)) for line in fields[_NAME + "merges"]]
    backend = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = SPLITS.get(fields.get(_NAME + "pre", "gpt-2"), SPLITS["gpt-2"])
    backend.decoder = decoders.ByteLevel()
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        of_kind = [token for token, one in zip(tokens, types, strict=True) if one == kind]
        backend.add_tokens([AddedToken(token, normalized=False, special=special) for token in of_kind])
    ids = {name: fields.get(f"{_NAME}{field}_token_id") for name, field in SPECIAL.items()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, **{name: tokens[at] for name, at in ids.items() if at is not None}
    )
    tokenizer.chat_template = fields.get("tokenizer.chat_template")
    return tokenizer


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
