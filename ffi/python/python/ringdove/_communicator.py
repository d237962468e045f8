"""Communicators, groups and registrations."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any, Iterable

from . import _ringdove
from ._errors import ArgumentError
from ._experts import Experts

_Call = tuple[str, Any, Any, int, "str | None", "float | None", "str | None"]


class Collectives:
    """The calls of a communicator, and of a group.

    ``send`` and ``recv`` are arrays, ``n`` is the number of ranks. Arrays without a size here have
    any. All ranks pass the same sizes and types. ``dtype`` names the type of elements for arrays
    that cannot say it, such as bfloat16 in an array of uint16; it has the size of theirs.

    Every method raises ``ArgumentError`` for arrays and numbers that cannot be, and the error that
    ended the communicator, if any.
    """

    def _add(self, call: _Call, stream: Any) -> None:
        raise NotImplementedError

    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        *,
        op: str = "sum",
        scale: float | None = None,
        dtype: str | None = None,
        stream: Any = None,
    ) -> None:
        """Reduces the ranks' ``send`` into the ``recv`` of each.

        Args:
            recv: as large as ``send``; ``None`` stands for ``send`` itself
            op: sum, prod, min, max or avg
            scale: multiplies this rank's ``send`` first; with ``op="sum"`` alone
        """
        recv = send if recv is None else recv
        self._add(("all_reduce", send, recv, 0, op, scale, dtype), stream)

    def reduce_scatter(
        self,
        send: Any,
        recv: Any,
        *,
        op: str = "sum",
        scale: float | None = None,
        dtype: str | None = None,
        stream: Any = None,
    ) -> None:
        """Reduces the ranks' ``send``, of ``n * len(recv)`` elements; rank ``i`` gets part ``i``.

        In place where ``recv`` is this rank's part of ``send``.
        """
        self._add(("reduce_scatter", send, recv, 0, op, scale, dtype), stream)

    def all_gather(
        self, send: Any, recv: Any, *, dtype: str | None = None, stream: Any = None
    ) -> None:
        """Puts the ranks' ``send`` one behind the other into the ``recv`` of each.

        ``recv`` has ``n * len(send)`` elements; in place where ``send`` is this rank's part of it.
        """
        self._add(("all_gather", send, recv, 0, None, None, dtype), stream)

    def broadcast(
        self,
        send: Any,
        recv: Any = None,
        *,
        root: int = 0,
        dtype: str | None = None,
        stream: Any = None,
    ) -> None:
        """Copies the root's ``send`` into the ``recv`` of each rank.

        With one array, it is both: what the root has, and where the others get it.
        """
        recv = send if recv is None else recv
        self._add(("broadcast", send, recv, root, None, None, dtype), stream)

    def reduce(
        self,
        send: Any,
        recv: Any = None,
        *,
        root: int = 0,
        op: str = "sum",
        scale: float | None = None,
        dtype: str | None = None,
        stream: Any = None,
    ) -> None:
        """Reduces the ranks' ``send`` into the root's ``recv``, or ``send`` if that is ``None``."""
        recv = send if recv is None else recv
        self._add(("reduce", send, recv, root, op, scale, dtype), stream)

    def all_to_all(
        self, send: Any, recv: Any = None, *, dtype: str | None = None, stream: Any = None
    ) -> None:
        """Sends part ``i`` of ``send`` to rank ``i``, and gets part ``i`` of ``recv`` from it.

        Both have ``n`` equal parts; with one array, it is both.
        """
        recv = send if recv is None else recv
        self._add(("all_to_all", send, recv, 0, None, None, dtype), stream)

    def gather(
        self,
        send: Any,
        recv: Any = None,
        *,
        root: int = 0,
        dtype: str | None = None,
        stream: Any = None,
    ) -> None:
        """Puts the ranks' ``send`` one behind the other into the root's ``recv``.

        ``recv`` has ``n * len(send)`` elements, and only the root has it.
        """
        self._add(("gather", send, recv, root, None, None, dtype), stream)

    def scatter(
        self,
        send: Any,
        recv: Any,
        *,
        root: int = 0,
        dtype: str | None = None,
        stream: Any = None,
    ) -> None:
        """Copies part ``i`` of the root's ``send`` into the ``recv`` of rank ``i``.

        ``send`` has ``n * len(recv)`` elements, and only the root has it: others pass ``None``.
        """
        self._add(("scatter", send, recv, root, None, None, dtype), stream)

    def send(
        self, array: Any, peer: int, *, dtype: str | None = None, stream: Any = None
    ) -> None:
        """Sends an array to ``peer``, which receives as many elements.

        Several sends and receives that wait for one another belong in a ``group``.
        """
        self._add(("send", array, None, peer, None, None, dtype), stream)

    def recv(
        self, array: Any, peer: int, *, dtype: str | None = None, stream: Any = None
    ) -> None:
        """Receives an array from ``peer``."""
        self._add(("recv", None, array, peer, None, None, dtype), stream)


class Group(Collectives):
    """Calls that run together, made when the ``with`` block ends.

    The order of sends and receives in it cannot dead-lock. An exception in the block drops it.
    """

    def __init__(self, rank: _ringdove.Rank, stream: Any) -> None:
        self._rank = rank
        self._stream = stream
        self._calls: list[_Call] | None = None

    def _add(self, call: _Call, stream: Any) -> None:
        if stream is not None:
            raise ValueError("the stream of a group is that of Communicator.group")
        if self._calls is None:
            raise RuntimeError("calls of a group are made in its with block")
        self._calls.append(call)

    def __enter__(self) -> Group:
        if self._calls is not None:
            raise RuntimeError("the group was entered before")
        self._calls = []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        calls, self._calls = self._calls, None
        if kind is None and calls:
            self._rank.group(calls, self._stream)


class Registration:
    """An array that all ranks have registered, so that data moves straight from and into it.

    The ranks register in the same order. The communicator keeps the array until ``deregister`` has
    returned, or until it is closed; it must not be freed by other means before all ranks are there.
    """

    def __init__(self, rank: _ringdove.Rank, array: Any) -> None:
        self._rank = rank
        self._number = rank.register(array)
        self.array = array

    @property
    def number(self) -> int:
        """Counts the registrations of the communicator."""
        return self._number

    def deregister(self) -> None:
        """Gives the array back. Every rank calls it; waits for what is enqueued."""
        self._rank.deregister(self._number)
        self.array = None

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.deregister()


class Window:
    """A registered array, as kernels know it: by its place in the handle, and offsets in bytes.

    Attributes:
        index: the number that ``put`` and its like take
        array: this rank's array
        shape, itemsize, nbytes: of it; every rank has the same ``nbytes``
    """

    def __init__(self, index: int, array: Any) -> None:
        self.index = index
        self.array = array
        self.shape, self.itemsize = _shape(array)
        self.nbytes = math.prod(self.shape) * self.itemsize

    def offset(self, *position: int) -> int:
        """Bytes from the begin of the window to an element, or to a row of them.

        Raises:
            IndexError: the array has no such element; its end counts as one, in one dimension
        """
        if len(position) > len(self.shape):
            raise IndexError(f"window {self.index}: {len(position)} indices, shape {self.shape}")
        offset, stride = 0, self.nbytes
        for number, size in zip(position, self.shape):
            if not 0 <= number <= size - (len(self.shape) > 1):
                raise IndexError(f"window {self.index}: {position} in shape {self.shape}")
            stride //= max(size, 1)
            offset += number * stride
        return offset

    def __index__(self) -> int:
        return self.index

    def __repr__(self) -> str:
        return f"Window({self.index}, shape {self.shape}, {self.nbytes} bytes)"


def _shape(array: Any) -> tuple[tuple[int, ...], int]:
    """Shape, and bytes of an element."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return tuple(interface["shape"]), int(interface["typestr"][2:])
    return tuple(array.shape), int(array.dtype.itemsize)


