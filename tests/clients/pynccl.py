"""One rank: collectives of NCCL through ctypes, compared with those of torch.distributed on the CPU."""
import ctypes
import os

import torch
import torch.distributed as dist

FLOAT, SUM, MAX = 7, 0, 2
COUNT = 50_000


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


cudart = ctypes.CDLL("libcudart.so.12")
nccl = ctypes.CDLL("libnccl.so.2")
nccl.ncclGetErrorString.restype = ctypes.c_char_p
nccl.ncclGetLastError.restype = ctypes.c_char_p
nccl.ncclCommInitRank.argtypes = [
    ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int,
]


def cuda(status):
    assert status == 0, f"CUDA error {status}"


def check(status):
    assert status == 0, f"{nccl.ncclGetErrorString(status)}: {nccl.ncclGetLastError(None)}"


class Buffer:
    """Device memory of floats."""

    def __init__(self, count):
        self.count = count
        self.pointer = ctypes.c_void_p()
        cuda(cudart.cudaMalloc(ctypes.byref(self.pointer), ctypes.c_size_t(4 * count)))

    def put(self, tensor):
        tensor = tensor.contiguous()
        cuda(cudart.cudaMemcpy(self.pointer, ctypes.c_void_p(tensor.data_ptr()),
                               ctypes.c_size_t(4 * tensor.numel()), 1))
        cuda(cudart.cudaDeviceSynchronize())

    def get(self):
        tensor = torch.empty(self.count)
        cuda(cudart.cudaMemcpy(ctypes.c_void_p(tensor.data_ptr()), self.pointer,
                               ctypes.c_size_t(4 * self.count), 2))
        return tensor


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cuda(cudart.cudaSetDevice(int(os.environ["LOCAL_RANK"])))
    unique = UniqueId()
    if rank == 0:
        check(nccl.ncclGetUniqueId(ctypes.byref(unique)))
    word = torch.tensor(list(unique.internal), dtype=torch.int8)
    dist.broadcast(word, 0)
    for index, byte in enumerate(word.tolist()):
        unique.internal[index] = byte
    send, receive = Buffer(ranks * COUNT), Buffer(ranks * COUNT)
    stream = ctypes.c_void_p()
    cuda(cudart.cudaStreamCreate(ctypes.byref(stream)))
    comm = ctypes.c_void_p()
    check(nccl.ncclCommInitRank(ctypes.byref(comm), ranks, unique, rank))

    torch.manual_seed(rank)
    data = torch.randint(-50, 50, (ranks * COUNT,)).float()
    size = ctypes.c_size_t

    def run(name, expected, *calls):
        receive.put(torch.zeros(ranks * COUNT))
        send.put(data)
        check(nccl.ncclGroupStart())
        for call, *arguments in calls:
            check(call(*arguments, comm, stream))
        check(nccl.ncclGroupEnd())
        cuda(cudart.cudaStreamSynchronize(stream))
        seen = receive.get()[: expected.numel()]
        assert torch.equal(seen, expected), f"{name} on rank {rank}: {seen} instead of {expected}"

    for name, op, reference in [("sum", SUM, dist.ReduceOp.SUM), ("max", MAX, dist.ReduceOp.MAX)]:
        expected = data.clone()
        dist.all_reduce(expected, reference)
        run(f"all-reduce {name}", expected,
            (nccl.ncclAllReduce, send.pointer, receive.pointer, size(ranks * COUNT), FLOAT, op))
        run(f"reduce-scatter {name}", expected[rank * COUNT:(rank + 1) * COUNT],
            (nccl.ncclReduceScatter, send.pointer, receive.pointer, size(COUNT), FLOAT, op))
        reduced = expected if rank == 1 else torch.zeros(0)
        run(f"reduce {name}", reduced,
            (nccl.ncclReduce, send.pointer, receive.pointer, size(ranks * COUNT), FLOAT, op, 1))
    parts = [torch.empty(COUNT) for _ in range(ranks)]
    dist.all_gather(parts, data[:COUNT])
    run("all-gather", torch.cat(parts),
        (nccl.ncclAllGather, send.pointer, receive.pointer, size(COUNT), FLOAT))
    expected = data.clone()
    dist.broadcast(expected, 2)
    run("broadcast", expected,
        (nccl.ncclBroadcast, send.pointer, receive.pointer, size(ranks * COUNT), FLOAT, 2))
    run("send and receive", parts[(rank + ranks - 1) % ranks],
        (nccl.ncclSend, send.pointer, size(COUNT), FLOAT, (rank + 1) % ranks),
        (nccl.ncclRecv, receive.pointer, size(COUNT), FLOAT, (rank + ranks - 1) % ranks))
    check(nccl.ncclCommDestroy(comm))
    print(f"rank {rank} of {ranks}: right", flush=True)


main()
