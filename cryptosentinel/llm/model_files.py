"""The files of a model folder before a library loads them. An error is one sentence. A folder from which a library
would unpickle code is refused.

Any architecture is read that the library's `AutoModelForCausalLM` has a class for, without code of the model's own.
Weights are one `model.safetensors`, or shards that `model.safetensors.index.json` names. Whether they fit, the library
finds out (`nano.load_model`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedTokenizerFast

from cryptosentinel.llm.architecture import blocks_of, empty_model, sizes_of, text_config
from simulator.documents import read_document
from simulator.errors import UserError

CONFIG, TOKENIZER, WEIGHTS, INDEX = "config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"
ANEW = "make, pull or copy the model again"
_MOST_LAYERS = 1000
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
)  # fmt: skip
# Code of the model's own, beside which the library has a class by that name, as of Phi-3 and DeepSeek: never read.
CODE_KEYS = ("auto_map", "custom_pipelines")
_MAY_NOT_SAY = {
    "attn_implementation": "code from a hub",
    "_attn_implementation": "code from a hub",
    "attn_implementation_internal": "code from a hub",
    "experts_implementation": "code from a hub",
    "quantization_config": "weights in another form",
}
# Formats whose reading can run code, and code itself.
_UNSAFE = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.py")
_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16}
_LEFTOVER = "rotary_emb.inv_freq"  # what early conversions kept beside the weights; computed from the config today
GGUF = "python -m scripts.from_gguf FILE.gguf FOLDER"


@dataclass(frozen=True)
class WeightFiles(Mapping[str, Tensor]):
    """The tensors of a folder by name, each read as float32 when it is asked for and kept by nobody.

    `files` says which file holds which tensor, `shapes` is from the headers.
    """

    folder: Path
    files: Mapping[str, Path]
    shapes: Mapping[str, tuple[int, ...]]

    def __getitem__(self, name: str) -> Tensor:
        try:
            with safe_open(self.files[name], framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{self.files[name]} cannot be read ({error}): {ANEW}") from error
        return tensor.to(torch.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def dtype(self) -> torch.dtype:
        """The type of most numbers in the files; float32 where that is not one of `_DTYPES`."""
        counts: Counter[str] = Counter()
        for path in set(self.files.values()):
            with safe_open(path, framework="pt") as file:
                for name, of_file in self.files.items():
                    if of_file == path:
                        counts[file.get_slice(name).get_dtype()] += math.prod(self.shapes[name])
        return _DTYPES.get(counts.most_common(1)[0][0], torch.float32) if counts else torch.float32


def check_folder(folder: Path) -> None:
    """Raise `UserError` unless `folder` is one that this user may read and that holds a config.json."""
    try:
        there = folder.is_dir()
        config = (folder / CONFIG).is_file()
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): give this user permission to read it") from error
    if not there:
        _refuse_gguf(folder, [folder] if folder.suffix == ".gguf" else [])
        raise UserError(f"there is no model folder {folder}: give the folder that holds {CONFIG}")
    if not config:
        _refuse_gguf(folder, sorted(folder.glob("*.gguf")))
        raise UserError(f"{folder} holds no {CONFIG}, so it is not a model folder: give the folder of a model")


def read_config(folder: Path) -> PreTrainedConfig:
    """The architecture that config.json describes. Raises `UserError` for one that the library has no causal language
    model for or cannot build, that brings code of its own, or that is not sound."""
    document = read_object(folder / CONFIG)
    _refuse_code(document, folder)
    kind = document.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise UserError(
            f"the model in {folder} is of type {kind!r}, which transformers {transformers.__version__} does not know "
            "without code of the model's own: give another model, or one that the library has a class for"
        )
    layers = [part.get("num_hidden_layers") for part in (document, *document.values()) if isinstance(part, dict)]
    most = max((one for one in layers if isinstance(one, int)), default=0)
    if most > _MOST_LAYERS:  # the library makes a list of them
        raise UserError(f"{folder / CONFIG} has {most} layers, where at most {_MOST_LAYERS} are read: {ANEW}")
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        for key in CODE_KEYS:  # never read, and not handed on to whoever saves the model
            vars(config).pop(key, None)
        text = text_config(config)
        lowest = min(size for name in _SIZES for size in sizes_of(config, name))
        text.vocab_size + text.hidden_size + text.num_hidden_layers
    except (OSError, ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        raise UserError(f"{folder / CONFIG} cannot be read ({first_line(error)}): {ANEW}") from error
    if lowest < 1:
        raise UserError(f"{folder / CONFIG} has a size of {lowest}, where at least 1 is needed: {ANEW}")
    try:
        blocks_of(empty_model(config), config)
    except UserError as error:
        raise UserError(f"the model in {folder} cannot be used: {error}") from error
    return config


def _refuse_code(document: Mapping[str, Any], folder: Path) -> None:
    """Raise `UserError` where a configuration, or a part of it, has code or weights that are not read."""
    for key in sorted(document.keys() & _MAY_NOT_SAY.keys()):
        if document[key] not in (None, {}, "eager", "sdpa"):
            raise UserError(f"{folder / CONFIG} sets {key}, {_MAY_NOT_SAY[key]}, which is not read: {ANEW}")
    for part in document.values():
        if isinstance(part, dict):
            _refuse_code(part, folder)


def _refuse_gguf(folder: Path, files: list[Path]) -> None:
    """Raise `UserError` where there are GGUF files in place of a folder with safetensors."""
    if files:
        raise UserError(
            f"{files[0]} is GGUF, and models are read as folders with safetensors: make one with `{GGUF}`, or give the "
            "original model"
        )


def weight_files(folder: Path) -> WeightFiles:
    """Which tensors the folder holds, by the headers of its files.

    Raises `UserError` where a file is missing or damaged; those that may hold code are named and not read.
    """
    promised: dict[str, str] = {}
    if (folder / WEIGHTS).is_file():
        shards = [folder / WEIGHTS]
    elif (folder / INDEX).is_file():
        promised = _promised(folder)
        shards = [folder / name for name in sorted(set(promised.values()))]
        missing = [path.name for path in shards if not path.is_file()]
        if missing:
            raise UserError(
                f"{folder} lacks {len(missing)} of its {len(shards)} weight files ({', '.join(missing[:3])}): {ANEW}"
            )
    else:
        _refuse_gguf(folder, sorted(folder.glob("*.gguf")))
        unsafe = unsafe_files(folder)
        found = f" (found {', '.join(unsafe[:5])}, which may hold code and is not read)" if unsafe else ""
        raise UserError(f"{folder} holds no {WEIGHTS} and no {INDEX}{found}: save the model as safetensors")
    files: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in shards:
        for name, shape in _header(path).items():
            if name.endswith(_LEFTOVER):
                continue
            files[name], shapes[name] = path, shape
    lost = sorted(name for name, file in promised.items() if files.get(name) != folder / file)
    if lost:
        raise UserError(f"{promised[lost[0]]} does not hold {lost[0]}, as {folder / INDEX} says: {ANEW}")
    return WeightFiles(folder, files, shapes)


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of the folder. Raises `UserError` where it is missing or damaged."""
    path = folder / TOKENIZER
    if not path.is_file():
        raise UserError(f"{folder} holds no {TOKENIZER}: save the model's fast tokenizer there too")
    read_object(path)
    try:
        tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library raises nothing narrower for a tokenizer.json that is none
        raise UserError(f"the tokenizer in {folder} cannot be read ({first_line(error)}): {ANEW}") from error
    return tokenizer


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises `UserError` where it cannot be read or is not an object."""
    try:
        document = read_document(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): give this user permission to read it") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({first_line(error)}): {ANEW}") from error
    if not isinstance(document, dict):
        raise UserError(f"{path} is not a JSON object: {ANEW}")
    return document


def names_code(folder: Path) -> bool:
    """Whether the configuration names code of the model's own, as `auto_map` does. It is never read."""
    document = read_object(folder / CONFIG)
    return any(document.get(key) for key in CODE_KEYS)


def unsafe_files(folder: Path) -> list[str]:
    """Names of the files in the folder that may hold code, which nothing here reads."""
    return sorted(path.name for pattern in _UNSAFE for path in folder.glob(pattern))


def _promised(folder: Path) -> dict[str, str]:
    """The index: which file holds which tensor."""
    files = read_object(folder / INDEX).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise UserError(f"{folder / INDEX} has no weight_map: {ANEW}")
    for name in files.values():
        if not isinstance(name, str) or Path(name).name != name or Path(name).suffix != ".safetensors":
            raise UserError(
                f"{folder / INDEX} names {name!r}, which is not a *.safetensors file of this folder: {ANEW}"
            )
    return files


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a file's tensors."""
    try:
        with path.open("rb"):  # the library calls a file without permission one that is not there
            pass
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); it may have been cut short: {ANEW}") from error


def first_line(error: Exception) -> str:
    """An error of a library on one line, at most 200 characters."""
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
