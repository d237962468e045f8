"""A rank of a job, as torchrun starts it."""

import ringdove
from ringdove import DeviceArray


def main():
    with ringdove.init() as comm:
        values = [comm.rank + 1] * 1000
        array = DeviceArray(values, "float64", comm.device)
        comm.all_reduce(array, op="avg")
        comm.synchronize()
        want = (comm.size + 1) / 2
        assert array.tolist() == [want] * 1000, array.tolist()[:3]
        # A communicator of some more ranks' names, made by one and passed on by another.
        unique_id = DeviceArray([0] * 128, "uint8", comm.device)
        if comm.rank == 0:
            unique_id.write(ringdove.unique_id())
        comm.broadcast(unique_id)
        comm.synchronize()
        name = bytes(unique_id.tolist())
        with ringdove.init_rank(name, comm.rank, comm.size, comm.device) as second:
            assert second.size == comm.size
            second.barrier()
            second.finalize()
        comm.finalize()
        print(f"rank {comm.rank} right")


if __name__ == "__main__":
    main()
