"""A ring all-reduce in one Triton kernel: no collective of a library, and no host between its steps.

    RINGDOVE_USER_LANES=4 hwsim run --machine pcie4 --procs 4 -- python3 ring_all_reduce.py [SVG]

Each program sums its own part of every rank's chunk, over the lane with its own number. SVG is a file
for a drawing of what the programs did when.
"""

import sys

import triton
import triton.language as tl

import ringdove
import ringdove.timeline
import ringdove.triton as rd

LANES = 4
# Elements that a program sums of each chunk.
PART = 3000


@triton.jit
def ring_all_reduce(handle, part, times, BLOCK: tl.constexpr):
    rank, size = rd.rank(handle), rd.n_ranks(handle)
    lane, lanes = tl.program_id(0), tl.num_programs(0)
    right, left = (rank + 1) % size, (rank + size - 1) % size
    data, inbox = rd.window(handle, 0, tl.float32), rd.window(handle, 1, tl.float32)
    moment = lane * (5 * (size - 1) + 2)
    rd.mark(times, moment)
    for step in range(size - 1):
        ours = ((rank + size - step) % size * lanes + lane) * part
        arrived = (step * lanes + lane) * part
        rd.put_with_signal(handle, right, 1, arrived * 4, 0, ours * 4, part * 4, lane)
        rd.mark(times, moment + 1)
        rd.wait(handle, left, 1, lane)
        rd.mark(times, moment + 2)
        ours = ((rank + size - step - 1) % size * lanes + lane) * part
        for start in range(0, part, BLOCK):
            i = start + tl.arange(0, BLOCK)
            total = tl.load(data + ours + i, i < part) + tl.load(inbox + arrived + i, i < part)
            tl.store(data + ours + i, total, i < part)
        moment += 3
        rd.mark(times, moment)
    # Every rank has all of one chunk's sums, and passes on what it gets.
    for step in range(size - 1):
        ours = ((rank + size + 1 - step) % size * lanes + lane) * part
        rd.put_with_signal(handle, right, 0, ours * 4, 0, ours * 4, part * 4, lane)
        rd.mark(times, moment + 1)
        rd.wait(handle, left, 1, lane)
        moment += 2
        rd.mark(times, moment)
    rd.flush(handle, right, lane)
    rd.mark(times, moment + 1)


def main():
    with ringdove.init() as comm:
        # Kernels are launched on the current GPU.
        ringdove.set_device(comm.device)
        count = comm.size * LANES * PART
        data, inbox = (
            ringdove.DeviceArray(elements, device=comm.device, shareable=True)
            for elements in [count, (comm.size - 1) * LANES * PART]
        )
        data.write([comm.rank + i % 7 for i in range(count)])
        handle = comm.device_handle([comm.register(data), comm.register(inbox)])
        kinds = ["put", "wait", "add"] * (comm.size - 1) + ["put", "wait"] * (comm.size - 1) + ["flush"]
        times = ringdove.DeviceArray(LANES * (len(kinds) + 1), "int64", comm.device)
        for _ in range(2):
            ring_all_reduce[(LANES,)](
                handle.address, PART, times, BLOCK=1024, extern_libs=rd.libraries()
            )
        seen = data.tolist()
        comm.check()
        size = comm.size
        ranks = size * (size - 1) // 2
        want = [float(size * (ranks + size * (i % 7))) for i in range(count)]
        assert seen == want, f"{seen[:8]}, not {want[:8]}"
        if len(sys.argv) > 1:
            ringdove.timeline.draw(comm, sys.argv[1], "ring all-reduce", times, kinds)
        comm.finalize()
        print(f"rank {comm.rank} right")


if __name__ == "__main__":
    main()
