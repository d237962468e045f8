"""CuPy's bindings of NCCL, and what it builds upon them, on the GPUs of one machine.

Without an argument: several GPUs of this process. With the number of processes: one rank of
`cupyx.distributed`, whose rendezvous is at MASTER_ADDR:MASTER_PORT.
"""
import os
import sys

import cupy as cp
import cupyx.distributed
import numpy as np
from cupy.cuda import nccl

COUNT = 10_007
TYPES = {np.int8: nccl.NCCL_INT8, np.int32: nccl.NCCL_INT32, np.int64: nccl.NCCL_INT64,
         np.float16: nccl.NCCL_FLOAT16, np.float32: nccl.NCCL_FLOAT32, np.float64: nccl.NCCL_FLOAT64}


def values(rank, dtype, count=COUNT):
    """Small whole numbers, whose sums every type holds."""
    return np.random.default_rng(rank).integers(-3, 4, count).astype(dtype)


def check(name, got, expected):
    if not np.array_equal(cp.asnumpy(got), expected):
        sys.exit(f"{name}: wrong")
    print(f"{name}: right", flush=True)


class Group:
    """The communicators of all GPUs, of one thread."""

    def __init__(self):
        self.devices = range(cp.cuda.runtime.getDeviceCount())
        self.comms = nccl.NcclCommunicator.initAll(list(self.devices))
        self.streams = []
        for device in self.devices:
            with cp.cuda.Device(device):
                self.streams.append(cp.cuda.Stream(non_blocking=True))

    def run(self, call, outputs):
        """`call` for each rank, as a group; the outputs when all is done."""
        nccl.groupStart()
        for rank, (comm, stream) in enumerate(zip(self.comms, self.streams)):
            with cp.cuda.Device(rank):
                call(rank, comm, stream.ptr)
        nccl.groupEnd()
        for stream in self.streams:
            stream.synchronize()
        return [cp.asnumpy(output) for output in outputs]


def put(rank, data):
    with cp.cuda.Device(rank):
        array = cp.asarray(data)
        cp.cuda.Device(rank).synchronize()
        return array


def one_process():
    group = Group()
    ranks = len(group.devices)
    print(f"NCCL {nccl.get_version()}, {ranks} GPUs", flush=True)
    for dtype, type in TYPES.items():
        inputs = [values(rank, dtype) for rank in group.devices]
        sent = [put(rank, data) for rank, data in enumerate(inputs)]
        got = [put(rank, np.zeros(COUNT, dtype)) for rank in group.devices]
        for name, op, function in (("sum", nccl.NCCL_SUM, np.sum), ("max", nccl.NCCL_MAX, np.max),
                                   ("min", nccl.NCCL_MIN, np.min)):
            expected = function(inputs, axis=0)
            outputs = group.run(
                lambda rank, comm, stream: comm.allReduce(
                    sent[rank].data.ptr, got[rank].data.ptr, COUNT, type, op, stream), got)
            check(f"all-reduce {name} of {dtype.__name__}", outputs, [expected] * ranks)
    inputs = [values(rank, np.float32) for rank in group.devices]
    sent = [put(rank, data) for rank, data in enumerate(inputs)]
    wide = [put(rank, np.zeros(ranks * COUNT, np.float32)) for rank in group.devices]
    outputs = group.run(
        lambda rank, comm, stream: comm.allGather(
            sent[rank].data.ptr, wide[rank].data.ptr, COUNT, nccl.NCCL_FLOAT32, stream), wide)
    check("all-gather", outputs, [np.concatenate(inputs)] * ranks)
    part = [put(rank, np.zeros(COUNT, np.float32)) for rank in group.devices]
    outputs = group.run(
        lambda rank, comm, stream: comm.reduceScatter(
            wide[rank].data.ptr, part[rank].data.ptr, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM,
            stream), part)
    check("reduce-scatter", outputs, [ranks * data for data in inputs])
    outputs = group.run(
        lambda rank, comm, stream: comm.broadcast(
            sent[rank].data.ptr, part[rank].data.ptr, COUNT, nccl.NCCL_FLOAT32, 1, stream), part)
    check("broadcast", outputs, [inputs[1]] * ranks)

    def shift(rank, comm, stream):
        comm.send(sent[rank].data.ptr, COUNT, nccl.NCCL_FLOAT32, (rank + 1) % ranks, stream)
        comm.recv(part[rank].data.ptr, COUNT, nccl.NCCL_FLOAT32, (rank - 1) % ranks, stream)

    check("send and receive", group.run(shift, part), [inputs[rank - 1] for rank in group.devices])
    for comm in group.comms:
        if comm.check_async_error():
            sys.exit("an asynchronous error")
        comm.destroy()


def one_rank(ranks):
    rank = int(os.environ["RANK"])
    cp.cuda.Device(int(os.environ["LOCAL_RANK"])).use()
    comm = cupyx.distributed.init_process_group(
        ranks, rank, host=os.environ["MASTER_ADDR"], port=int(os.environ["MASTER_PORT"]))
    inputs = [values(each, np.float32, ranks * 1000) for each in range(ranks)]
    sent, got = cp.asarray(inputs[rank]), cp.zeros(ranks * 1000, cp.float32)
    comm.all_reduce(sent, got)
    check("all_reduce", got, np.sum(inputs, axis=0))
    comm.reduce(sent, got, root=1)
    if rank == 1:
        check("reduce", got, np.sum(inputs, axis=0))
    got[...] = sent
    comm.broadcast(got, root=2)
    check("broadcast", got, inputs[2])
    part = cp.zeros(1000, cp.float32)
    comm.reduce_scatter(sent, part, 1000)
    check("reduce_scatter", part, np.sum(inputs, axis=0)[1000 * rank:1000 * rank + 1000])
    comm.all_gather(part, got, 1000)
    check("all_gather", got, np.sum(inputs, axis=0))
    square, turned = sent.reshape(ranks, 1000), cp.zeros((ranks, 1000), cp.float32)
    comm.all_to_all(square, turned)
    check("all_to_all", turned, [data.reshape(ranks, 1000)[rank] for data in inputs])
    comm.scatter(square, part, root=0)
    check("scatter", part, inputs[0].reshape(ranks, 1000)[rank])
    comm.gather(part, turned, root=0)
    if rank == 0:
        check("gather", turned, inputs[0].reshape(ranks, 1000))
    comm.send_recv(sent, got, rank ^ 1)
    check("send_recv", got, inputs[rank ^ 1])
    if rank == 0:
        comm.send(sent, 1)
    elif rank == 1:
        comm.recv(got, 0)
        check("send, recv", got, inputs[0])
    comm.barrier()
    comm.stop()


if len(sys.argv) > 1:
    one_rank(int(sys.argv[1]))
else:
    one_process()
