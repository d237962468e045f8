"""All-reduce of floats by Gloo, as PyTorch brings it: lines `RANKS BYTES MICROSECONDS`.

    all_reduce.py RANKS ITERATIONS BYTES...

Gloo works in place. Every element of the last round is checked.
"""

import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def timed(data, rounds):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(data)
    return (time.perf_counter() - start) / rounds


def run(rank, ranks, meeting, rounds, sizes):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=ranks)
    for size in sizes:
        index = torch.arange(size // 4)
        # Sums of zeros stay exact however often they are summed.
        data = torch.zeros(size // 4)
        timed(data, 2)
        seconds = timed(data, rounds)
        data = ((index + rank) % 7).float()
        timed(data, 1)
        want = sum(((index + other) % 7).float() for other in range(ranks))
        assert torch.equal(data, want), f"rank {rank}: wrong sums of {size} bytes"
        if rank == 0:
            print(f"{ranks} {size} {seconds * 1e6:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks, rounds, *sizes = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (ranks, f"{folder}/meeting", rounds, sizes), nprocs=ranks)