class DeviceHandle:
    """What a kernel of the user's needs to put data, to signal and to wait.

    ``ringdove.cuh`` takes ``address``. Kernels that have it end before it is dropped.

    Attributes:
        windows: the registered arrays, in the order in which they were given
    """

    def __init__(self, rank: _ringdove.Rank, windows: Iterable[Registration]) -> None:
        given = list(windows)
        for window in given:
            if window.array is None:
                raise ArgumentError(
                    "windows: expected registered arrays, seen one that was deregistered",
                    op="windows",
                    expected="registered arrays",
                    seen="one that was deregistered",
                )
        self._handle = _ringdove.DeviceHandle(rank, [window.number for window in given])
        self.windows = [Window(index, window.array) for index, window in enumerate(given)]

    @property
    def address(self) -> int:
        """Device address."""
        return self._handle.address


class Communicator(Collectives):
    """One rank of a communicator: see ``init``, ``init_all`` and ``init_rank``.

    It may be used by several threads, one call after the other. As a context manager it closes at
    the end of its block; after an exception, it aborts first, so that the other ranks do not wait.
    """

    def __init__(self, rank: _ringdove.Rank) -> None:
        self._rank = rank

    def _add(self, call: _Call, stream: Any) -> None:
        self._rank.call(call, stream)

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._rank.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._rank.size

    @property
    def device(self) -> int:
        """Number of this rank's GPU."""
        return self._rank.device

    @property
    def closed(self) -> bool:
        """Was it closed?"""
        return self._rank.closed

    def barrier(self, *, stream: Any = None) -> None:
        """No rank's stream passes this call before all ranks' streams have come to it."""
        self._add(("barrier", None, None, 0, None, None, None), stream)

    def group(self, *, stream: Any = None) -> Group:
        """Calls that run together, on one stream:

            with comm.group() as group:
                group.send(mine, (comm.rank + 1) % comm.size)
                group.recv(theirs, (comm.rank - 1) % comm.size)
        """
        return Group(self._rank, stream)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks with the same color, ordered by key and then by rank.

        Every rank calls it; one without a color gets ``None``. Waits for the others.
        """
        rank = self._rank.split(color, key)
        return None if rank is None else Communicator(rank)

    def shrink(self, excluded: Iterable[int]) -> Communicator:
        """A communicator without the excluded ranks, which do not call it; also after an error.

        Waits for the others: ranks of one process call it in threads of their own.
        """
        return Communicator(self._rank.shrink(list(excluded)))

    def growth_id(self) -> bytes:
        """The id with which new ranks call ``init_rank`` to join the next ``grow``.

        One rank makes it.
        """
        return bytes(self._rank.growth_id())

    def grow(self, size: int) -> Communicator:
        """A communicator of ``size`` ranks: these, and new ones behind them. Waits for all."""
        return Communicator(self._rank.grow(size))

    def duplicate(self) -> Communicator:
        """A communicator of the same ranks, whose calls have an order of their own."""
        return Communicator(self._rank.duplicate())

    def register(self, array: Any) -> Registration:
        """Registers an array: every rank one of the same size, in the same order."""
        return Registration(self._rank, array)

    def device_handle(self, windows: Iterable[Registration] = ()) -> DeviceHandle:
        """What kernels need to communicate by themselves, with registered arrays as windows.

        The setting ``RINGDOVE_USER_LANES`` says how many lanes they have. Waits for all ranks.
        """
        return DeviceHandle(self._rank, windows)

    def experts(
        self,
        *,
        experts: int,
        top_k: int,
        hidden: int,
        tokens_max: int,
        dtype: str = "bfloat16",
        fp8: str | None = None,
        mode: str = "low-latency",
        alignment: int = 1,
        lane: int = 0,
    ) -> Experts:
        """A group of experts. Waits for all ranks, which pass the same sizes.

        Args:
            experts: of all ranks, a multiple of their number; rank ``r`` of ``n`` has those from
                ``r * experts / n`` on
            top_k: choices of each token, at most 16
            hidden: elements of a token; its bytes are a multiple of 16
            tokens_max: the most tokens that a rank brings to one dispatch
            dtype: float32, float16 or bfloat16
            fp8: rows of a dispatch are float8_e4m3fn with scales for each 128 elements, of
                ``"float32"`` or ``"ue8m0"``
            mode: ``"low-latency"`` sends a token once for each choice, ``"throughput"`` once for
                each rank, ``"auto"`` takes the one that is predicted to be faster
                (``Experts.mode``)
            alignment: counts are rounded up to a multiple of it
            lane: the group uses this user lane and the next; ``RINGDOVE_USER_LANES`` says how many
                there are
        """
        return Experts(
            self._rank,
            experts=experts,
            top_k=top_k,
            hidden=hidden,
            tokens_max=tokens_max,
            dtype=dtype,
            fp8=fp8,
            mode=mode,
            alignment=alignment,
            lane=lane,
        )

    def statistics(self) -> dict[str, int]:
        """Counters since the communicator was made: launches, descriptors, transfers, bytes, ..."""
        return self._rank.statistics()

    def check(self) -> None:
        """Raises the error that ended the communicator, if any. Does not wait."""
        self._rank.check()

    def synchronize(self) -> None:
        """Waits until all calls of this rank have ended, and raises what went wrong."""
        self._rank.synchronize()

    def abort(self, why: str = "Communicator.abort") -> None:
        """Ends the communicator on all ranks: what waits stops, and later calls raise."""
        self._rank.abort(why)

    def finalize(self) -> None:
        """Waits until this rank owes the others nothing. Before a process ends, see the README."""
        self._rank.finalize()

    def close(self) -> None:
        """Leaves the communicator when all calls have ended. A second time does nothing."""
        self._rank.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and not self.closed:
            self.abort(f"{kind.__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        return f"Communicator(rank {self.rank} of {self.size}, GPU {self.device})"


def init(device: int | None = None) -> Communicator:
    """The rank that torchrun, mpirun or srun has given this process.

    Args:
        device: the GPU; else that of the process's number on its node, modulo the GPUs that it sees
    """
    return Communicator(_ringdove.init_launched(device))


def init_all(devices: Iterable[int] | None = None) -> list[Communicator]:
    """A rank for each GPU, all of this process.

    One thread may drive all of them, since calls do not wait for other ranks.

    Args:
        devices: GPUs, which may repeat; else all that the process sees
    """
    if devices is None:
        devices = range(_ringdove.device_count())
    return [Communicator(rank) for rank in _ringdove.init_all(list(devices))]


def unique_id() -> bytes:
    """A name under which ranks of any processes meet. It holds a secret: pass it on in private.

    The process that makes it serves the others until they have joined.
    """
    return bytes(_ringdove.unique_id())


def init_rank(unique_id: bytes, rank: int, size: int, device: int = 0) -> Communicator:
    """Rank ``rank`` of ``size``, on GPU ``device``. Waits until all ranks have joined.

    Args:
        unique_id: of ``ringdove.unique_id``, the same on all ranks
    """
    return Communicator(_ringdove.init_rank(unique_id, rank, size, device))
