"""An all-gather and the matrix product that consumes it, in one Triton kernel.

    RINGDOVE_USER_LANES=4 hwsim run --machine pcie4 --procs 4 -- python3 all_gather_matmul.py [SVG]

Every rank has some rows of A and all of B, and wants all of A B. A program puts a block of its rank's
rows to all others; then it multiplies its block of every rank's rows as soon as that has arrived.
SVG is a file for a drawing of what the programs did when.
"""

import sys

import numpy as np
import triton
import triton.language as tl

import ringdove
import ringdove.timeline
import ringdove.triton as rd

# A rank has LANES blocks of ROWS rows.
LANES, ROWS, COLUMNS, INNER = 4, 16, 64, 48


@triton.jit
def all_gather_matmul(
    handle,
    b,
    c,
    times,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rank, size = rd.rank(handle), rd.n_ranks(handle)
    lane, lanes = tl.program_id(0), tl.num_programs(0)
    a = rd.window(handle, 0, tl.float32)
    mine = (rank * lanes + lane) * ROWS * INNER * 4
    moment = lane * (2 * size + 2)
    rd.mark(times, moment)
    for distance in range(1, size):
        peer = (rank + distance) % size
        rd.put_with_signal(handle, peer, 0, mine, 0, mine, ROWS * INNER * 4, lane)
    for distance in range(size):
        # What others put last arrives last.
        source = (rank + size - distance) % size
        if distance > 0:
            rd.wait(handle, source, 1, lane)
        moment += 1
        rd.mark(times, moment)
        row = (source * lanes + lane) * ROWS + tl.arange(0, ROWS)
        for first in range(0, COLUMNS, BLOCK):
            column = first + tl.arange(0, BLOCK)
            total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
            for k in range(0, INNER, 16):
                inner = k + tl.arange(0, 16)
                left = tl.load(a + row[:, None] * INNER + inner[None, :])
                right = tl.load(b + inner[:, None] * COLUMNS + column[None, :])
                total = tl.dot(left, right, total, input_precision="ieee")
            tl.store(c + row[:, None] * COLUMNS + column[None, :], total)
        moment += 1
        rd.mark(times, moment)
    for distance in range(1, size):
        rd.flush(handle, (rank + distance) % size, lane)
    rd.mark(times, moment + 1)


def main():
    with ringdove.init() as comm:
        ringdove.set_device(comm.device)
        random = np.random.default_rng(1)
        rows = comm.size * LANES * ROWS
        a = random.integers(-3, 4, (rows, INNER)).astype(np.float32)
        b = random.integers(-3, 4, (INNER, COLUMNS)).astype(np.float32)
        mine = np.zeros_like(a)
        own = slice(comm.rank * LANES * ROWS, (comm.rank + 1) * LANES * ROWS)
        mine[own] = a[own]
        gathered = ringdove.DeviceArray(mine.ravel(), device=comm.device, shareable=True)
        factor = ringdove.DeviceArray(b.ravel(), device=comm.device)
        product = ringdove.DeviceArray(rows * COLUMNS, device=comm.device)
        handle = comm.device_handle([comm.register(gathered)])
        kinds = ["put", "multiply"] + ["wait", "multiply"] * (comm.size - 1) + ["flush"]
        times = ringdove.DeviceArray(LANES * (len(kinds) + 1), "int64", comm.device)
        # The first launch also compiles, on each rank; the second one is drawn.
        for _ in range(2):
            all_gather_matmul[(LANES,)](
                handle.address,
                factor,
                product,
                times,
                ROWS,
                COLUMNS,
                INNER,
                32,
                extern_libs=rd.libraries(),
            )
        seen = np.array(product.tolist(), np.float32).reshape(rows, COLUMNS)
        comm.check()
        # Whole numbers, whose products and sums are exact.
        assert np.array_equal(seen, a @ b), np.abs(seen - a @ b).max()
        if len(sys.argv) > 1:
            title = "all-gather and matrix product"
            ringdove.timeline.draw(comm, sys.argv[1], title, times, kinds)
        comm.finalize()
        print(f"rank {comm.rank} right")


if __name__ == "__main__":
    main()
