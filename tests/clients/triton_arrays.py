"""Arrays on the GPU for kernels in Triton, without PyTorch: over the driver."""

import ctypes

import numpy as np

cuda = ctypes.CDLL("libcuda.so.1")
random = np.random.default_rng(1)
print("seed 1")


def call(name, *arguments):
    """A call of the driver, which must succeed."""
    status = getattr(cuda, name)(*arguments)
    if status != 0:
        raise RuntimeError(f"{name}: status {status}")


class Array:
    """An array on the GPU, as Triton takes it: an address and a type."""

    def __init__(self, values):
        self.values = np.ascontiguousarray(values)
        self.dtype = str(self.values.dtype)
        self.address = ctypes.c_uint64()
        size = ctypes.c_size_t(max(self.values.nbytes, 16))
        call("cuMemAlloc_v2", ctypes.byref(self.address), size)
        source = self.values.ctypes.data_as(ctypes.c_void_p)
        call("cuMemcpyHtoD_v2", self.address, source, ctypes.c_size_t(self.values.nbytes))

    def data_ptr(self):
        return self.address.value

    def get(self):
        """What the GPU has left in it."""
        out = np.empty_like(self.values)
        target = out.ctypes.data_as(ctypes.c_void_p)
        call("cuMemcpyDtoH_v2", target, self.address, ctypes.c_size_t(out.nbytes))
        return out


def normal(*shape, dtype=np.float32):
    return random.standard_normal(shape).astype(dtype)


class BFloat16(Array):
    """An array of bfloat16: NumPy has the bits alone."""

    def __init__(self, values):
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        # To nearest, to even where there are two.
        super().__init__(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16))
        self.dtype = "bfloat16"

    def get(self):
        return (super().get().astype(np.uint32) << 16).view(np.float32)


device, context = ctypes.c_int(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
