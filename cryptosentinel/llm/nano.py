"""Nano: a Qwen3-architecture model of about a million parameters and its tokenizer, both made from scratch.

It makes the whole loop real on a laptop. Folders it is kept in are ordinary Hugging Face folders, safetensors only, and
`load_model` reads those of any causal language model just as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from cryptosentinel.llm.architecture import causal_class, empty_model, tied_names, vocabulary_of
from cryptosentinel.llm.chat_codec import CHAT_TEMPLATE, PADDING, SPECIAL_TOKENS, TURN_END, add_special_tokens
from cryptosentinel.llm.model_files import ANEW, check_folder, first_line, read_config, read_tokenizer, weight_files
from cryptosentinel.llm.templates import chat_format
from simulator.documents import read_document
from simulator.errors import RunFailed, UserError
from simulator.files import whole_folder

TEMPLATE_FILE = "chat_template.jinja"
NANO_VOCABULARY = 1280  # entries at most: more merges would be of rare texts
# Digits, signs and line breaks stand alone: numbers are read digit by digit, a sign is always the same token. All else
# may merge, spaces and punctuation included, so the fixed parts of a tool call become very few tokens.
_ISOLATED = Regex(r"[0-9]|[+\-]|\n")


def train_tokenizer(texts: Iterable[str], vocab_size: int = NANO_VOCABULARY) -> PreTrainedTokenizerFast:
    """Byte-level BPE over `texts` (lossless on any UTF-8) with the chat format's special tokens and template.

    `vocab_size` counts everything and is an upper bound: few texts hold few merges. The same texts in the same order
    give the same tokenizer. Raises `UserError` if `vocab_size` cannot hold the bytes and the special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(alphabet) + len(SPECIAL_TOKENS):
        raise UserError(
            f"vocab_size {vocab_size} is too small: {len(alphabet)} bytes and {len(SPECIAL_TOKENS)} special tokens "
            f"need at least {len(alphabet) + len(SPECIAL_TOKENS)}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_ISOLATED, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        max_token_length=64,
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_between_special_tokens(texts), trainer)
    add_special_tokens(tokenizer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=PADDING,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def nano_config(
    vocab_size: int,
    *,
    hidden_size: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    intermediate_size: int = 384,
    max_positions: int = 4096,
) -> Qwen3Config:
    """Configuration of a small Qwen3 model; the defaults make about 0.9 million parameters at a vocabulary of 1024."""
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        # The library's 0.02 suits wide models; at this width so small a start delays learning by hundreds of steps.
        initializer_range=0.06,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )


def new_nano(seed: int, config: Qwen3Config) -> Qwen3ForCausalLM:
    """A freshly initialized float32 model; the same seed gives the same weights and leaves torch's generator alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Qwen3ForCausalLM = Qwen3ForCausalLM(config).float().eval()
        return model


def save_model(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write model and tokenizer to `folder` (safetensors). An earlier content is replaced only once all is written."""
    with whole_folder(folder) as unfinished, _quiet():
        try:
            model.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
        except Exception as error:  # the tokenizers library raises plain `Exception` where the disk is full
            if isinstance(error, OSError) or not (isinstance(error, SafetensorError) or "os error" in str(error)):
                raise
            raise RunFailed(
                f"{folder} cannot be written ({error}): free some space or choose another folder"
            ) from error


def load_model(
    folder: Path, dtype: torch.dtype | None = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Read a causal language model (evaluation mode) and its tokenizer from `folder`; nothing is downloaded. With
    `dtype` None its numbers are those of its files, so that a model of 16 bits takes no more than they do.

    Raises `UserError` if something is missing, is of an architecture that cannot be used, or has no usable chat format.
    """
    config, tokenizer = read_base(folder)
    files = weight_files(folder)
    described = sum(one.numel() for one in empty_model(config).parameters())
    if described > 2 * files.parameters:  # what is missing would take memory before it is found out
        raise UserError(
            f"config.json in {folder} describes a model of {described:,} numbers, and its weights are "
            f"{files.parameters:,}: {ANEW}"
        )
    built: Any = causal_class(config)
    try:
        with _quiet():
            loaded: Any = built.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                use_safetensors=True,
                dtype=files.dtype if dtype is None else dtype,
                ignore_mismatched_sizes=True,  # they are named below
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"the model in {folder} cannot be read ({first_line(error)}): {ANEW}") from error
    model: PreTrainedModel = loaded[0]
    report: dict[str, Any] = loaded[1]
    # The library would fill what is missing with random numbers and only warn.
    wrong = [
        f"{kind.replace('_', ' ')} {', '.join(sorted(map(str, keys))[:3])}" for kind, keys in report.items() if keys
    ]
    if wrong:
        raise UserError(f"the weights in {folder} are not those of its config.json ({'; '.join(wrong)}): {ANEW}")
    for name, first in tied_names(config).items():
        if model.get_parameter(name) is not model.get_parameter(first):
            raise UserError(
                f"config.json in {folder} says that embedding and output layer are one, but its weights differ: set "
                "tie_word_embeddings to false there, or copy the model again"
            )
    return model.eval(), tokenizer


def is_nano(folder: Path) -> bool:
    """Whether the model in `folder` was made by this project, so that its warm start taught it the team's tools."""
    template = folder / TEMPLATE_FILE
    try:
        if template.is_file():
            return template.read_text(encoding="utf-8") == CHAT_TEMPLATE
        return bool(read_document(folder / "tokenizer_config.json")["chat_template"] == CHAT_TEMPLATE)
    except (OSError, LookupError, TypeError, ValueError):
        return False


def read_base(folder: Path) -> tuple[PreTrainedConfig, PreTrainedTokenizerFast]:
    """Architecture and tokenizer of the model in `folder`, checked as `load_model` checks them; no weight is read."""
    check_folder(folder)
    config = read_config(folder)
    weight_files(folder)
    with _quiet():
        tokenizer = read_tokenizer(folder)
    check_vocabulary(config, tokenizer, folder)
    chat_format(tokenizer, folder)
    return config, tokenizer


def check_vocabulary(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Raise `UserError` unless the model has an embedding for every token."""
    highest = max(tokenizer.get_vocab().values(), default=0)
    if vocabulary_of(config) <= highest:
        raise UserError(
            f"the model in {folder} has {vocabulary_of(config)} token embeddings, its tokenizer ids up to {highest}: "
            "they do not belong together; give the tokenizer that the model was trained with"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from drawing bars and reports over what we print."""
    enabled, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if enabled:
            logging.enable_progress_bar()


def _between_special_tokens(texts: Iterable[str]) -> Iterator[str]:
    """The stretches of `texts` between special tokens, which no merge may cross or contain."""
    for text in texts:
        stretches = [text]
        for token in SPECIAL_TOKENS:
            stretches = [piece for stretch in stretches for piece in stretch.split(token)]
        yield from (stretch for stretch in stretches if stretch)
