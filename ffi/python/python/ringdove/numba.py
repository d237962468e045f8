"""Kernels in Numba that communicate: the functions of ``ringdove.triton`` for ``numba.cuda``.

    from numba import cuda
    import ringdove.numba as rd

    @cuda.jit
    def shift(handle, mine, theirs):
        rank, size = rd.rank(handle), rd.n_ranks(handle)
        ...
        rd.put_with_signal(handle, (rank + 1) % size, 1, 0, 0, 0, mine.size * 4)
        rd.wait(handle, (rank + size - 1) % size)
        ...

    handle = comm.device_handle([comm.register(mine), comm.register(theirs)])
    shift[1, 128](handle.address, mine, theirs)

All threads of a block make each call alike; blocks have whole warps of 32 threads. Windows, lanes,
peers, results and rules are those of ``ringdove.triton``.
"""

from __future__ import annotations

from typing import Any

from numba import cuda

from . import files

__all__ = [
    "flush",
    "lane_count",
    "n_ranks",
    "put",
    "put_with_signal",
    "rank",
    "signal",
    "wait",
]


def _declared(name: str, *arguments: str) -> Any:
    signature = f"int32({', '.join(('uint64', *arguments))})"
    return cuda.declare_device(f"ringdove_numba_{name}", signature, link=str(files.ptx()))


_PUT = ("int32", "int32", "int64", "int32", "int64", "int64", "int32")
_rank = _declared("rank")
_rank_count = _declared("rank_count")
_lane_count = _declared("lane_count")
_put = _declared("put", *_PUT)
_put_with_signal = _declared("put_with_signal", *_PUT)
_signal = _declared("signal", "int32", "int32")
_wait = _declared("wait", "int32", "int32", "int32")
_flush = _declared("flush", "int32", "int32")


@cuda.jit(device=True)
def rank(handle: Any) -> Any:
    """This rank's number, from 0."""
    return _rank(handle)


@cuda.jit(device=True)
def n_ranks(handle: Any) -> Any:
    """Number of ranks."""
    return _rank_count(handle)


@cuda.jit(device=True)
def lane_count(handle: Any) -> Any:
    """Number of lanes to each peer."""
    return _lane_count(handle)


@cuda.jit(device=True)
def put(
    handle: Any,
    peer: Any,
    to: Any,
    to_offset: Any,
    source: Any,
    source_offset: Any,
    n_bytes: Any,
    lane: Any = 0,
) -> Any:
    """Puts bytes of this rank's part of window ``source`` into the peer's part of window ``to``.

    Returns when they are on their way.
    """
    return _put(handle, peer, to, to_offset, source, source_offset, n_bytes, lane)


@cuda.jit(device=True)
def put_with_signal(
    handle: Any,
    peer: Any,
    to: Any,
    to_offset: Any,
    source: Any,
    source_offset: Any,
    n_bytes: Any,
    lane: Any = 0,
) -> Any:
    """The same, and raises the peer's signal when the bytes are there."""
    return _put_with_signal(handle, peer, to, to_offset, source, source_offset, n_bytes, lane)


@cuda.jit(device=True)
def signal(handle: Any, peer: Any, lane: Any = 0) -> Any:
    """Raises the peer's signal once, behind all that was put on this lane before."""
    return _signal(handle, peer, lane)


@cuda.jit(device=True)
def wait(handle: Any, peer: Any, count: Any = 1, lane: Any = 0) -> Any:
    """Waits until the peer has raised this rank's signal ``count`` more times, on this lane."""
    return _wait(handle, peer, count, lane)


@cuda.jit(device=True)
def flush(handle: Any, peer: Any, lane: Any = 0) -> Any:
    """Waits until everything that was put on this lane has been read from its windows."""
    return _flush(handle, peer, lane)
