"""What Python costs: the import of the module, and its share of a call.

    hwsim run --machine one-gpu -- python3 benches/python.py

Processor time of the calling thread, so that other programs count little: of an all-reduce of four
floats by one rank through the module, and through `ncclAllReduce`, which ctypes calls. What the
second has without ctypes is the library's; the rest of the first is Python's and the module's.
Prints the lowest and the median of the rounds."""

import ctypes
import statistics
import subprocess
import sys
import time

import ringdove
import ringdove.files

IMPORTS, ROUNDS, CALLS = 21, 41, 500
IMPORT = """
import time
wall, own = time.perf_counter(), time.process_time()
import ringdove
print((time.perf_counter() - wall) * 1e3, (time.process_time() - own) * 1e3)
"""


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Stream:
    """A stream of the program's, as the module takes it."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


def checked(status):
    assert status == 0, status


def show(what, values, unit):
    print(f"{what}: {min(values):.2f} lowest, {statistics.median(values):.2f} median {unit}")


def main():
    command = [sys.executable, "-c", IMPORT]
    imports = []
    for _ in range(IMPORTS):
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        imports.append([float(word) for word in text.split()])
    show("import, wall time", [wall for wall, _ in imports], "ms")
    show("import, processor time", [own for _, own in imports], "ms")

    cuda = ctypes.CDLL("libcuda.so.1")
    nccl = ctypes.CDLL(str(ringdove.files.nccl()))
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
    nccl.ncclAllReduce.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
        ctypes.c_void_p, ctypes.c_void_p,
    ]
    comm = ringdove.init_rank(ringdove.unique_id(), 0, 1, 0)
    array = ringdove.DeviceArray([1.0] * 4)
    context, stream, other = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    version = ctypes.c_int()
    checked(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    checked(cuda.cuCtxSetCurrent(context))
    checked(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    unique = Id()
    checked(nccl.ncclGetUniqueId(ctypes.byref(unique)))
    checked(nccl.ncclCommInitRank(ctypes.byref(other), 1, unique, 0))
    own, address, float32, summed = Stream(stream.value), array.data_ptr(), 7, 0

    def of_module():
        comm.all_reduce(array, stream=own)

    def of_library():
        checked(nccl.ncclAllReduce(address, address, 4, float32, summed, other, stream))

    def of_ctypes():
        checked(nccl.ncclGetVersion(ctypes.byref(version)))

    calls = {
        "the module": of_module,
        "ncclAllReduce by ctypes": of_library,
        "ctypes alone": of_ctypes,
    }
    seen = {what: [] for what in calls}
    # Round by round, so that all see the same times of a busy machine.
    for round_of in range(ROUNDS + 1):
        for what, call in calls.items():
            began = time.thread_time()
            for _ in range(CALLS):
                call()
            if round_of:
                seen[what].append((time.thread_time() - began) / CALLS * 1e6)
            checked(cuda.cuStreamSynchronize(stream))
    for what, values in seen.items():
        show(what, values, "us")
    rounds = zip(*seen.values())
    shares = [module - library + nothing for module, library, nothing in rounds]
    # Differences of two measured times: the lowest would be that of the worst round of the other.
    print(f"the module's share: {statistics.median(shares):.2f} median us")
    comm.close()


if __name__ == "__main__":
    main()
