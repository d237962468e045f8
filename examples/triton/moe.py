"""A layer of a mixture of experts in one Triton kernel: dispatch, experts, and combine.

    RINGDOVE_USER_LANES=1 hwsim run --machine pcie4 --procs 4 -- python3 moe.py [SVG]

Every rank has some experts, and tokens that each choose up to two of all experts. A program serves
one peer: it packs the tokens that chose the peer's experts, puts just these, multiplies what the
peer has sent by the experts that were chosen, and puts the results back. The program that ends last
adds up what has come back. How much goes where depends on data that no host has looked at.
SVG is a file for a drawing of what the programs did when.
"""

import sys

import numpy as np
import triton
import triton.language as tl

import ringdove
import ringdove.timeline
import ringdove.triton as rd

# Tokens of a rank, what each chooses, its elements, and experts of a rank. All are powers of two.
TOKENS, CHOICES, HIDDEN, LOCAL = 16, 2, 32, 2
# The window of rows has four parts, each with a box of PLACES rows for every peer: what goes out,
# what has come, its results, and what has come back. The window of notes has the first two.
PARTS, PLACES = 4, TOKENS * CHOICES
KINDS = ["pack", "put", "wait", "experts", "put", "wait", "combine", "flush"]


@triton.jit
def moe(
    handle,
    tokens,
    indices,
    weights,
    experts,
    chosen,
    finished,
    out,
    times,
    TOKENS: tl.constexpr,
    CHOICES: tl.constexpr,
    HIDDEN: tl.constexpr,
    LOCAL: tl.constexpr,
):
    PLACES: tl.constexpr = TOKENS * CHOICES
    BOX: tl.constexpr = PLACES * HIDDEN
    rank, size = rd.rank(handle), rd.n_ranks(handle)
    program = tl.program_id(0)
    peer = (rank + program) % size
    own = program == 0
    # Nobody: what a rank sends itself, it stores where others put what they send.
    target = tl.where(own, -1, peer)
    rows, notes = rd.window(handle, 0, tl.float32), rd.window(handle, 1, tl.int32)
    place, column = tl.arange(0, PLACES), tl.arange(0, HIDDEN)
    cells = place[:, None] * HIDDEN + column[None, :]
    moment = program * 9
    rd.mark(times, moment)

    # A choice's place is the number of those before it that go to the same peer: no counter is
    # shared, so it is the same in each run.
    expert = tl.load(indices + place)
    goes = (expert >= 0) & (expert // LOCAL == peer)
    at, count = tl.cumsum(goes.to(tl.int32), 0) - 1, tl.sum(goes.to(tl.int32), 0)
    # A box of notes: how many rows, and the expert of each.
    there = tl.where(own, size, 0)
    tl.store(notes + (there + peer) * (PLACES + 1) + 1 + at, expert % LOCAL, mask=goes)
    tl.store(notes + (there + peer) * (PLACES + 1), count)
    token = tl.load(tokens + (place // CHOICES)[:, None] * HIDDEN + column[None, :])
    box = rows + (there + peer) * BOX
    tl.store(box + at[:, None] * HIDDEN + column[None, :], token, mask=goes[:, None])
    rd.mark(times, moment + 1)
    # Rows first: a lane keeps the order, so they are there when the signal of the notes is.
    if count > 0:
        rd.put(handle, target, 0, (size + rank) * BOX * 4, 0, peer * BOX * 4, count * HIDDEN * 4)
    notes_bytes = (PLACES + 1) * 4
    here, to = peer * notes_bytes, (size + rank) * notes_bytes
    rd.put_with_signal(handle, target, 1, to, 1, here, notes_bytes)
    rd.mark(times, moment + 2)
    rd.wait(handle, target)
    rd.mark(times, moment + 3)

    # The experts, on what this peer has sent.
    arrived = tl.load(notes + (size + peer) * (PLACES + 1))
    present = place < arrived
    which = tl.load(notes + (size + peer) * (PLACES + 1) + 1 + place, mask=present, other=-1)
    x = tl.load(rows + (size + peer) * BOX + cells, mask=present[:, None], other=0.0)
    y = tl.zeros((PLACES, HIDDEN), tl.float32)
    for e in range(LOCAL):
        matrix = experts + e * HIDDEN * HIDDEN
        w = tl.load(matrix + column[:, None] * HIDDEN + column[None, :])
        of_expert = tl.where((which == e)[:, None], x, 0.0)
        y = tl.dot(of_expert, w, y, input_precision="ieee")
    back = tl.where(own, 3, 2) * size
    tl.store(rows + (back + peer) * BOX + cells, y, mask=present[:, None])
    rd.mark(times, moment + 4)
    home, at_home = (2 * size + peer) * BOX * 4, (3 * size + rank) * BOX * 4
    if arrived > 0:
        rd.put(handle, target, 0, at_home, 0, home, arrived * HIDDEN * 4)
    rd.signal(handle, target)
    rd.mark(times, moment + 5)
    rd.wait(handle, target)
    rd.mark(times, moment + 6)

    # Each choice's result, by the program that served its peer; their sums, by the last one, in the
    # order of a token's choices.
    box = rows + (3 * size + peer) * BOX
    y = tl.load(box + at[:, None] * HIDDEN + column[None, :], mask=goes[:, None])
    tl.store(chosen + cells, y * tl.load(weights + place)[:, None], mask=goes[:, None])
    tl.debug_barrier()
    before = tl.atomic_add(finished, 1, sem="acq_rel")
    tl.debug_barrier()
    if before % size == size - 1:
        t = tl.arange(0, TOKENS)
        total = tl.zeros((TOKENS, HIDDEN), tl.float32)
        for k in range(CHOICES):
            choice = t * CHOICES + k
            valid = tl.load(indices + choice) >= 0
            cell = choice[:, None] * HIDDEN + column[None, :]
            total += tl.load(chosen + cell, mask=valid[:, None], other=0.0)
        tl.store(out + t[:, None] * HIDDEN + column[None, :], total)
    rd.mark(times, moment + 7)
    # A next launch may write over what was put. It needs no word from the peers: each has sent its
    # results after it read what this rank had sent.
    rd.flush(handle, target)
    rd.mark(times, moment + 8)


def routed(random, ranks, step):
    """Experts that each rank's tokens choose, the first ones most often; some choose fewer. In the
    last step all choose those of rank 0."""
    experts = ranks * LOCAL
    share = 1.0 / np.arange(1, experts + 1)
    shape = (ranks, TOKENS, CHOICES)
    indices = random.choice(experts, shape, p=share / share.sum()).astype(np.int32)
    indices = indices if step < 2 else indices % LOCAL
    indices[random.random(shape) < 0.15] = -1
    return indices


def main():
    with ringdove.init() as comm:
        ringdove.set_device(comm.device)
        random = np.random.default_rng(1)
        print("seed 1")
        on = {"device": comm.device}
        boxes = PARTS * comm.size * PLACES
        rows = ringdove.DeviceArray(boxes * HIDDEN, shareable=True, **on)
        notes = ringdove.DeviceArray(2 * comm.size * (PLACES + 1), "int32", shareable=True, **on)
        handle = comm.device_handle([comm.register(rows), comm.register(notes)])
        # Whole numbers and quarters, whose products and sums are exact.
        w = random.integers(-2, 3, (comm.size * LOCAL, HIDDEN, HIDDEN)).astype(np.float32)
        own = w[comm.rank * LOCAL : (comm.rank + 1) * LOCAL]
        experts = ringdove.DeviceArray(own.ravel(), **on)
        chosen = ringdove.DeviceArray(PLACES * HIDDEN, **on)
        finished = ringdove.DeviceArray(1, "int32", **on)
        out = ringdove.DeviceArray(TOKENS * HIDDEN, **on)
        times = ringdove.DeviceArray(comm.size * (len(KINDS) + 1), "int64", comm.device)
        # The first launch also compiles, on each rank; the last one is drawn.
        for step in range(3):
            indices = routed(random, comm.size, step)
            x = random.integers(-3, 4, (comm.size, TOKENS, HIDDEN)).astype(np.float32)
            weights = random.integers(1, 5, indices.shape).astype(np.float32) / 4
            tokens = ringdove.DeviceArray(x[comm.rank].ravel(), **on)
            choices = ringdove.DeviceArray(indices[comm.rank].ravel(), "int32", **on)
            factors = ringdove.DeviceArray(weights[comm.rank].ravel(), **on)
            moe[(comm.size,)](
                handle.address,
                tokens,
                choices,
                factors,
                experts,
                chosen,
                finished,
                out,
                times,
                TOKENS,
                CHOICES,
                HIDDEN,
                LOCAL,
                extern_libs=rd.libraries(),
            )
            seen = np.array(out.tolist(), np.float32).reshape(TOKENS, HIDDEN)
            comm.check()
            mine = indices[comm.rank]
            weighed = np.where(mine >= 0, weights[comm.rank], 0)
            wanted = np.einsum("th,tk,tkhg->tg", x[comm.rank], weighed, w[mine])
            assert np.array_equal(seen, wanted), (step, np.abs(seen - wanted).max())
        if len(sys.argv) > 1:
            ringdove.timeline.draw(comm, sys.argv[1], "mixture of experts", times, KINDS)
        comm.finalize()
        print(f"rank {comm.rank} right")


if __name__ == "__main__":
    main()
