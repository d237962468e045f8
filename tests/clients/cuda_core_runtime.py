"""A pytest plugin for cuda.core's tests. cuda.bindings holds NVIDIA's static runtime, which asks for private
tables of NVIDIA's driver. What cuda.core and its tests call of it comes from the shared runtime instead, which
`hwsim run` brings.
"""
import ctypes

from cuda.bindings import runtime

shared = ctypes.CDLL("libcudart.so.12")


def call(name, *arguments):
    return runtime.cudaError_t(getattr(shared, name)(*arguments))


def number(name, *arguments):
    value = ctypes.c_int()
    return call(name, ctypes.byref(value), *arguments), value.value


def pci_bus_id(length, device):
    text = ctypes.create_string_buffer(length)
    return call("cudaDeviceGetPCIBusId", text, length, device), text.value


runtime.cudaDeviceSynchronize = lambda: (call("cudaDeviceSynchronize"),)
runtime.cudaGetDeviceCount = lambda: number("cudaGetDeviceCount")
runtime.cudaGetDevice = lambda: number("cudaGetDevice")
runtime.cudaDeviceGetAttribute = lambda which, device: number(
    "cudaDeviceGetAttribute", int(which), device
)
runtime.cudaDeviceGetPCIBusId = pci_bus_id
