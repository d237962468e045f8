"""A kernel in PTX on a weak memory, in adversarial orders: ``ringdove.testing.explore``.

It is the kernel of functions.py: each rank puts a window to the next one, and waits."""

from array import array
from ctypes import c_int32, c_int64

from functions import BYTES, KERNEL, THREADS

from ringdove import testing

RANKS, RUNS = 3, 30
# It passes at once, and says that all is well.
HASTY = ("st.param.b32 [c], 1;\n    st.param.b32 [e], 0;\n    call (r), ringdove_numba_wait",
         "st.param.b32 [c], 0;\n    st.param.b32 [e], 0;\n    call (r), ringdove_numba_wait")


def brings(rank):
    source = (rank + RANKS - 1) % RANKS
    want = [[201, 1000 * source + thread, BYTES, RANKS] for thread in range(THREADS)]
    seen = testing.Array(bytes(16 * THREADS), array("i", sum(want, [])))
    windows = [testing.Array(bytes(BYTES)) for _ in range(2)]
    return windows, [testing.HANDLE, seen, c_int64(BYTES)]


def explored(text, arguments=brings, **options):
    kernel = testing.Ptx(text, "shift", THREADS)
    shape = {"ranks": RANKS, "programs": 1, "runs": RUNS}
    return testing.explore(kernel, arguments, **{**shape, **options})


def raises(kind, words, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert words in str(error), f"{error!r} does not say {words!r}"
        return
    raise AssertionError(f"no {kind.__name__}: {words}")


def main():
    seen = explored(KERNEL)
    assert seen.startswith(f"{RUNS} runs from seed 0, none failed"), seen
    hasty = KERNEL.replace(*HASTY)
    assert hasty != KERNEL
    raises(AssertionError, "argument 1 is not as expected in", explored, hasty)
    raises(AssertionError, "replay: hwsim explore --kernel", explored, hasty, seed=100)

    # What cannot be run so is another kind of error.
    raises(ValueError, "no entry shift", explored, KERNEL.replace(" shift(", " other("))
    raises(ValueError, "parameters of [8, 8, 8] bytes", explored, KERNEL,
           lambda rank: (brings(rank)[0], [*brings(rank)[1][:2], c_int32(BYTES)]))
    raises(ValueError, "argument 2", explored, KERNEL,
           lambda rank: (brings(rank)[0], [*brings(rank)[1][:2], BYTES]))
    raises(ValueError, "ranks: expected a list of at most 8", explored, KERNEL, ranks=9)
    raises(ValueError, "as many bytes", testing.Array, b"1234", b"123")
    print("right")


if __name__ == "__main__":
    main()
