"""Products of rows with a weight matrix, by the kernel that is quickest.

On a CPU torch multiplies matrices of float32 by MKL. It also has oneDNN. On an AMD EPYC of the fifth generation oneDNN
does 160 to 250 billion operations a second on a core and MKL 105, on one of the fourth generation 110 and 100, and on
other processors MKL is the faster one (`make bench ONLY=engine.products`). So `products` measures both once. A call of
oneDNN takes 10 us more, so small products stay with MKL.

A large matrix is kept packed, in blocks as oneDNN's kernels read them. Unpacked, the library brings it into such an
order at every product, which with few rows takes longer than the product itself: with 32 rows of SmolLM2-135M the
packed product is about 1.7 times as fast in float32.

oneDNN makes a kernel for each shape of a product, of about a megabyte, and keeps the last 1,024; so does torch. The
rows of a batch are hardly ever as many as before, so both are told to keep `_KERNELS`: a training of nano takes one
gigabyte in place of two. Where the environment says how many (`ONEDNN_PRIMITIVE_CACHE_CAPACITY`,
`LRU_CACHE_CAPACITY`), that holds.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from functools import cache
from typing import Literal

import torch
from torch.nn import functional

QUICK_FROM = 2**20  # multiplications of a product from which oneDNN's kernel is quicker
PACKED_FROM = 2**18  # numbers in a matrix; nano's largest has 2^17
_ROWS = 32  # rows of a product that the order is chosen for; others use the same order
_KERNELS = 32  # that are kept; the layers of a pass share a dozen
_SAMPLE = 4096  # numbers that are compared before a packed matrix is unpacked to compare all of it
Products = Literal["onednn", "torch"]
CHOICE = "CRYPTOSENTINEL_PRODUCTS"  # environment variable: the choice of the process that started this one
_TRIED, _TRIES = (512, 128, 384), 12  # rows, in, out of nano's MLP; 0.02 seconds in all
_CLEARLY = 0.95  # of torch's rate: a smaller loss is noise, and the choice must not depend on noise

for _name in (b"ONEDNN_PRIMITIVE_CACHE_CAPACITY", b"LRU_CACHE_CAPACITY"):  # read at the first product
    # Past `os.environ`, so that a server that is started from here keeps what it would have kept.
    ctypes.CDLL(None).setenv(_name, str(_KERNELS).encode(), 0)


def product(left: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """left (X, in) times the transpose of weight (out, in), and the bias (out,), without a gradient."""
    if _quick(left, weight.numel()):
        quick: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, weight, bias, "none", [], "")
        return quick
    return functional.linear(left, weight, bias)


@cache
def products() -> Products:
    """Who multiplies large matrices of float32 on a CPU: oneDNN, unless torch's own product is clearly faster here.

    Both round differently in the last bits, so a training must not change its choice: processes that this one starts
    inherit it, and a run records it (`backend.policies.hardware`).
    """
    if not torch._C._has_mkldnn:
        return "torch"
    if os.environ.get(CHOICE) not in ("onednn", "torch"):
        os.environ[CHOICE] = _measured()
    return "torch" if os.environ[CHOICE] == "torch" else "onednn"


def keep_products(choice: object) -> None:
    """Multiply as a process with this choice did; anything else than a choice changes nothing."""
    if choice in ("onednn", "torch"):
        os.environ[CHOICE] = str(choice)
        products.cache_clear()


def _measured() -> Products:
    rows, size, out = _TRIED
    left, weight = torch.ones(rows, size), torch.ones(out, size)
    fastest = {"onednn": float("inf"), "torch": float("inf")}
    with torch.inference_mode():
        for _ in range(_TRIES):  # by turns; the least of the thread's own time is free of what else runs
            for name in fastest:
                began = time.thread_time()
                if name == "onednn":
                    torch.ops.mkldnn._linear_pointwise(left, weight, None, "none", [], "")
                else:
                    functional.linear(left, weight)
                fastest[name] = min(fastest[name], time.thread_time() - began)
    return "torch" if fastest["torch"] < _CLEARLY * fastest["onednn"] else "onednn"


class Matrix:
    """A weight of shape (in, out). `shared` says that its unpacked memory belongs to another tensor (an embedding), so
    it is taken as it is instead of copied."""

    def __init__(self, weight: torch.Tensor, *, shared: bool = False) -> None:
        rows_first = weight.t()  # (out, in), as oneDNN wants it
        self._plain: torch.Tensor | None = None
        self._packed: torch.Tensor | None = None
        self._sample = _sample_of(weight)
        if _packs(weight):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(rows_first.contiguous(), _ROWS)
        else:
            self._plain = weight if shared else weight.clone(memory_format=torch.contiguous_format)

    @classmethod
    def kept(cls, weight: torch.Tensor, others: Sequence[Matrix]) -> Matrix:
        """The first of `others` that equals `weight` (in, out), or else a matrix of its own memory."""
        return next((other for other in others if other.equals(weight)), None) or cls(weight)

    def equals(self, weight: torch.Tensor) -> bool:
        """Whether all numbers are those of `weight` (in, out)."""
        if self._plain is not None:
            return torch.equal(self._plain, weight)
        assert self._packed is not None
        if not torch.equal(self._sample, _sample_of(weight)):
            return False
        return torch.equal(self._packed.to_dense(), weight.t())

    def times(self, left: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """left (X, in) times this, and the bias (out,)."""
        if self._packed is not None:
            packed: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, self._packed, bias, "none", [], "")
            return packed
        assert self._plain is not None
        return product(left, self._plain.t(), bias)

    def added(self, to: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        """to (X, out) plus left (X, in) times this, in one operation where there is one."""
        weight = self._packed
        if weight is None:
            assert self._plain is not None
            if not _quick(left, self._plain.numel()):
                return torch.addmm(to, left, self._plain)
            weight = self._plain.t()
        total: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(left, to, weight, None, "add")
        return total

    def memory(self) -> tuple[int, int]:
        """The address of the numbers, and how many bytes they take."""
        if self._packed is not None:
            return id(self._packed), self._packed.numel() * self._packed.element_size()
        assert self._plain is not None
        storage = self._plain.untyped_storage()
        return storage.data_ptr(), storage.nbytes()


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether large matrices are packed on this device and in these numbers."""
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if dtype == torch.float32:
        return products() == "onednn"
    return dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def copies_head(numbers: int) -> bool:
    """Whether a float32 output layer of that number of entries that is the embedding too is held twice on a CPU: the
    rows of the embedding are looked up one by one, and the output layer is packed."""
    return numbers >= PACKED_FROM and packs(torch.device("cpu"), torch.float32)


def _quick(left: torch.Tensor, numbers: int) -> bool:
    """Whether a product of these rows with a matrix of that number of entries is one for oneDNN."""
    return left.shape[0] * numbers >= QUICK_FROM and left.dtype == torch.float32 and packs(left.device, left.dtype)


def _packs(weight: torch.Tensor) -> bool:
    return weight.numel() >= PACKED_FROM and packs(weight.device, weight.dtype)


def _sample_of(weight: torch.Tensor) -> torch.Tensor:
    """A few of the numbers, spread over the rows and columns."""
    rows, columns = weight.shape
    step = max(1, rows * columns // _SAMPLE)
    at = torch.arange(0, rows * columns, step, device=weight.device)
    return weight[at // columns, at % columns]
