"""Kernels of trainings, for triton_programs.py: the backward pass of layer norm, and products in groups."""

import numpy as np
import triton
import triton.language as tl

from triton_arrays import Array, normal


@triton.jit
def statistics_kernel(x, means, scales, columns, epsilon, BLOCK: tl.constexpr):
    """The mean of each row, and one over its deviation."""
    i = tl.arange(0, BLOCK)
    inside = i < columns
    row = tl.program_id(0)
    value = tl.load(x + row * columns + i, mask=inside, other=0.0)
    mean = tl.sum(value, 0) / columns
    centred = tl.where(inside, value - mean, 0.0)
    tl.store(means + row, mean)
    tl.store(scales + row, 1 / tl.sqrt(tl.sum(centred * centred, 0) / columns + epsilon))


@triton.jit
def backward_kernel(
    x, weight, means, scales, d_out, d_x, d_weights, d_biases, locks, columns,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr
):
    """A program a row. Rows of one group add to one sum of weights, each behind the group's lock; the
    first one stores, so that the sums need not be zero before."""
    i = tl.arange(0, BLOCK)
    inside = i < columns
    row = tl.program_id(0)
    slope = tl.load(d_out + row * columns + i, mask=inside, other=0.0)
    scale = tl.load(scales + row)
    value = tl.load(x + row * columns + i, mask=inside, other=0.0)
    normed = tl.where(inside, (value - tl.load(means + row)) * scale, 0.0)
    product = slope * tl.load(weight + i, mask=inside, other=0.0)
    along = tl.sum(normed * product, 0) / columns
    across = tl.sum(product, 0) / columns
    tl.store(d_x + row * columns + i, (product - normed * along - across) * scale, mask=inside)

    group = row % GROUPS
    lock, count = locks + group, locks + GROUPS + group
    weights, biases = d_weights + group * columns + i, d_biases + group * columns + i
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    d_weight, d_bias = slope * normed, slope
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        d_weight += tl.load(weights, mask=inside)
        d_bias += tl.load(biases, mask=inside)
    tl.store(weights, d_weight, mask=inside)
    tl.store(biases, d_bias, mask=inside)
    # All threads of the program have stored before another program goes on.
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def sum_kernel(parts, out, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    inside = (row < rows) & (column < columns)
    total = tl.sum(tl.load(parts + row * columns + column, mask=inside, other=0.0), 0)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + column, total, mask=column < columns)


def layer_norm_backward():
    rows, columns, groups, block = 96, 1151, 8, 2048
    x, weight, slope = normal(rows, columns), normal(columns), normal(rows, columns)
    on_gpu = [Array(values) for values in (x, weight, slope)]
    means, scales = (Array(np.zeros(rows, np.float32)) for _ in range(2))
    statistics_kernel[(rows,)](on_gpu[0], means, scales, columns, 1e-5, BLOCK=block)
    d_x = Array(np.zeros_like(x))
    # What is added up must not depend on what was there.
    sums = [Array(np.full((groups, columns), np.nan, np.float32)) for _ in range(2)]
    locks = Array(np.zeros(2 * groups, np.int32))
    backward_kernel[(rows,)](
        on_gpu[0], on_gpu[1], means, scales, on_gpu[2], d_x, *sums, locks, columns,
        GROUPS=groups, BLOCK=block,
    )
    found = [Array(np.zeros(columns, np.float32)) for _ in range(2)]
    for parts, out in zip(sums, found):
        sum_kernel[(triton.cdiv(columns, 128),)](parts, out, groups, columns, ROWS=8, BLOCK=128)

    x, weight, slope = (values.astype(np.float64) for values in (x, weight, slope))
    scale = 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    normed = (x - x.mean(1, keepdims=True)) * scale
    product = slope * weight
    along = (normed * product).mean(1, keepdims=True)
    expected = (product - normed * along - product.mean(1, keepdims=True)) * scale
    return (
        np.allclose(d_x.get(), expected, atol=1e-5)
        and np.allclose(found[0].get(), (slope * normed).sum(0), atol=1e-4)
        and np.allclose(found[1].get(), slope.sum(0), atol=1e-4)
    )


@triton.jit
def grouped_kernel(
    addresses, shapes, products, PROGRAMS: tl.constexpr, TYPE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Products of several sizes in one launch: programs go through the tiles of all."""
    tile = tl.program_id(0)
    first = 0
    for product in range(products):
        M = tl.load(shapes + product * 3)
        N = tl.load(shapes + product * 3 + 1)
        K = tl.load(shapes + product * 3 + 2)
        a = tl.load(addresses + product * 3).to(tl.pointer_type(TYPE))
        b = tl.load(addresses + product * 3 + 1).to(tl.pointer_type(TYPE))
        c = tl.load(addresses + product * 3 + 2).to(tl.pointer_type(TYPE))
        across = tl.cdiv(N, BN)
        end = first + tl.cdiv(M, BM) * across
        while tile < end:
            row = ((tile - first) // across * BM + tl.arange(0, BM))[:, None]
            column = ((tile - first) % across * BN + tl.arange(0, BN))[None, :]
            total = tl.zeros((BM, BN), tl.float32)
            for start in range(0, K, BK):
                k = start + tl.arange(0, BK)
                left = (row < M) & (k[None, :] < K)
                right = (k[:, None] < K) & (column < N)
                x = tl.load(a + row * K + k[None, :], mask=left, other=0.0)
                y = tl.load(b + k[:, None] * N + column, mask=right, other=0.0)
                total = tl.dot(x, y, total)
            tl.store(c + row * N + column, total.to(TYPE), mask=(row < M) & (column < N))
            tile += PROGRAMS
        first = end


def grouped(array, tolerance):
    """`tolerance` is of the result: it is rounded to the type."""
    shapes = [(128, 96, 64), (200, 72, 144), (31, 257, 40), (64, 64, 64)]
    kind = tl.bfloat16 if array is not Array else tl.float16
    operands = [
        (array(normal(m, k, dtype=np.float16)), array(normal(k, n, dtype=np.float16)),
         array(np.zeros((m, n), np.float16)))
        for m, n, k in shapes
    ]
    addresses = np.array([[part.data_ptr() for part in parts] for parts in operands], np.int64)
    grouped_kernel[(5,)](
        Array(addresses), Array(np.array(shapes, np.int32)), len(shapes), PROGRAMS=5, TYPE=kind,
        BM=64, BN=64, BK=32,
    )
    return all(
        np.allclose(
            c.get().astype(np.float32),
            a.get().astype(np.float32) @ b.get().astype(np.float32),
            atol=10 * tolerance, rtol=tolerance,
        )
        for a, b, c in operands
    )
