"""Kernels in Triton, without PyTorch, against NumPy. Called with the names of programs; prints one line
for each that is right, and fails at the first that is wrong."""

import math
import sys
import time

import numpy as np
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_arrays import Array, BFloat16, normal, random
from triton_training import grouped, layer_norm_backward


@triton.jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    total = tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside)
    tl.store(out + i, total, mask=inside)


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < columns
    row = tl.program_id(0) * columns
    value = tl.load(x + row + i, mask=inside, other=-float("inf"))
    power = tl.exp(value - tl.max(value, 0))
    tl.store(out + row + i, power / tl.sum(power, 0), mask=inside)


@triton.jit
def gelu_kernel(x, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < count)
    tl.store(out + i, 0.5 * value * (1 + tl.erf(value * 0.70710678)), mask=i < count)


@triton.jit
def histogram_kernel(x, bins, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < count, other=0)
    tl.atomic_add(bins + value, 1, mask=i < count)


@triton.jit
def scan_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.cumsum(tl.load(x + i), 0))


@triton.jit
def sort_kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.sort(tl.load(x + i)))


@triton.jit
def layer_norm_kernel(x, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < columns
    row = tl.program_id(0) * columns
    value = tl.load(x + row + i, mask=inside, other=0.0)
    centred = tl.where(inside, value - tl.sum(value, 0) / columns, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / columns + epsilon)
    result = centred * scale * tl.load(weight + i, mask=inside) + tl.load(bias + i, mask=inside)
    tl.store(out + row + i, result, mask=inside)


@triton.jit
def matmul_kernel(
    a, b, c, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """As many programs as it is told go through all tiles of the result."""
    across = tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * across, PROGRAMS):
        row = (tile // across * BM + tl.arange(0, BM))[:, None]
        column = (tile % across * BN + tl.arange(0, BN))[None, :]
        total = tl.zeros((BM, BN), tl.float32)
        for start in range(0, K, BK):
            k = start + tl.arange(0, BK)
            left = (row < M) & (k[None, :] < K)
            right = (k[:, None] < K) & (column < N)
            x = tl.load(a + row * K + k[None, :], mask=left, other=0.0)
            y = tl.load(b + k[:, None] * N + column, mask=right, other=0.0)
            total = tl.dot(x, y, total)
        tl.store(c + row * N + column, total, mask=(row < M) & (column < N))


@triton.jit
def attention_kernel(
    q, k, v, out, scale, N, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """Each query sees the keys up to its own; the sums go along, with the largest so far."""
    base = tl.program_id(1) * N * D
    row = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    d = tl.arange(0, D)
    query = tl.load(q + base + row * D + d[None, :])
    largest = tl.full([BM], -float("inf"), tl.float32)
    weight = tl.zeros([BM], tl.float32)
    total = tl.zeros([BM, D], tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * BM, BN):
        key = start + tl.arange(0, BN)
        keys = tl.load(k + base + key[None, :] * D + d[:, None])
        score = tl.where(row >= key[None, :], tl.dot(query, keys) * scale, -float("inf"))
        larger = tl.maximum(largest, tl.max(score, 1))
        share = tl.exp(score - larger[:, None])
        shrink = tl.exp(largest - larger)
        weight = weight * shrink + tl.sum(share, 1)
        values = tl.load(v + base + key[:, None] * D + d[None, :])
        total = total * shrink[:, None] + tl.dot(share.to(values.dtype), values)
        largest = larger
    tl.store(out + base + row * D + d[None, :], (total / weight[:, None]).to(out.dtype.element_ty))


@triton.jit
def dot_kernel(
    a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TYPE: tl.constexpr
):
    row = tl.arange(0, M)[:, None]
    column = tl.arange(0, N)[None, :]
    x = tl.load(a + row * K + tl.arange(0, K)[None, :])
    y = tl.load(b + tl.arange(0, K)[:, None] * N + column)
    tl.store(c + row * N + column, tl.dot(x, y, out_dtype=TYPE))


@triton.jit
def multiply_tiles(a, b, c, M, N, K, PROGRAMS, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """As matmul_kernel, but tiles come and go by tensor maps."""
    across = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, PROGRAMS):
        row, column = tile // across * BM, tile % across * BN
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            total = tl.dot(a.load([row, k]), b.load([k, column]), total)
        c.store([row, column], total.to(tl.float16))


@triton.jit
def descriptor_kernel(
    a, b, c, M, N, K, PROGRAMS, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """The kernel makes the maps."""
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    out = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    multiply_tiles(left, right, out, M, N, K, PROGRAMS, BM, BN, BK)


@triton.jit
def tensor_map_kernel(
    a, b, c, M, N, K, PROGRAMS, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """The driver makes the maps."""
    multiply_tiles(a, b, c, M, N, K, PROGRAMS, BM, BN, BK)


def add():
    x, y = normal(100003), normal(100003)
    out = Array(np.zeros_like(x))
    add_kernel[(98,)](Array(x), Array(y), out, x.size, BLOCK=1024)
    return np.array_equal(out.get(), x + y)


def softmax():
    x = normal(64, 781)
    out = Array(np.zeros_like(x))
    softmax_kernel[(64,)](Array(x), out, 781, BLOCK=1024)
    power = np.exp(x - x.max(1, keepdims=True))
    return np.allclose(out.get(), power / power.sum(1, keepdims=True), atol=1e-6)


def gelu():
    x = normal(5000)
    out = Array(np.zeros_like(x))
    gelu_kernel[(5,)](Array(x), out, x.size, BLOCK=1024)
    expected = [0.5 * value * (1 + math.erf(value * 0.70710678)) for value in x]
    return np.allclose(out.get(), expected, atol=1e-5)


def histogram():
    x = random.integers(0, 64, 50000, dtype=np.int32)
    bins = Array(np.zeros(64, np.int32))
    histogram_kernel[(49,)](Array(x), bins, x.size, BLOCK=1024)
    return np.array_equal(bins.get(), np.bincount(x, minlength=64))


def scan():
    x = random.integers(0, 9, 1024, dtype=np.int32)
    out = Array(np.zeros_like(x))
    scan_kernel[(1,)](Array(x), out, BLOCK=1024)
    return np.array_equal(out.get(), np.cumsum(x))


def sort():
    x = random.integers(0, 9999, 512, dtype=np.int32)
    out = Array(np.zeros_like(x))
    sort_kernel[(1,)](Array(x), out, BLOCK=512)
    return np.array_equal(out.get(), np.sort(x))


def layer_norm():
    x, weight, bias = normal(96, 1151), normal(1151), normal(1151)
    out = Array(np.zeros_like(x))
    layer_norm_kernel[(96,)](Array(x), Array(weight), Array(bias), out, 1151, 1e-5, BLOCK=2048)
    centred = x - x.mean(1, keepdims=True)
    expected = centred / np.sqrt(x.var(1, keepdims=True) + 1e-5) * weight + bias
    return np.allclose(out.get(), expected, atol=1e-4)


def matmul(shape, programs, dtype, tolerance):
    m, n, k = shape
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
    c = Array(np.zeros((m, n), np.float32))
    matmul_kernel[(programs,)](Array(a), Array(b), c, m, n, k, programs, BM=64, BN=64, BK=32)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    return np.allclose(c.get(), expected, atol=tolerance, rtol=1e-2)


class Tensor(Array):
    """What a tensor descriptor asks of a tensor beside its address."""

    class Type(str):
        itemsize = 2
        is_floating_point = True

    def __init__(self, values):
        super().__init__(values)
        self.dtype = Tensor.Type(self.dtype)
        self.shape = list(self.values.shape)

    def stride(self):
        return [stride // self.values.itemsize for stride in self.values.strides]


def descriptors(shape, by_driver):
    m, n, k = shape
    a, b = normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16)
    c = Tensor(np.zeros((m, n), np.float16))
    tile = {"BM": 128, "BN": 64, "BK": 64}
    if by_driver:
        blocks = [[tile["BM"], tile["BK"]], [tile["BK"], tile["BN"]], [tile["BM"], tile["BN"]]]
        tensors = [Tensor(a), Tensor(b), c]
        maps = [TensorDescriptor.from_tensor(*pair) for pair in zip(tensors, blocks)]
        tensor_map_kernel[(3,)](*maps, m, n, k, 3, **tile)
    else:
        # Where the maps lie.
        triton.set_allocator(lambda size, align, stream: Array(np.zeros(size + 128, np.int8)))
        descriptor_kernel[(3,)](Array(a), Array(b), c, m, n, k, 3, **tile)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    return np.allclose(c.get().astype(np.float32), expected, atol=5e-2, rtol=1e-2)


def attention(array, tolerance):
    heads, length, width = 4, 256, 64
    q, k, v = (array(normal(heads, length, width, dtype=np.float16)) for _ in range(3))
    out, scale = array(np.zeros((heads, length, width), np.float16)), 1 / math.sqrt(width)
    attention_kernel[(length // 64, heads)](q, k, v, out, scale, length, D=width, BM=64, BN=32)
    # What the types have kept of the numbers.
    q, k, v = (values.get().astype(np.float32) for values in (q, k, v))
    score = np.einsum("hmd,hnd->hmn", q, k) * scale
    score = np.where(np.tril(np.ones((length, length), bool)), score, -np.inf)
    share = np.exp(score - score.max(2, keepdims=True))
    expected = np.einsum("hmn,hnd->hmd", share / share.sum(2, keepdims=True), v)
    return np.allclose(out.get().astype(np.float32), expected, atol=tolerance)


def dot(a, b, dtype, type, tolerance):
    c = Array(np.zeros((a.shape[0], b.shape[1]), dtype))
    dot_kernel[(1,)](Array(a), Array(b), c, a.shape[0], b.shape[1], a.shape[1], type)
    wide = np.float32 if dtype == np.float16 else dtype
    expected = a.astype(wide) @ b.astype(wide)
    return np.allclose(c.get().astype(wide), expected, atol=tolerance, rtol=0)


def bytes_of(*shape):
    return random.integers(-128, 128, shape).astype(np.int8)


PROGRAMS = {
    "add": add,
    "softmax": softmax,
    "gelu": gelu,
    "histogram": histogram,
    "scan": scan,
    "sort": sort,
    "layer_norm": layer_norm,
    "matmul_f16": lambda: matmul((128, 128, 128), 4, np.float16, 1e-2),
    "matmul_tf32": lambda: matmul((128, 128, 128), 4, np.float32, 1e-1),
    "persistent_f16": lambda: matmul((300, 272, 200), 5, np.float16, 1e-2),
    "persistent_tf32": lambda: matmul((300, 272, 200), 5, np.float32, 1e-1),
    "descriptors_f16": lambda: descriptors((300, 272, 200), False),
    "tensor_maps_f16": lambda: descriptors((300, 272, 200), True),
    "attention_f16": lambda: attention(Array, 4e-3),
    "attention_bf16": lambda: attention(BFloat16, 3e-2),
    "layer_norm_backward": layer_norm_backward,
    "grouped_f16": lambda: grouped(Array, 2e-3),
    "grouped_bf16": lambda: grouped(BFloat16, 2e-2),
    "dot_f64": lambda: dot(normal(32, 16, dtype=np.float64), normal(16, 32, dtype=np.float64),
                           np.float64, tl.float64, 1e-12),
    "dot_f16": lambda: dot(normal(32, 32, dtype=np.float16), normal(32, 32, dtype=np.float16),
                           np.float16, tl.float16, 5e-2),
    "dot_s8": lambda: dot(bytes_of(64, 64), bytes_of(64, 32), np.int32, tl.int32, 0),
}

for name in sys.argv[1:]:
    began = time.monotonic()
    if not PROGRAMS[name]():
        sys.exit(f"{name}: wrong")
    print(f"{name}: right ({time.monotonic() - began:.2f} s)", flush=True)
