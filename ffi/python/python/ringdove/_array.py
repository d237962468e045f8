"""Arrays on a GPU for programs that have no array library."""

from __future__ import annotations

import array
from typing import Any, Iterable

from ._errors import ArgumentError
from ._ringdove import Memory

# Type string, and the type code of the module `array`.
_TYPES = {
    "int8": ("|i1", "b"),
    "uint8": ("|u1", "B"),
    "int32": ("<i4", "i"),
    "uint32": ("<u4", "I"),
    "int64": ("<i8", "q"),
    "uint64": ("<u8", "Q"),
    "float32": ("<f4", "f"),
    "float64": ("<f8", "d"),
}


class DeviceArray:
    """A one-dimensional array on a GPU, zeroed.

    It is enough for examples and tests without CuPy, Numba or NumPy, and offers
    ``__cuda_array_interface__``, so that kernels of such libraries take it, too, and of Triton.

    Args:
        values: the elements, or how many of them
        dtype: int8, uint8, int32, uint32, int64, uint64, float32 or float64
        device: the GPU's number
        shareable: memory that other processes can open, as ``Communicator.register`` needs it where
            ranks are in several processes. To allocate it may wait for all work of the GPU.
    """

    def __init__(
        self,
        values: int | Iterable[float],
        dtype: str = "float32",
        device: int = 0,
        *,
        shareable: bool = False,
    ) -> None:
        if dtype not in _TYPES:
            raise ArgumentError(
                f"dtype: expected one of {', '.join(_TYPES)}, seen {dtype}",
                op="dtype",
                expected=list(_TYPES),
                seen=dtype,
            )
        self.dtype = dtype
        self._typestr, self._code = _TYPES[dtype]
        self._item = array.array(self._code).itemsize
        data = None
        if isinstance(values, int):
            self._size = values
        else:
            data = array.array(self._code, values)
            self._size = len(data)
        self._memory = Memory(self._size * self._item, device, shareable)
        if data is not None:
            self._memory.write(data.tobytes())

    def __len__(self) -> int:
        return self._size

    @property
    def device(self) -> int:
        """The GPU's number."""
        return self._memory.device

    def data_ptr(self) -> int:
        """The device address, as kernels in Triton ask for it."""
        return self._memory.address

    def write(self, values: Iterable[float]) -> None:
        """Copies ``len(self)`` values from the host, and waits for that."""
        self._memory.write(array.array(self._code, values).tobytes())

    def tolist(self) -> list[Any]:
        """The values, when the default stream of the GPU comes to this point."""
        values = array.array(self._code)
        values.frombytes(self._memory.read())
        return values.tolist()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self._size,),
            "typestr": self._typestr,
            "data": (self._memory.address, False),
            "strides": None,
            "version": 3,
        }

    def __repr__(self) -> str:
        return f"DeviceArray({self._size} x {self.dtype} on GPU {self.device})"
