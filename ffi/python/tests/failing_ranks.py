"""One rank of several fails in the middle: the others raise, name it, and end.

Ranks are processes that this program starts as torchrun does, without a launcher that would end the
others: what they see is the library's doing."""

import os
import sys

import ringdove
from ranks import Ranks
from ringdove import DeviceArray

RANKS = 4
FAILING = 2


def steps(comm, fails):
    """All-reduces, one after the other; in the middle, rank `FAILING` does what `fails` says."""
    array = DeviceArray([1.0] * 4096, device=comm.device)
    for step in range(1000):
        if step == 5 and comm.rank == FAILING:
            if fails == "raise":
                raise LookupError("a bad batch")
            if fails == "exit":
                sys.exit(3)
            if fails == "die":
                os._exit(3)
            if fails == "shape":
                array = DeviceArray([1.0] * 100, device=comm.device)
        comm.all_reduce(array)
        comm.synchronize()


def rank(fails):
    with ringdove.init() as comm:
        try:
            steps(comm, fails)
        except ringdove.Error as error:
            print(f"seen: {type(error).__name__} {error.rank} {error.peer} {error}", flush=True)
            raise


def run(fails):
    """What each rank printed, and its status."""
    ranks = Ranks(RANKS)
    for _ in range(RANKS):
        ranks.start(__file__, fails)
    outputs = ranks.outputs()
    return outputs, [process.returncode for process in ranks.processes]


def main():
    for fails, status in [("raise", 1), ("exit", 3), ("die", 3), ("shape", 1)]:
        outputs, statuses = run(fails)
        said = "\n".join(outputs)
        assert statuses[FAILING] == status, f"{fails}: {statuses}\n{said}"
        if fails == "raise":
            assert "LookupError: a bad batch" in outputs[FAILING], said
        for number in range(RANKS):
            if number == FAILING and fails != "shape":
                continue
            seen = [line for line in outputs[number].splitlines() if line.startswith("seen: ")]
            assert len(seen) == 1 and statuses[number] == 1, f"{fails}: rank {number}:\n{said}"
            # Who has failed, by number or in words.
            assert str(FAILING) in seen[0], f"{fails}: rank {number}:\n{said}"
            print(f"{fails}: rank {number}: {seen[0]}")
    print("right")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank(sys.argv[1])
    else:
        main()
