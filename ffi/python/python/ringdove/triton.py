"""Kernels in Triton that communicate: put, signal and wait between the lines of a kernel.

    import triton
    import triton.language as tl
    import ringdove.triton as rd

    @triton.jit
    def shift(handle, count, BLOCK: tl.constexpr):
        rank, size = rd.rank(handle), rd.n_ranks(handle)
        mine = rd.window(handle, 0, tl.float32)
        ...
        rd.put_with_signal(handle, (rank + 1) % size, 1, 0, 0, 0, count * 4)
        rd.wait(handle, (rank + size - 1) % size)
        ...

    handle = comm.device_handle([comm.register(mine), comm.register(theirs)])
    shift[(1,)](handle.address, count, BLOCK=1024, extern_libs=rd.libraries())

Windows are registered arrays, by their numbers in ``device_handle``. Offsets and lengths are in
bytes. Every rank has lanes to every other one, as many as the setting ``RINGDOVE_USER_LANES`` says;
what is put on one lane arrives in order, and lanes do not wait for one another.

* What a program has stored before goes with its puts, and what has arrived is its own after
  ``wait``. Calls stand where all of a program comes, or none: in an ``if`` of a scalar condition.
* Any number of programs may put and signal on a lane. One at a time waits on a lane, and one
  flushes it: mostly, a program uses the lane with its own number.
* Every signal is waited for before the communicator ends. A window is not overwritten while a put
  reads it: ``flush`` waits for that.
* Peer -1 is nobody: nothing is put, and no wait waits. For the ends of a chain of ranks.
* ``put``, ``put_with_signal``, ``signal``, ``wait`` and ``flush`` return 1, or 0 once the
  communicator has failed, as after a number of a window, a lane or a peer that does not exist; the
  kernel then ends as soon as it can, and ``Communicator.check`` raises what happened.
* Programs that wait for one another must all be on the GPU at a time: at most as many as fit.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language import core
from triton.language.extra.cuda import globaltimer

from . import files

__all__ = [
    "flush",
    "libraries",
    "lane_count",
    "mark",
    "n_ranks",
    "put",
    "put_with_signal",
    "rank",
    "signal",
    "wait",
    "window",
    "window_bytes",
]


def libraries() -> dict[str, str]:
    """What a launch of a kernel with these functions takes as ``extern_libs``."""
    return {"ringdove": str(files.bitcode())}


def _call(symbol: str, result: Any, arguments: list[Any], semantic: Any) -> Any:
    """Calls a function of kernels/cuda/functions.cu. ``arguments``: values with their types."""
    values = [
        core.cast(core.to_tensor(value, _semantic=semantic), kind, _semantic=semantic)
        for value, kind in arguments
    ]
    kinds = tuple(kind for _, kind in arguments)
    return core.extern_elementwise(
        "ringdove", "", values, {kinds: (symbol, result)}, is_pure=False, _semantic=semantic
    )


@core.extern
def rank(handle: Any, _semantic: Any = None) -> Any:
    """This rank's number, from 0."""
    return _call("ringdove_rank", core.int32, [(handle, core.int64)], _semantic)


@core.extern
def n_ranks(handle: Any, _semantic: Any = None) -> Any:
    """Number of ranks."""
    return _call("ringdove_rank_count", core.int32, [(handle, core.int64)], _semantic)


@core.extern
def lane_count(handle: Any, _semantic: Any = None) -> Any:
    """Number of lanes to each peer."""
    return _call("ringdove_lane_count", core.int32, [(handle, core.int64)], _semantic)


@core.extern
def window(handle: Any, number: Any, dtype: Any, _semantic: Any = None) -> Any:
    """A pointer to this rank's part of a window, of elements ``dtype``; null if it is not there."""
    arguments = [(handle, core.int64), (number, core.int32)]
    address = _call("ringdove_window", core.int64, arguments, _semantic)
    dtype = core._unwrap_if_constexpr(dtype)
    return core.cast(address, core.pointer_type(dtype), bitcast=True, _semantic=_semantic)


@core.extern
def window_bytes(handle: Any, number: Any, _semantic: Any = None) -> Any:
    """Bytes of a window, the same on every rank; 0 if it is not there."""
    arguments = [(handle, core.int64), (number, core.int32)]
    return _call("ringdove_window_bytes", core.int64, arguments, _semantic)


def _put(symbol: str, arguments: list[Any], semantic: Any) -> Any:
    long, short = core.int64, core.int32
    kinds = [long, short, short, long, short, long, long, short]
    return _call(symbol, short, list(zip(arguments, kinds)), semantic)


@core.extern
def put(
    handle: Any,
    peer: Any,
    to: Any,
    to_offset: Any,
    source: Any,
    source_offset: Any,
    n_bytes: Any,
    lane: Any = 0,
    _semantic: Any = None,
) -> Any:
    """Puts bytes of this rank's part of window ``source`` into the peer's part of window ``to``.

    Returns when they are on their way.
    """
    arguments = [handle, peer, to, to_offset, source, source_offset, n_bytes, lane]
    return _put("ringdove_put", arguments, _semantic)


@core.extern
def put_with_signal(
    handle: Any,
    peer: Any,
    to: Any,
    to_offset: Any,
    source: Any,
    source_offset: Any,
    n_bytes: Any,
    lane: Any = 0,
    _semantic: Any = None,
) -> Any:
    """The same, and raises the peer's signal when the bytes are there."""
    arguments = [handle, peer, to, to_offset, source, source_offset, n_bytes, lane]
    return _put("ringdove_put_with_signal", arguments, _semantic)


@core.extern
def signal(handle: Any, peer: Any, lane: Any = 0, _semantic: Any = None) -> Any:
    """Raises the peer's signal once, behind all that was put on this lane before."""
    arguments = [(handle, core.int64), (peer, core.int32), (lane, core.int32)]
    return _call("ringdove_signal", core.int32, arguments, _semantic)


@core.extern
def wait(handle: Any, peer: Any, count: Any = 1, lane: Any = 0, _semantic: Any = None) -> Any:
    """Waits until the peer has raised this rank's signal ``count`` more times, on this lane."""
    arguments = [(handle, core.int64), (peer, core.int32), (count, core.int32), (lane, core.int32)]
    return _call("ringdove_wait", core.int32, arguments, _semantic)


@core.extern
def flush(handle: Any, peer: Any, lane: Any = 0, _semantic: Any = None) -> Any:
    """Waits until everything that was put on this lane has been read from its windows."""
    arguments = [(handle, core.int64), (peer, core.int32), (lane, core.int32)]
    return _call("ringdove_flush", core.int32, arguments, _semantic)


@triton.jit
def mark(times, index):  # type: ignore[no-untyped-def]
    """Stores the GPU's clock, in ns, as element ``index``; for ``ringdove.timeline``."""
    tl.store(times + index, globaltimer())
