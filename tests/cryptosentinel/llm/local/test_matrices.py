"""Products of matrices, packed ones, and a model that is large enough to be decoded with them and sampled by blocks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Request, Sampling
from cryptosentinel.llm.local import matrices
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.local.matrices import CHOICE, Matrix, keep_products, packs, product, products

pytestmark = pytest.mark.skipif(not torch._C._has_mkldnn, reason="torch is without oneDNN here")
VOCABULARY = 8500


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has not chosen yet."""
    monkeypatch.setenv(CHOICE, "")
    products.cache_clear()
    yield
    products.cache_clear()


def test_a_packed_matrix_multiplies_and_is_kept_once(unmeasured: None) -> None:
    rng = torch.Generator().manual_seed(0)
    keep_products("onednn")
    weight, left = torch.randn(512, 520, generator=rng), torch.randn(5, 512, generator=rng)
    bias, to = torch.randn(520, generator=rng), torch.randn(5, 520, generator=rng)
    matrix = Matrix(weight)
    torch.testing.assert_close(matrix.times(left), left @ weight, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(matrix.times(left, bias), left @ weight + bias, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(matrix.added(to, left), to + left @ weight, atol=1e-4, rtol=1e-5)
    assert matrix.memory()[1] == weight.nbytes
    assert Matrix.kept(weight.clone(), [matrix]) is matrix
    changed = weight.clone()
    changed[511, 519] += 1e-3  # one number, and none of those that are looked at first
    assert Matrix.kept(changed, [matrix]) is not matrix
    changed[:] = 0.0
    torch.testing.assert_close(matrix.times(left), left @ weight, atol=1e-4, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 130), st.integers(1, 90), st.integers(1, 130), st.booleans(), st.booleans(), st.integers(0, 2),
    st.integers(0, 2),
)  # fmt: skip
def test_a_product_is_torchs_whichever_kernel_computes_it(
    rows: int, size: int, out: int, wide: bool, bias: bool, of_left: int, of_weight: int
) -> None:
    """Transposed, cut out of a wider matrix or repeated by a stride of 0, and on both sides of the border."""
    rng = torch.Generator().manual_seed(rows * size + out)
    factor = 4 if wide else 1  # most of the wide ones are oneDNN's

    def made(lines: int, columns: int, kind: int) -> torch.Tensor:
        if kind == 1:
            return torch.randn(columns, lines, generator=rng).t()
        if kind == 2:
            return torch.randn(lines, columns + 3, generator=rng)[:, 2:-1]
        return torch.randn(lines, columns, generator=rng)

    left, weight = made(factor * rows, size, of_left), made(factor * out, size, of_weight)
    added = torch.randn(factor * out, generator=rng) if bias else None
    expected = left.double() @ weight.double().t()
    expected = expected if added is None else expected + added.double()
    torch.testing.assert_close(product(left, weight, added).double(), expected, atol=1e-4, rtol=1e-5)
    to = torch.randn(factor * rows, factor * out, generator=rng)
    kept = to.clone()
    total = Matrix(weight.t()).added(to, left)
    torch.testing.assert_close(total.double(), to.double() + left.double() @ weight.double().t(), atol=1e-4, rtol=1e-5)
    assert torch.equal(to, kept), "what is added to is left as it was"
    row = left[:1].expand(left.shape)
    torch.testing.assert_close(product(row, weight), product(row.contiguous(), weight), atol=1e-4, rtol=1e-5)


def test_the_faster_kernel_is_chosen_in_a_tenth_of_a_second(unmeasured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.thread_time()
    assert products() in ("onednn", "torch")
    assert time.thread_time() - began < 0.1
    linear = torch.nn.functional.linear
    for theirs, chosen in ((lambda *_: None, "torch"), (lambda *of: [linear(*of) for _ in range(4)], "onednn")):
        monkeypatch.setattr(matrices.functional, "linear", theirs)
        assert matrices._measured() == chosen


def test_the_choice_decides_every_bit_and_is_handed_on(unmeasured: None) -> None:
    rng = torch.Generator().manual_seed(0)
    left, weight = torch.randn(1024, 384, generator=rng), torch.randn(700, 384, generator=rng)
    keep_products("torch")
    assert torch.equal(product(left, weight), torch.nn.functional.linear(left, weight))
    assert torch.equal(Matrix(weight.t()).times(left), torch.nn.functional.linear(left, weight)), "none is packed"
    for nonsense in (None, "", "both", 3):
        keep_products(nonsense)
        assert products() == "torch"
    asked = "from cryptosentinel.llm.local.matrices import products; print(products())"
    for choice in ("torch", "onednn"):
        keep_products(choice)
        told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
        assert told.stdout.split() == [choice] == [products()]


_SHAPES = """
import resource, torch
from cryptosentinel.llm.local.matrices import keep_products, product
keep_products("onednn")
torch.set_num_threads(1)
left, weight = torch.randn(2000, 128), torch.randn(384, 128)
product(left[:100], weight)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for rows in range(1000, 1600):
    product(left[:rows], weight)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_products_of_many_shapes_keep_few_kernels() -> None:
    """In a process of its own: the libraries read how many to keep at their first product."""
    named = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    environment = {name: value for name, value in os.environ.items() if name not in named}
    run = subprocess.run([sys.executable, "-c", _SHAPES], env=environment, capture_output=True, text=True, check=True)
    assert float(run.stdout) < 300  # megabytes; 600 kernels are 700


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, initializer_range=0.08,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_of_packed_matrices_is_the_librarys(model: Any, dtype: torch.dtype) -> None:
    if not packs(torch.device("cpu"), dtype):
        pytest.skip("no kernels for these numbers on this processor")
    codec = make_byte_codec()
    codec.end_of_turn = -1
    state = model.state_dict()
    engine = LocalEngine(codec, model.config, {"manager": state}, dtype=dtype)
    alone = engine.weight_bytes
    engine.set_weights("trader", {name: weight.clone() for name, weight in state.items()}, "equal")
    assert engine.weight_bytes == alone, "equal weights are held once"
    rng = torch.Generator().manual_seed(1)
    prompts = [tuple(torch.randint(0, VOCABULARY, (length,), generator=rng).tolist()) for length in (4, 9, 9)]
    requests = [Request("manager", ids, Sampling(temperature, 12), 3) for ids in prompts for temperature in (0.0, 0.7)]
    answers = engine.generate(requests)
    tolerance = 2e-5 if dtype == torch.float32 else 0.25  # of log-probs around -6, by weights of eight bits
    with torch.no_grad():
        for request, answer in zip(requests, answers, strict=True):
            ids = torch.tensor([request.ids + answer.ids])
            logits = model(ids).logits[0, len(request.ids) - 1 : -1] / (request.sampling.temperature or 1.0)
            expected = logits.log_softmax(-1).gather(1, ids[0, len(request.ids) :, None])[:, 0]
            torch.testing.assert_close(torch.tensor(answer.logps), expected, atol=tolerance, rtol=0)
            if request.sampling.temperature == 0.0 and dtype == torch.float32:
                theirs = model.generate(ids[:, : len(request.ids)], max_new_tokens=12, do_sample=False, pad_token_id=0)
                assert theirs[0, len(request.ids) :].tolist() == list(answer.ids)
