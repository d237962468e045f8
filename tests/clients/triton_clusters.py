"""Kernels in Triton for Hopper's clusters and for warps with different work, without PyTorch, against NumPy.
Called with the names of programs, as triton_programs.py. A program is split over the blocks of a cluster
(`num_ctas`), which exchange what they need by each other's shared memory."""

import sys
import time

import numpy as np
import triton
import triton.language as tl

from triton_arrays import Array, normal, random


@triton.jit
def sum_kernel(x, out, columns, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    value = tl.load(x + row + i, mask=i < columns, other=0.0)
    tl.store(out + tl.program_id(0), tl.sum(value, 0))


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    value = tl.load(x + row + i, mask=i < columns, other=-float("inf"))
    power = tl.exp(value - tl.max(value, 0))
    tl.store(out + row + i, power / tl.sum(power, 0), mask=i < columns)


@triton.jit
def transpose_kernel(x, out, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    value = tl.trans(tl.load(x + i[:, None] * N + j[None, :]))
    tl.store(out + j[:, None] * M + i[None, :], value)


@triton.jit
def product_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    column = (tl.program_id(1) * BN + tl.arange(0, BN))[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        step = k + tl.arange(0, BK)
        left = tl.load(a + row * K + step[None, :], mask=(row < M) & (step[None, :] < K), other=0.0)
        across = (step[:, None] < K) & (column < N)
        total = tl.dot(left, tl.load(b + step[:, None] * N + column, mask=across, other=0.0), total)
    tl.store(c + row * N + column, total, mask=(row < M) & (column < N))


@triton.jit
def tiles_kernel(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPECIAL: tl.constexpr
):
    """Tiles come and go by tensor maps; with SPECIAL by warps that do nothing else."""
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    out = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=SPECIAL):
        total = tl.dot(left.load([row, k]), right.load([k, column]), total)
    out.store([row, column], total.to(tl.float16))


def whole(kernel, result, blocks):
    x = normal(24, 1500)
    out = Array(np.zeros(result(x).shape, np.float32))
    kernel[(24,)](Array(x), out, 1500, BLOCK=2048, num_ctas=blocks)
    return np.allclose(out.get(), result(x), atol=1e-3)


def softmax_of(x):
    power = np.exp(x - x.max(1, keepdims=True))
    return power / power.sum(1, keepdims=True)


def transpose(blocks):
    x = random.integers(0, 1 << 30, (64, 128), dtype=np.int32)
    out = Array(np.zeros((128, 64), np.int32))
    transpose_kernel[(1,)](Array(x), out, 64, 128, num_ctas=blocks)
    return np.array_equal(out.get(), x.T)


def product(shape, blocks):
    m, n, k = shape
    a, b = normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16)
    c = Array(np.zeros((m, n), np.float32))
    grid = (triton.cdiv(m, 128), triton.cdiv(n, 128))
    product_kernel[grid](Array(a), Array(b), c, m, n, k, BM=128, BN=128, BK=32, num_ctas=blocks)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    return np.allclose(c.get(), expected, atol=1e-2, rtol=1e-2)


def tiles(shape, blocks, special):
    m, n, k = shape
    a, b = normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16)
    c = Array(np.zeros((m, n), np.float16))
    triton.set_allocator(lambda size, align, stream: Array(np.zeros(size + 128, np.int8)))
    grid = (triton.cdiv(m, 128), triton.cdiv(n, 128))
    tiles_kernel[grid](Array(a), Array(b), c, m, n, k, 128, 128, 64, special, num_ctas=blocks)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    return np.allclose(c.get().astype(np.float32), expected, atol=5e-2, rtol=1e-2)


PROGRAMS = {
    "sum_2": lambda: whole(sum_kernel, lambda x: x.sum(1), 2),
    "sum_4": lambda: whole(sum_kernel, lambda x: x.sum(1), 4),
    "softmax_2": lambda: whole(softmax_kernel, softmax_of, 2),
    "softmax_8": lambda: whole(softmax_kernel, softmax_of, 8),
    "transpose_2": lambda: transpose(2),
    "transpose_4": lambda: transpose(4),
    "product_2": lambda: product((300, 272, 200), 2),
    "product_4": lambda: product((300, 272, 200), 4),
    "tiles_2": lambda: tiles((304, 272, 200), 2, False),
    "tiles_special": lambda: tiles((304, 272, 200), 1, True),
}

for name in sys.argv[1:]:
    began = time.monotonic()
    if not PROGRAMS[name]():
        sys.exit(f"{name}: wrong")
    print(f"{name}: right ({time.monotonic() - began:.2f} s)", flush=True)
