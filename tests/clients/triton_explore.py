"""Kernels of examples/triton on a weak memory, in adversarial orders, and what is noticed there.

    hwsim run -q --machine dgx-a100 -- python3 tests/clients/triton_explore.py FOLDER RUNS

Each example is right in all runs. With one mistake put into it some run is wrong, also where virtual
GPUs mostly forgive it; FOLDER is where such kernels are written to, as Triton reads their source."""

import importlib.util
import sys
from pathlib import Path

import numpy as np

from ringdove import testing

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/triton"
FOLDER, RUNS = Path(sys.argv[1]), int(sys.argv[2])


def loaded(name, mutant=0, change=("", "")):
    """The module of an example, with its text changed."""
    text = (EXAMPLES / f"{name}.py").read_text()
    old, new = change
    assert old in text, f"{name} has no {old!r}"
    file = FOLDER / f"{name}_{mutant}.py"
    file.write_text(text.replace(old, new, 1))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ring(module, **options):
    ranks, lanes, part = 2, 1, 4
    count = ranks * lanes * part
    data = [np.arange(count, dtype=np.float32) + 10 * rank for rank in range(ranks)]

    def brings(rank):
        mine = testing.Array(data[rank], sum(data))
        inbox = testing.Array(np.zeros((ranks - 1) * lanes * part, np.float32))
        times = testing.Array(np.zeros(lanes * (5 * (ranks - 1) + 2), np.int64))
        return [mine, inbox], [testing.HANDLE, part, times, 32]

    kernel = module.ring_all_reduce
    shape = {"ranks": ranks, "programs": lanes, "lanes": lanes, "num_warps": 1}
    return testing.explore(kernel, brings, **shape, **options)


def moe(module, **options):
    ranks, tokens, choices, hidden, local = 2, 8, 2, 16, 1
    places = tokens * choices
    random = np.random.default_rng(1)
    indices = random.integers(-1, ranks * local, (ranks, tokens, choices)).astype(np.int32)
    x = random.integers(-3, 4, (ranks, tokens, hidden)).astype(np.float32)
    w = random.integers(-2, 3, (ranks * local, hidden, hidden)).astype(np.float32)
    weights = random.integers(1, 5, indices.shape).astype(np.float32) / 4

    def brings(rank):
        weighed = np.where(indices[rank] >= 0, weights[rank], 0)
        wanted = np.einsum("th,tk,tkhg->tg", x[rank], weighed, w[indices[rank]])
        rows = testing.Array(np.zeros(4 * ranks * places * hidden, np.float32))
        notes = testing.Array(np.zeros(2 * ranks * (places + 1), np.int32))
        out = testing.Array(np.zeros((tokens, hidden), np.float32), wanted.astype(np.float32))
        zeros = [np.zeros((places, hidden), np.float32), np.zeros(1, np.int32)]
        given = [x[rank], indices[rank], weights[rank], w[rank * local : (rank + 1) * local], *zeros]
        times = testing.Array(np.zeros(ranks * 9, np.int64))
        arguments = [testing.HANDLE, *map(testing.Array, given), out, times]
        return [rows, notes], [*arguments, tokens, choices, hidden, local]

    shape = {"ranks": ranks, "programs": ranks, "num_warps": 1}
    return testing.explore(module.moe, brings, **shape, **options)


WAIT = "        rd.wait(handle, left, 1, lane)\n"
MUTANTS = [
    (ring, "ring_all_reduce", (WAIT, ""), "the wait for a part"),
    (ring, "ring_all_reduce", ("put_with_signal(handle, right, 1, arrived", "put(handle, right, 1, arrived"),
     "a signal"),
    (moe, "moe", ("    rd.wait(handle, target)\n", ""), "the wait for tokens"),
    (moe, "moe", ('sem="acq_rel"', 'sem="relaxed"'), "the order of the count"),
]


def main():
    for run, name in (ring, "ring_all_reduce"), (moe, "moe"):
        print(f"{name}: {run(loaded(name), runs=RUNS, launches=1)}", flush=True)
    for number, (run, name, change, what) in enumerate(MUTANTS, 1):
        try:
            seen = run(loaded(name, number, change), runs=RUNS)
        except AssertionError as error:
            first = str(error).splitlines()[0]
            assert "replay: hwsim explore --kernel" in str(error), error
            print(f"{name} without {what}: {first}", flush=True)
        else:
            raise AssertionError(f"{name} without {what}: nobody notices: {seen}")
    print("explored")


if __name__ == "__main__":
    main()
