"""Every call on four GPUs of one process, driven by one thread, against lists of numbers."""

import gc
import random
import weakref

import ringdove
from ringdove import DeviceArray

SEED = 20261124
RANKS = 4


def numbers(rng, count):
    # Whole numbers, whose sums are exact in every type.
    return [rng.randint(1, 5) for _ in range(count)]


def arrays(values, dtype="float32"):
    return [DeviceArray(own, dtype, device) for device, own in enumerate(values)]


def zeros(count, dtype="float32"):
    return arrays([[0] * count] * RANKS, dtype)


def check(comms, got, want, what):
    for comm in comms:
        comm.synchronize()
    for rank, (got, want) in enumerate(zip(got, want)):
        assert got.tolist() == want, f"{what}, rank {rank}: {got.tolist()[:8]}, not {want[:8]}"


def reduced(values, op):
    columns = list(zip(*values))
    if op == "sum":
        return [sum(column) for column in columns]
    if op == "avg":
        return [sum(column) / RANKS for column in columns]
    if op == "prod":
        out = []
        for column in columns:
            product = 1
            for value in column:
                product *= value
            out.append(product)
        return out
    return [(min if op == "min" else max)(column) for column in columns]


def joined(values):
    return [value for own in values for value in own]


def main():
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    comms = ringdove.init_all()
    assert [comm.rank for comm in comms] == list(range(RANKS)), comms
    assert all(comm.size == RANKS and comm.device == comm.rank for comm in comms)
    assert "rank 1 of 4, GPU 1" in repr(comms[1])

    for op in ["sum", "prod", "min", "max", "avg"]:
        for count in [1, 3, 1000, 40_001]:
            values = [numbers(rng, count) for _ in comms]
            want = [reduced(values, op)] * RANKS
            send, recv = arrays(values), zeros(count)
            for comm, send, into in zip(comms, send, recv):
                comm.all_reduce(send, into, op=op)
            check(comms, recv, want, f"all_reduce of {count}, {op}")
    for dtype in ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float64"]:
        values = [numbers(rng, 100) for _ in comms]
        both = arrays(values, dtype)
        for comm, array in zip(comms, both):
            comm.all_reduce(array)
        check(comms, both, [reduced(values, "sum")] * RANKS, f"all_reduce of {dtype} in place")
    values = [numbers(rng, 64) for _ in comms]
    both = arrays(values)
    for comm, array in zip(comms, both):
        comm.all_reduce(array, scale=0.5)
    want = [sum(column) / 2 for column in zip(*values)]
    check(comms, both, [want] * RANKS, "scaled sum")

    count = 300
    parts = [numbers(rng, count) for _ in comms]
    whole = [numbers(rng, count * RANKS) for _ in comms]

    def part(values, rank):
        return values[rank * count : (rank + 1) * count]

    send, recv = arrays(whole), zeros(count)
    for comm, array, into in zip(comms, send, recv):
        comm.reduce_scatter(array, into)
    total = reduced(whole, "sum")
    check(comms, recv, [part(total, rank) for rank in range(RANKS)], "reduce_scatter")

    send, recv = arrays(parts), zeros(count * RANKS)
    for comm, array, into in zip(comms, send, recv):
        comm.all_gather(array, into)
    check(comms, recv, [joined(parts)] * RANKS, "all_gather")

    send, recv = arrays(whole), zeros(count * RANKS)
    for comm, array, into in zip(comms, send, recv):
        comm.all_to_all(array, into)
    want = [joined(part(own, rank) for own in whole) for rank in range(RANKS)]
    check(comms, recv, want, "all_to_all")

    for root in range(RANKS):
        both = arrays(parts)
        for comm, array in zip(comms, both):
            comm.broadcast(array, root=root)
        check(comms, both, [parts[root]] * RANKS, f"broadcast from {root}")

        send, recv = arrays(parts), zeros(count)
        for comm, array, into in zip(comms, send, recv):
            comm.reduce(array, into if comm.rank == root else None, root=root)
        check(comms, [recv[root]], [reduced(parts, "sum")], f"reduce to {root}")

        send, recv = arrays(parts), zeros(count * RANKS)
        for comm, array, into in zip(comms, send, recv):
            comm.gather(array, into if comm.rank == root else None, root=root)
        check(comms, [recv[root]], [joined(parts)], f"gather to {root}")

        send, recv = arrays(whole), zeros(count)
        for comm, array, into in zip(comms, send, recv):
            comm.scatter(array if comm.rank == root else None, into, root=root)
        want = [part(whole[root], rank) for rank in range(RANKS)]
        check(comms, recv, want, f"scatter from {root}")

    # A ring, each rank one after the other.
    send, recv = arrays(parts), zeros(count)
    for comm, array, into in zip(comms, send, recv):
        with comm.group() as group:
            group.send(array, (comm.rank + 1) % RANKS)
            group.recv(into, (comm.rank - 1) % RANKS)
            group.all_reduce(array_of_ones[comm.rank])
    want = [parts[(rank - 1) % RANKS] for rank in range(RANKS)]
    check(comms, recv, want, "a ring of messages")
    check(comms, array_of_ones, [[RANKS] * 10] * RANKS, "an all_reduce in a group")

    # Nobody but the communicator keeps these arrays.
    for _ in range(50):
        for comm in comms:
            comm.all_reduce(DeviceArray([1] * 5000, device=comm.device))
    for comm in comms:
        comm.barrier()
    for comm in comms:
        comm.synchronize()

    # Registered: straight from memory to memory.
    count = 1 << 18
    both = zeros(count)
    windows = [comm.register(array) for comm, array in zip(comms, both)]
    for comm, array in zip(comms, both):
        array.write([comm.rank + 1] * count)
    for comm, window in zip(comms, windows):
        comm.all_reduce(window.array)
    check(comms, both, [[1.0 + 2 + 3 + 4] * count] * RANKS, "registered")
    assert comms[0].statistics()["launches"] > 10
    in_threads(comms, lambda comm: windows[comm.rank].deregister())
    # Registered arrays stay as long as other ranks may use them, whoever else forgets them.
    kept = [comm.register(DeviceArray(count, device=comm.device)) for comm in comms]
    arrays_kept = [weakref.ref(window.array) for window in kept]
    del kept
    gc.collect()
    assert all(array() is not None for array in arrays_kept)

    halves = in_threads(comms, lambda comm: comm.split(comm.rank % 2, -comm.rank))
    assert [half.rank for half in halves] == [1, 1, 0, 0], halves
    both = arrays([[rank] for rank in range(RANKS)])
    for half, array in zip(halves, both):
        half.all_reduce(array)
    check(halves, both, [[2.0], [4.0], [2.0], [4.0]], "halves")
    assert in_threads(comms, lambda comm: comm.split(None)) == [None] * RANKS
    for comm in halves + comms:
        comm.close()
        comm.close()
        assert comm.closed
    gc.collect()
    assert all(array() is None for array in arrays_kept)
    print("right")


def in_threads(comms, call):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(comms)) as pool:
        return list(pool.map(call, comms))


if __name__ == "__main__":
    array_of_ones = arrays([[1] * 10] * RANKS)
    main()
