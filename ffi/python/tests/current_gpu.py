"""No call, and no collected object, changes the GPU that a program has made current."""

import ctypes
import gc

import ringdove
from ringdove import DeviceArray

CUDA = ctypes.CDLL("libcuda.so.1")


def cuda(name, *arguments):
    code = getattr(CUDA, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def primary(device):
    context = ctypes.c_void_p()
    cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context


def current():
    context = ctypes.c_void_p()
    cuda("cuCtxGetCurrent", ctypes.byref(context))
    return context.value


def exercise():
    """Makes, uses and drops one of each kind, on GPUs 0 and 1."""

    def stays(what):
        assert current() == before, f"{what} has changed the current context"

    before = current()
    comms = ringdove.init_all([0, 1])
    stays("init_all")
    arrays = [DeviceArray([comm.rank + 1.0] * 100, device=comm.device) for comm in comms]
    into = [DeviceArray(100, device=comm.device) for comm in comms]
    stays("DeviceArray")
    for comm, array in zip(comms, arrays):
        comm.all_reduce(array)
        stays("all_reduce")
        with comm.group() as group:
            group.send(array, 1 - comm.rank)
            group.recv(into[comm.rank], 1 - comm.rank)
        stays("a group")
    for comm, array in zip(comms, arrays):
        comm.synchronize()
        stays("synchronize")
        array.write([4.0] * 100)
        stays("write")
        assert array.tolist() == [4.0] * 100
        stays("tolist")
        comm.check()
        comm.statistics()
        stays("check, statistics")
    registrations = [comm.register(array) for comm, array in zip(comms, arrays)]
    stays("register")
    del array, arrays, into, registrations
    gc.collect()
    stays("the end of arrays")
    comms[0].abort("a test")
    stays("abort")
    for comm in comms:
        comm.close()
        stays("close")
    del comms, comm
    gc.collect()
    stays("the end of communicators")


def main():
    cuda("cuInit", 0)
    exercise()
    assert current() is None, "a program without a current context has one"
    contexts = [primary(device) for device in (0, 1, 2)]
    for context in contexts:
        cuda("cuCtxSetCurrent", context)
        exercise()
    # Freed while another GPU is current, and while none is: nothing is left for later calls.
    for context in [contexts[2], None]:
        array = DeviceArray([1.0], device=1)
        cuda("cuCtxSetCurrent", context)
        del array
        gc.collect()
        assert DeviceArray([7.0], device=1).tolist() == [7.0]
    print("right")


if __name__ == "__main__":
    main()
