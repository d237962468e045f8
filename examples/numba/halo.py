"""Heat in a rod that is divided among GPUs: each step's ends go to the neighbours from inside of the
one Numba kernel that computes all steps.

    RINGDOVE_USER_LANES=1 hwsim run --machine pcie4 --procs 4 -- python3 halo.py
"""

import numpy as np
from numba import cuda, float32

import ringdove
import ringdove.numba as rd

CELLS, STEPS = 1000, 50


@cuda.jit
def heat(handle, rod, steps):
    # Two windows take turns: cell 0 and the last one of each are the neighbours' ends.
    rank, size = rd.rank(handle), rd.n_ranks(handle)
    left = rank - 1
    right = rank + 1 if rank + 1 < size else -1
    last = rod.shape[1] - 2
    for step in range(steps):
        old, new = step % 2, (step + 1) % 2
        for cell in range(cuda.threadIdx.x + 1, last + 1, cuda.blockDim.x):
            around = rod[old, cell - 1] + rod[old, cell + 1] - float32(2) * rod[old, cell]
            rod[new, cell] = rod[old, cell] + float32(0.25) * around
        row = new * rod.shape[1]
        rd.put_with_signal(handle, left, 0, (row + last + 1) * 4, 0, (row + 1) * 4, 4)
        rd.put_with_signal(handle, right, 0, row * 4, 0, (row + last) * 4, 4)
        rd.wait(handle, left)
        rd.wait(handle, right)
    rd.flush(handle, left)
    rd.flush(handle, right)


def main():
    with ringdove.init() as comm:
        cuda.select_device(comm.device)
        begin = np.zeros(comm.size * CELLS + 2, np.float32)
        begin[:: CELLS // 3] = 100
        mine = begin[comm.rank * CELLS : (comm.rank + 1) * CELLS + 2]
        rod = cuda.to_device(np.stack([mine, mine]))
        handle = comm.device_handle([comm.register(rod)])
        heat[1, 128](handle.address, rod, STEPS)
        seen = rod.copy_to_host()[STEPS % 2]
        comm.check()
        for _ in range(STEPS):
            inside = begin[1:-1]
            around = begin[:-2] + begin[2:] - np.float32(2) * inside
            begin[1:-1] = inside + np.float32(0.25) * around
        want = begin[comm.rank * CELLS + 1 : (comm.rank + 1) * CELLS + 1]
        assert np.allclose(seen[1:-1], want, rtol=1e-5), np.abs(seen[1:-1] - want).max()
        comm.finalize()
        print(f"rank {comm.rank} right")


if __name__ == "__main__":
    main()
