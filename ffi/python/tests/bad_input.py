"""What cannot be is an exception that says so, and nothing hangs."""

import ctypes
import os
import signal
import threading
import time
from random import Random

import ringdove
from ringdove import DeviceArray


class Interface:
    """An array that says of itself what a test wants."""

    def __init__(self, array, **changes):
        self.array = array
        self.changes = changes

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__cuda_array_interface__, **self.changes}


class Says:
    """An object of these attributes."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def tensor(device, capsule):
    """What says by DLPack that it lies on `device`, and gives `capsule`."""
    return Says(__dlpack_device__=lambda: device, __dlpack__=lambda stream: capsule)


class Raises:
    """An array that cannot be had."""

    def __init__(self, error):
        self.error = error

    @property
    def __cuda_array_interface__(self):
        raise self.error


def streams_of(device):
    """A stream in the context that everybody shares on a GPU, and one in a context of its own."""
    cuda = ctypes.CDLL("libcuda.so.1")
    for make in ["primary", "own"]:
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        if make == "primary":
            assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
            assert cuda.cuCtxPushCurrent_v2(context) == 0
        else:
            assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
        assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
        assert cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
        yield stream.value


def freed(like):
    """An array whose memory was given back before the call, as far as the driver is concerned."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)) == 0
    assert cuda.cuMemFree_v2(address) == 0
    assert cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    return Interface(like, data=(address.value, False))


