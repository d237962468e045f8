"""A matrix product whose blocks are reduced and scattered as they come out, in one Triton kernel.

    RINGDOVE_USER_LANES=4 hwsim run --machine pcie4 --procs 4 -- python3 matmul_reduce_scatter.py [SVG]

Every rank has some columns of A and the rows of B that belong to them, and wants its part of the rows
of A B. A program computes a block of each other rank's rows and puts it to that rank at once; then it
computes its own rank's block, and adds what the others have put.
SVG is a file for a drawing of what the programs did when.
"""

import sys

import numpy as np
import triton
import triton.language as tl

import ringdove
import ringdove.timeline
import ringdove.triton as rd

# A rank gets LANES blocks of ROWS rows; it has INNER of the columns of A.
LANES, ROWS, COLUMNS, INNER = 4, 16, 64, 32


@triton.jit
def product(a, b, row, column, COLUMNS: tl.constexpr, INNER: tl.constexpr, total):
    for k in range(0, INNER, 16):
        inner = k + tl.arange(0, 16)
        left = tl.load(a + row[:, None] * INNER + inner[None, :])
        right = tl.load(b + inner[:, None] * COLUMNS + column[None, :])
        total = tl.dot(left, right, total, input_precision="ieee")
    return total


@triton.jit
def matmul_reduce_scatter(
    handle, a, b, c, times, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr
):
    rank, size = rd.rank(handle), rd.n_ranks(handle)
    lane, lanes = tl.program_id(0), tl.num_programs(0)
    outbox, inbox = rd.window(handle, 0, tl.float32), rd.window(handle, 1, tl.float32)
    block = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = block[:, None] * COLUMNS + column[None, :]
    moment = lane * (4 * size - 1)
    rd.mark(times, moment)
    for distance in range(1, size):
        owner = (rank + distance) % size
        row = (owner * lanes + lane) * ROWS + block
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        total = product(a, b, row, column, COLUMNS, INNER, total)
        here = (owner * lanes + lane) * ROWS * COLUMNS
        tl.store(outbox + here + inside, total)
        rd.mark(times, moment + 1)
        there = (rank * lanes + lane) * ROWS * COLUMNS
        rd.put_with_signal(
            handle, owner, 1, there * 4, 0, here * 4, ROWS * COLUMNS * 4, lane
        )
        moment += 2
        rd.mark(times, moment)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    total = product(a, b, (rank * lanes + lane) * ROWS + block, column, COLUMNS, INNER, total)
    moment += 1
    rd.mark(times, moment)
    for distance in range(1, size):
        source = (rank + size - distance) % size
        rd.wait(handle, source, 1, lane)
        rd.mark(times, moment + 1)
        total += tl.load(inbox + (source * lanes + lane) * ROWS * COLUMNS + inside)
        moment += 2
        rd.mark(times, moment)
    tl.store(c + lane * ROWS * COLUMNS + inside, total)
    for distance in range(1, size):
        rd.flush(handle, (rank + distance) % size, lane)
    rd.mark(times, moment + 1)


def main():
    with ringdove.init() as comm:
        ringdove.set_device(comm.device)
        random = np.random.default_rng(1)
        size, part = comm.size, LANES * ROWS
        a = random.integers(-3, 4, (size, size * part, INNER)).astype(np.float32)
        b = random.integers(-3, 4, (size, INNER, COLUMNS)).astype(np.float32)
        left = ringdove.DeviceArray(a[comm.rank].ravel(), device=comm.device)
        right = ringdove.DeviceArray(b[comm.rank].ravel(), device=comm.device)
        summed = ringdove.DeviceArray(part * COLUMNS, device=comm.device)
        boxes = [
            ringdove.DeviceArray(size * part * COLUMNS, device=comm.device, shareable=True)
            for _ in range(2)
        ]
        handle = comm.device_handle([comm.register(box) for box in boxes])
        one, other = ["multiply", "put"] * (size - 1), ["wait", "add"] * (size - 1)
        kinds = one + ["multiply"] + other + ["store and flush"]
        times = ringdove.DeviceArray(LANES * (len(kinds) + 1), "int64", comm.device)
        # The first launch also compiles, on each rank; the second one is drawn.
        for _ in range(2):
            matmul_reduce_scatter[(LANES,)](
                handle.address,
                left,
                right,
                summed,
                times,
                ROWS,
                COLUMNS,
                INNER,
                extern_libs=rd.libraries(),
            )
        seen = np.array(summed.tolist(), np.float32).reshape(part, COLUMNS)
        comm.check()
        # Whole numbers, whose products and sums are exact.
        want = sum(a[rank] @ b[rank] for rank in range(size))[comm.rank * part :][:part]
        assert np.array_equal(seen, want), np.abs(seen - want).max()
        if len(sys.argv) > 1:
            title = "matrix product and reduce-scatter"
            ringdove.timeline.draw(comm, sys.argv[1], title, times, kinds)
        comm.finalize()
        print(f"rank {comm.rank} right")


if __name__ == "__main__":
    main()
