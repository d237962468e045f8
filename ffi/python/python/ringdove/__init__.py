"""Collective communication between GPUs.

    import ringdove

    with ringdove.init() as comm:  # under torchrun, mpirun or srun
        comm.all_reduce(gradients, op="avg", stream=stream)

Arrays are those of any library that offers ``__cuda_array_interface__`` or DLPack on a GPU: CuPy,
Numba, JAX, PyTorch, cuda.core. They are contiguous, and of the communicator's GPU. Streams are
objects of these libraries, or handles as integers.

Calls return when their work is enqueued on the stream. Arrays may be used and overwritten when the
stream has passed the call, and not before, as with any work on a stream; they need not be kept, the
communicator keeps them until then. Without a stream, a call uses the one on which its arrays say
that they are ready, or else the legacy default stream.

Ranks make the same calls in the same order. An error ends a communicator on all of its ranks and is
raised by the next call, by ``Communicator.check`` and by ``Communicator.synchronize``.
"""

from __future__ import annotations

from ._communicator import (
    Communicator,
    DeviceHandle,
    Group,
    Registration,
    Window,
    init,
    init_all,
    init_rank,
    unique_id,
)
from ._errors import (
    AbortedError,
    ArgumentError,
    ClosedError,
    ConnectionError,
    CudaError,
    DisagreementError,
    Error,
    ForkError,
    NotFoundError,
    StaleRegistrationError,
    WaitExpiredError,
)
from ._array import DeviceArray
from ._experts import Experts, ExpertsHandle
from ._ringdove import __build__, __version__, device_count, set_device

__all__ = [
    "AbortedError",
    "ArgumentError",
    "ClosedError",
    "Communicator",
    "ConnectionError",
    "CudaError",
    "DeviceArray",
    "DeviceHandle",
    "DisagreementError",
    "Error",
    "Experts",
    "ExpertsHandle",
    "ForkError",
    "Group",
    "NotFoundError",
    "Registration",
    "StaleRegistrationError",
    "WaitExpiredError",
    "Window",
    "__build__",
    "__version__",
    "device_count",
    "init",
    "init_all",
    "init_rank",
    "set_device",
    "unique_id",
]