def in_child(call, *arguments):
    """What a call raises in a process that is forked from this one."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call(*arguments)
            seen = "nothing"
        except BaseException as error:
            seen = f"{type(error).__name__}: {error}"
        os.write(writer, seen.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as output:
        seen = output.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return seen


def raises(kind, words, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert words in str(error), f"{error!r} does not say {words!r}"
        return error
    raise AssertionError(f"no {kind.__name__}: {words}")


def any_interfaces(cases, seed):
    """Arrays that say anything of themselves are used or refused, whatever it is."""
    print(f"random arrays, seed {seed}")
    random = Random(seed)
    [comm] = ringdove.init_all([0])
    like = DeviceArray(8, device=0)
    address = like.__cuda_array_interface__["data"][0]
    numbers = [0, 1, 2, 4, 8, -1, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63)]
    others = [None, True, 0.5, float("nan"), "", "<f4", "<i8", "|b1", "\0", b"8", {}, [], like]
    pairs = [(address, False), (address, True), (address + 4, False), (address + 1, False)]

    def anything():
        draw = random.randrange(5)
        if draw == 0:
            return random.choice(numbers)
        if draw == 1:
            return random.choice(others)
        if draw == 2:
            return random.choice(pairs + [(address,), (0, False), (0xDEAD0000, False)])
        kind = random.choice([tuple, list])
        return kind(random.choice(numbers + others) for _ in range(random.randrange(4)))

    refused = used = 0
    for _ in range(cases):
        if random.randrange(4) == 0:
            array = tensor(anything(), anything())
        else:
            names = ["shape", "typestr", "data", "strides", "stream", "mask", "version", "descr"]
            changes = {name: anything() for name in random.sample(names, random.randint(1, 3))}
            array = Interface(like, **changes)
        given = {"stream": anything()} if random.randrange(8) == 0 else {}
        try:
            comm.all_reduce(array, **given)
            used += 1
        except ringdove.Error as error:
            assert str(error), f"{vars(array)}: nothing is said"
            refused += 1
    comm.synchronize()
    assert refused > cases // 2 and used > 0, (refused, used)


def main():
    any_interfaces(3000, int(os.environ.pop("RINGDOVE_FUZZ_SEED", "20")))

    comms = ringdove.init_all([0, 1])
    comm, other = comms
    on0, on1 = DeviceArray(8, device=0), DeviceArray(8, device=1)
    wrong = ringdove.ArgumentError
    assert issubclass(wrong, ValueError)

    error = raises(wrong, "an array on a GPU", comm.all_reduce, [1, 2, 3])
    assert (error.op, error.seen) == ("send", "list"), vars(error)
    raises(wrong, "an array on a GPU", comm.all_reduce, b"1234")
    raises(wrong, "contiguous", comm.all_reduce, Interface(on0, shape=(4,), strides=(8,)))
    raises(wrong, "contiguous", comm.all_reduce, Interface(on0, strides=(4, 4)))
    for changes, words in [
        ({"shape": None}, "whose shape is of sizes from 0 on, seen None"),
        ({"shape": (-8,)}, "whose shape is of sizes from 0 on, seen (-8,)"),
        ({"shape": (1 << 62, 1 << 62)}, "less than 2^63 bytes"),
        ({"data": 4096}, "whose data is an address, and whether it may only be read, seen 4096"),
        ({"typestr": 4}, "whose typestr is a string, seen 4"),
        ({"strides": "4"}, "whose strides is of integers"),
        ({"stream": "main"}, "whose stream is a handle as an int, seen main"),
        ({"mask": on0}, "without a mask"),
    ]:
        raises(wrong, words, comm.all_reduce, Interface(on0, **changes))
    raises(wrong, "that is a dict", comm.all_reduce, Says(__cuda_array_interface__=7))
    # What a library says of its own array is passed on, and so is Ctrl-C.
    raises(LookupError, "gone", comm.all_reduce, Raises(LookupError("gone")))
    raises(KeyboardInterrupt, "", comm.all_reduce, Raises(KeyboardInterrupt()))
    raises(wrong, "two numbers, seen None", comm.all_reduce, tensor(None, None))
    raises(wrong, "DLPack device of type 1", comm.all_reduce, tensor((1, 0), None))
    raises(wrong, "that nobody has taken, seen 7", comm.all_reduce, tensor((2, 0), 7))
    raises(wrong, "may be written", comm.all_reduce, on0, Interface(on0, data=(4096, True)))
    raises(wrong, "type that collectives know", comm.all_reduce, Interface(on0, typestr="<c8"))
    raises(wrong, "seen one on GPU 1", comm.all_reduce, on1)
    raises(wrong, "seen one on GPU 1", comm.register, on1)
    raises(wrong, "", comm.all_reduce, Interface(on0, data=(0xDEAD0000, False)))
    raises(wrong, "", comm.all_reduce, Interface(on0, shape=(1 << 40,)))
    raises(wrong, "4 elements", comm.all_reduce, Interface(on0, shape=(4,)), on0)
    raises(wrong, "as send has", comm.all_reduce, on0, Interface(on0, typestr="<i4"))
    raises(wrong, "a multiple of 2", comm.all_to_all, Interface(on0, shape=(7,)))
    raises(wrong, "an array, seen None", comm.all_gather, on0, None)
    raises(wrong, "sum, prod", comm.all_reduce, on0, op="mean")
    raises(wrong, "sum, where scale", comm.all_reduce, on0, op="max", scale=2)
    raises(wrong, "", comm.broadcast, on0, root=2)
    raises(wrong, "", comm.send, on0, 2)
    raises(OverflowError, "", comm.send, on0, -1)
    raises(wrong, "bfloat16", comm.all_reduce, on0, dtype="half")
    raises(wrong, "elements of 2 bytes", comm.all_reduce, on0, dtype="bfloat16")
    raises(wrong, "a stream", comm.all_reduce, on0, stream="0")
    raises(wrong, "a stream", comm.all_reduce, on0, stream=True)
    raises(wrong, "a stream", comm.all_reduce, on0, stream=1 << 64)
    for pair in [(0,), (7, 0), None]:
        raises(wrong, "of (0, handle)", comm.all_reduce, on0, stream=Says(__cuda_stream__=pair))
    raises(wrong, "a handle as an int, seen main", comm.all_reduce, on0, stream=Says(ptr="main"))
    raises(wrong, "that the CUDA driver knows", comm.all_reduce, freed(on0))
    raises(wrong, "that the CUDA driver knows", comm.register, freed(on0))
    (of_gpu, of_context), (of_other_gpu, _) = streams_of(0), streams_of(1)
    for stream in (of_context, of_other_gpu):
        raises(wrong, "one of another context", comm.all_reduce, on0, stream=stream)
    raises(wrong, "bytes of ringdove.unique_id", ringdove.init_rank, b"no", 0, 1)
    raises(ringdove.NotFoundError, "CUDA device 99", ringdove.init_all, [99])
    raises(wrong, "none of them", ringdove.init)

    # Nothing of this has ended the communicator.
    for comm, array, stream in zip(comms, [on0, on1], [of_gpu, of_other_gpu]):
        array.write([1] * 8)
        comm.all_reduce(array, stream=stream)
    for comm in comms:
        comm.synchronize()
    assert on0.tolist() == [2.0] * 8

    # A rank that makes another call: both sides learn of both.
    comms[0].all_reduce(on0)
    error = raises(ringdove.DisagreementError, "", comms[1].all_reduce, Interface(on1, shape=(4,)))
    assert {error.rank, error.peer} == {0, 1}, vars(error)
    raises(ringdove.DisagreementError, "", comms[0].synchronize)

    # Ranks that were told other numbers of ranks, as those of two jobs, or of two versions.
    unique_id, seen = ringdove.unique_id(), [None, None]

    def join(rank, count):
        try:
            ringdove.init_rank(unique_id, rank, count, rank)
        except ringdove.DisagreementError as error:
            seen[rank] = (error.op, {error.rank, error.peer}, {error.expected, error.seen})

    ranks = [threading.Thread(target=join, args=each) for each in [(0, 2), (1, 3)]]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    assert seen == [("the number of ranks", {0, 1}, {"2", "3"})] * 2, seen

    # After fork, communicators of the parent say so, and so does what needs CUDA.
    comms = ringdove.init_all([0, 1])
    for call, *arguments in [
        (comms[0].all_reduce, on0),
        (comms[0].barrier,),
        (comms[0].synchronize,),
        (comms[0].split, 0),
        (comms[0].register, on0),
        (on0.tolist,),
        (DeviceArray, 8),
        (ringdove.init_all, [0, 1]),
    ]:
        seen = in_child(call, *arguments)
        assert seen.startswith("ForkError: ") and '"spawn"' in seen, f"{call}: {seen}"
    child = os.fork()
    if child == 0:
        try:
            comms[0].all_reduce(on0)
        except ringdove.ForkError:
            comms[0].close()
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

    # A shell starts its background jobs with this signal ignored, and Python leaves it so.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    # Ctrl-C ends a wait for ranks that never come.
    unique_id = ringdove.unique_id()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    raises(KeyboardInterrupt, "", ringdove.init_rank, unique_id, 0, 2)
    assert time.monotonic() - began < 20

    # And one for a rank that does not call; the communicator has ended then.
    comms[0].all_reduce(on0)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    raises(KeyboardInterrupt, "", comms[0].synchronize)
    raises(ringdove.AbortedError, "", comms[1].all_reduce, on1)

    # An exception in a block ends the communicator for all.
    comms = ringdove.init_all([0, 1])
    try:
        with comms[0]:
            raise LookupError("here")
    except LookupError:
        pass
    error = raises(ringdove.AbortedError, "LookupError", comms[1].all_reduce, on1)
    assert error.peer == 0, vars(error)
    raises(ringdove.ClosedError, "closed", comms[0].all_reduce, on0)
    print("right")


if __name__ == "__main__":
    main()
