"""What Triton offers to find mistakes in kernels, on virtual GPUs: one of these programs.

    hwsim run -q --machine dgx-a100 -- python3 tests/clients/triton_debug.py print|assert|wild

The client looks for what they print, and for the lines of this file that are at fault."""

import sys

import numpy as np
import triton
import triton.language as tl
from triton_arrays import Array, cuda


@triton.jit
def printing(x, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.device_print("whole", value)
    tl.device_print("half", value.to(tl.float32) / 2)


@triton.jit
def asserting(x, limit, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.device_assert(value < limit, "values are small")
    tl.store(x + tl.arange(0, N), value + 1)


@triton.jit
def astray(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i + (1 << 30), i)


# An element for each thread of four warps, so that none is printed twice.
COUNT = 128
array = Array(np.arange(COUNT, dtype=np.int32))
program = sys.argv[1]
if program == "print":
    printing[(1,)](array, COUNT)
elif program == "assert":
    # Without debug=True Triton leaves assertions out.
    asserting[(1,)](array, 200, COUNT, debug=True)
    assert cuda.cuCtxSynchronize() == 0
    asserting[(1,)](array, COUNT, COUNT, debug=True)
elif program == "wild":
    astray[(1,)](array, COUNT)
print(f"status {cuda.cuCtxSynchronize()}")
