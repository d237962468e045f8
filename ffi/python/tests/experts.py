"""Expert parallelism from Python: four ranks in processes of their own, in both modes, against lists.

Expert ``e`` multiplies by ``e + 1``. All numbers are such that sums in f32 are exact.
"""

import os

import ringdove
from ringdove import DeviceArray

EXPERTS, CHOICES, HIDDEN, MOST = 8, 2, 64, 5


def tokens_of(rank, step):
    return (rank + 2 * step) % (MOST + 1)


def token(rank, step, number):
    return [float((rank * 31 + step * 7 + number * 5 + i) % 64) for i in range(HIDDEN)]


def choices_of(rank, step, number):
    """Experts and weights: some tokens choose one expert, and some none."""
    first = (3 * rank + step + number) % EXPERTS
    second = (first + 1 + number % (EXPERTS - 1)) % EXPERTS
    chosen = [(first, 0.5), (second, 0.25)]
    return [(-1, 0.0) if (number + rank + k) % 4 == 3 else chosen[k] for k in range(CHOICES)]


def expected(rank, step):
    out = []
    for number in range(tokens_of(rank, step)):
        factor = sum((e + 1) * w for e, w in choices_of(rank, step, number) if e >= 0)
        out += [value * factor for value in token(rank, step, number)]
    return out


def multiplied(rows, row, factor):
    rows[row * HIDDEN : (row + 1) * HIDDEN] = [
        value * factor for value in rows[row * HIDDEN : (row + 1) * HIDDEN]
    ]


def layer(comm, group, handle, step, mode, wide):
    mine = range(tokens_of(comm.rank, step))
    listed = [choices_of(comm.rank, step, number) for number in mine]
    x = [value for number in mine for value in token(comm.rank, step, number)]
    on = {"device": comm.device}
    tokens, out = DeviceArray(x, "float32", **on), DeviceArray(len(x), "float32", **on)
    kind = "int64" if wide else "int32"
    indices = DeviceArray([e for chosen in listed for e, _ in chosen], kind, **on)
    weights = DeviceArray([w for chosen in listed for _, w in chosen], "float32", **on)
    rows = DeviceArray(group.rows * HIDDEN, "float32", **on)
    counts = DeviceArray(group.counts, "uint32", **on)
    local = EXPERTS // comm.size
    group.dispatch_send(handle, tokens, indices, weights)
    if mode == "low-latency":
        group.dispatch_receive(handle, rows, counts)
        comm.synchronize()
        values, each = rows.tolist(), comm.size * MOST
        for expert, count in enumerate(counts.tolist()):
            for row in range(expert * each, expert * each + count):
                multiplied(values, row, comm.rank * local + expert + 1)
    else:
        chosen = DeviceArray(group.rows * CHOICES, "int32", **on)
        weighed = DeviceArray(group.rows * CHOICES, "float32", **on)
        group.dispatch_receive(handle, rows, counts, indices=chosen, weights=weighed)
        comm.synchronize()
        values, chosen, weighed = rows.tolist(), chosen.tolist(), weighed.tolist()
        for row in range(counts.tolist()[-1]):
            pairs = [(chosen[row * CHOICES + k], weighed[row * CHOICES + k]) for k in range(CHOICES)]
            factor = sum((comm.rank * local + e + 1) * w for e, w in pairs if e >= 0)
            multiplied(values, row, factor)
    rows.write(values)
    group.combine(handle, rows, out)
    comm.synchronize()
    group.check()
    assert out.tolist() == expected(comm.rank, step), (mode, step)
    return tokens, indices, rows, counts


def raises(kind, words, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert words in str(error), str(error)
        return
    raise AssertionError(f"nothing was raised by {call}")


class Wild:
    """An array that was freed, or never was."""

    __cuda_array_interface__ = {
        "shape": (HIDDEN,), "typestr": "<f4", "data": (0xDEAD0000, False), "version": 3,
    }


class Gone:
    """A registration that was taken back."""

    number, array = 0, None


def bad_input(comm, group, handle):
    """Nothing is enqueued for a call that cannot be, and the group goes on."""
    on = {"device": comm.device}
    x, wrong = DeviceArray(HIDDEN, "float32", **on), DeviceArray(HIDDEN, "float64", **on)
    index = DeviceArray(CHOICES, "int32", **on)
    raises(ringdove.ArgumentError, "float32", group.dispatch_send, handle, wrong, index)
    raises(ringdove.ArgumentError, "indices", group.dispatch_send, handle, x, wrong)
    raises(ringdove.ArgumentError, "for each token", group.dispatch_send, handle, x, x)
    few = DeviceArray(1, "int32", **on)
    raises(ringdove.ArgumentError, "for each token", group.dispatch_send, handle, x, few)
    raises(ringdove.ArgumentError, "array", group.dispatch_send, handle, [1.0], index)
    raises(ringdove.ArgumentError, "does not know", group.dispatch_send, handle, Wild(), index)
    raises(ringdove.ArgumentError, "windows", comm.device_handle, [Gone()])
    child = os.fork()
    if child == 0:
        try:
            group.handle()
        except ringdove.ForkError:
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    raises(ringdove.ArgumentError, "mode", comm.experts, experts=EXPERTS, top_k=1, hidden=HIDDEN,
           tokens_max=1, mode="fast")
    raises(ringdove.ArgumentError, "top-k", comm.experts, experts=EXPERTS, top_k=17, hidden=HIDDEN,
           tokens_max=1)
    # An expert that nobody has: all ranks learn of it.
    index.write([EXPERTS if comm.rank == 1 else 0, -1])
    rows = DeviceArray(group.rows * HIDDEN, "float32", **on)
    counts = DeviceArray(group.counts, "uint32", **on)
    group.dispatch(handle, x, index, None, rows, counts)
    comm.synchronize()
    raises(ringdove.Error, "rank 1", group.check)
    group.combine(handle, rows, DeviceArray(HIDDEN, "float32", **on))
    comm.synchronize()


def main():
    with ringdove.init() as comm:
        for lane, mode in ((0, "low-latency"), (2, "throughput")):
            group = comm.experts(
                experts=EXPERTS, top_k=CHOICES, hidden=HIDDEN, tokens_max=MOST, dtype="float32",
                mode=mode, lane=lane,
            )
            handle = group.handle()
            for step in range(4):
                layer(comm, group, handle, step, mode, wide=step % 2 == 1)
            bad_input(comm, group, handle)
            layer(comm, group, handle, 5, mode, wide=False)
        windows(comm)
        comm.finalize()
        print(f"rank {comm.rank}: right", flush=True)
    raises(ringdove.ClosedError, "closed", group.check)


def windows(comm):
    """What kernels are told of registered arrays."""
    array = DeviceArray(24, "uint32", comm.device, shareable=True)
    registered = comm.register(array)
    handle = comm.device_handle([registered])
    window = handle.windows[0]
    assert (window.index, window.nbytes, window.itemsize) == (0, 96, 4), window
    assert window.offset(6) == 24 and window.offset(24) == 96 and window.array is array
    raises(IndexError, "25", window.offset, 25)
    raises(IndexError, "2 indices", window.offset, 1, 1)


if __name__ == "__main__":
    main()
