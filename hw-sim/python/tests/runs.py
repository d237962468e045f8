"""``hwsim.run`` and ``hwsim.fault``, with nothing but Python's own library."""

import ctypes
import os
import sys

import hwsim


def show(word):
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    assert driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    print(word, os.environ["RANK"], count.value, os.environ.get("HWSIM_FAULTS"))


def fail(rank):
    if os.environ["RANK"] == rank:
        raise RuntimeError(f"rank {rank} fails")


def raised(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def main():
    done = hwsim.run(show, "seen", machine="dgx1v x 2", procs=4).check()
    assert done.by_rank == {rank: f"seen {rank} 8 None" for rank in range(4)}, done.output
    with hwsim.fault("*:delay=1", seed=4) as outer, hwsim.fault("hwsim0:delay=2", seed=5):
        done = hwsim.run(show, "b", machine="one-gpu", procs=1, env={"X": "a b"}).check()
    listed = f"{outer},seed=5,hwsim0:delay=2"
    assert done.by_rank == {0: f"b 0 1 {listed}"}, done.output
    assert done.command.startswith(f"X='a b' HWSIM_FAULTS='{listed}' hwsim run --quiet")
    done = hwsim.run(show, "after", machine="one-gpu", procs=1)
    assert done.by_rank == {0: "after 0 1 None"}, done.output
    done = hwsim.run(fail, "1", procs=2)
    assert not done.ok and "rank 1 fails" in done.by_rank[1], done.output
    assert "rank 1 fails" in raised(hwsim.RunError, done.check)
    assert "not over after 0.5 s" in raised(
        TimeoutError,
        lambda: hwsim.run([sys.executable, "-c", "import time; time.sleep(99)"], timeout=0.5),
    )
    assert "names" in raised(ValueError, lambda: hwsim.run(lambda: None))
    print("right")


if __name__ == "__main__":
    main()
