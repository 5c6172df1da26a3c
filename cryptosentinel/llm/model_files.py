"""Checks of a Qwen3 model folder before a library loads it. An error is one sentence. A folder from which a library
would unpickle code, or fill in missing weights, is refused.

Weights are one `model.safetensors`, or shards that `model.safetensors.index.json` names. Their headers say every
tensor's shape, so that a folder that does not fit is refused without reading a weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from simulator.documents import read_document
from simulator.errors import UserError

CONFIG, TOKENIZER, WEIGHTS, INDEX = "config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"
ANEW = "make, pull or copy the model anew"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_MOST_LAYERS = 1000
# What config.json may say: the architecture in numbers and names. All else is for other programs, and not passed on.
_MAY_SAY = frozenset(
    (
        "architectures", "attention_bias", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "head_dim",
        "hidden_act", "hidden_size", "initializer_range", "intermediate_size", "layer_types",
        "max_position_embeddings", "max_window_layers", "model_type", "num_attention_heads", "num_hidden_layers",
        "num_key_value_heads", "pad_token_id", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta",
        "sliding_window", "tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache",
        "use_sliding_window", "vocab_size",
    )
)  # fmt: skip
_MAY_NOT_SAY = {
    "auto_map": "code of its own",
    "custom_pipelines": "code of its own",
    "attn_implementation": "code from a hub",
    "_attn_implementation": "code from a hub",
    "attn_implementation_internal": "code from a hub",
    "quantization_config": "weights in another form",
}
# Formats whose reading can run code, and code itself.
_UNSAFE = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.py")


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


def check_folder(folder: Path) -> None:
    """Raise `UserError` unless `folder` is one that this user may read and that holds a config.json."""
    try:
        there = folder.is_dir()
        config = (folder / CONFIG).is_file()
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): give this user permission to read it") from error
    if not there:
        raise UserError(f"there is no model folder {folder}{_broken_link(folder)}: give the folder that holds {CONFIG}")
    if not config:
        link = _broken_link(folder / CONFIG)
        raise UserError(f"{folder} holds no {CONFIG}{link}, so it is no model folder: give the folder of a model")


def read_config(folder: Path) -> Qwen3Config:
    """The architecture that config.json describes. Raises `UserError` for one that is not Qwen3's or not sound."""
    document = read_object(folder / CONFIG)
    for key in sorted(document.keys() & _MAY_NOT_SAY.keys()):
        if document[key] not in (None, {}, "eager", "sdpa"):
            raise UserError(f"{folder / CONFIG} names {key}, {_MAY_NOT_SAY[key]}, which is not read: {ANEW}")
    document = {key: value for key, value in document.items() if key in _MAY_SAY}
    kind = document.get("model_type")
    if kind != "qwen3":
        raise UserError(f"the model in {folder} is of type {kind!r}; only 'qwen3' is supported: give a Qwen3 model")
    layers = document.get("num_hidden_layers")
    if isinstance(layers, int) and layers > _MOST_LAYERS:  # the library makes a list of them
        raise UserError(f"{folder / CONFIG} says {layers} layers, where at most {_MOST_LAYERS} are read: {ANEW}")
    try:
        config: Qwen3Config = Qwen3Config.from_dict(document)
        sizes = (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_hidden_layers)
        groups = config.num_key_value_heads
        heads = (config.num_attention_heads, config.num_attention_heads if groups is None else groups, config.head_dim)
        lowest = min(*sizes, *heads, config.max_position_embeddings)
    except (ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        raise UserError(f"{folder / CONFIG} cannot be read ({_first_line(error)}): {ANEW}") from error
    if lowest < 1:
        raise UserError(f"{folder / CONFIG} has a size of {lowest}, where at least 1 is needed: {ANEW}")
    return config


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
        unsafe = unsafe_files(folder)
        found = f" (found {', '.join(unsafe[:5])}, which may hold code and is not read)" if unsafe else ""
        found = _broken_link(folder / WEIGHTS) or _broken_link(folder / INDEX) or found
        raise UserError(f"{folder} holds no {WEIGHTS} and no {INDEX}{found}: save the model as safetensors")
    files: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for path in shards:
        for name, shape in _header(path).items():
            files[name], shapes[name] = path, shape
    lost = sorted(name for name, file in promised.items() if files.get(name) != folder / file)
    if lost:
        raise UserError(f"{promised[lost[0]]} does not hold {lost[0]}, as {folder / INDEX} says: {ANEW}")
    return WeightFiles(folder, files, shapes)


def check_weights(config: Qwen3Config, weights: WeightFiles) -> None:
    """Raise `UserError` unless the tensors' names and shapes are those of the architecture."""
    expected = expected_shapes(config, weights)
    odd = [f"{name} is missing" for name in expected if name not in weights.shapes and not _tied(config, name)]
    odd += [f"{name} is unknown" for name in sorted(weights.shapes) if name not in expected]
    odd += [
        f"{name} is {weights.shapes[name]}, not {shape}"
        for name, shape in expected.items()
        if weights.shapes.get(name, shape) != shape
    ]
    if odd:
        more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
        problems = "; ".join(odd[:3]) + more
        raise UserError(f"the weights in {weights.folder} are not those of its {CONFIG} ({problems}): {ANEW}")


def expected_shapes(config: Qwen3Config, weights: WeightFiles) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter of the architecture, in the order of the names. No memory is taken for them.

    Raises `UserError` for an architecture that cannot be built.
    """
    layers = {name.split(".")[2] for name in weights.shapes if name.startswith("model.layers.")}
    if config.num_hidden_layers != len(layers):  # first: a wrong number may be one that takes for ever to build
        raise UserError(
            f"the weights in {weights.folder} are of {len(layers)} layers, its {CONFIG} says "
            f"{config.num_hidden_layers}: {ANEW}"
        )
    try:
        with torch.device("meta"):
            state = Qwen3ForCausalLM(config).state_dict()
    except (ValueError, TypeError, KeyError, RuntimeError, ArithmeticError) as error:
        where = weights.folder / CONFIG
        raise UserError(f"{where} describes a model that cannot be built ({_first_line(error)}): {ANEW}") from error
    return {name: tuple(state[name].shape) for name in sorted(state)}


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of the folder. Raises `UserError` where it is missing or damaged."""
    path = folder / TOKENIZER
    if not path.is_file():
        raise UserError(f"{folder} holds no {TOKENIZER}{_broken_link(path)}: save the model's fast tokenizer there too")
    read_object(path)
    try:
        tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library raises nothing narrower for a tokenizer.json that is none
        raise UserError(f"the tokenizer in {folder} cannot be read ({_first_line(error)}): {ANEW}") from error
    return tokenizer


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises `UserError` where it cannot be read or is none."""
    try:
        document = read_document(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): give this user permission to read it") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({_first_line(error)}): {ANEW}") from error
    if not isinstance(document, dict):
        raise UserError(f"{path} is no JSON object: {ANEW}")
    return document


def unsafe_files(folder: Path) -> list[str]:
    """Names of the files in the folder that may hold code, which nothing here reads."""
    return sorted(path.name for pattern in _UNSAFE for path in folder.glob(pattern))


def _tied(config: Qwen3Config, name: str) -> bool:
    """Whether a tensor may be missing because it is another one."""
    return bool(config.tie_word_embeddings) and name == HEAD


def _promised(folder: Path) -> dict[str, str]:
    """The index: which file holds which tensor."""
    files = read_object(folder / INDEX).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise UserError(f"{folder / INDEX} has no weight_map: {ANEW}")
    for name in files.values():
        if not isinstance(name, str) or Path(name).name != name or Path(name).suffix != ".safetensors":
            raise UserError(f"{folder / INDEX} names {name!r}, which is no *.safetensors file of this folder: {ANEW}")
    return files


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a file's tensors."""
    try:
        with path.open("rb"):  # the library calls a file without permission one that is not there
            pass
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({_first_line(error)}); it may have been cut short: {ANEW}") from error


def _broken_link(path: Path) -> str:
    """Words for a link that leads to nothing, or to itself."""
    return f" ({path.name} is a link that leads nowhere)" if path.is_symlink() else ""


def _first_line(error: Exception) -> str:
    """An error of a library on one line, at most 200 characters."""
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
