"""Where the wheel has put files for other programs."""

from __future__ import annotations

from pathlib import Path

_FILES = Path(__file__).parent / "_files"


def _there(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path}: this installation is not a wheel of ./x wheel")
    return path


def nccl() -> Path:
    """``libnccl.so.2``: NCCL's interface on ringdove, for LD_LIBRARY_PATH or dlopen."""
    return _there(_FILES / "lib" / "libnccl.so.2")


def nccl_ep() -> Path:
    """``libnccl_ep.so.0``: NCCL EP's interface, beside ``libnccl.so.2``, which it needs."""
    return _there(_FILES / "lib" / "libnccl_ep.so.0")


def include() -> Path:
    """The folder with ``nccl.h``, ``nccl_ep.h`` and ``ringdove/ringdove.cuh``, for compilers."""
    return _there(_FILES / "include")


def bitcode() -> Path:
    """LLVM bitcode of the functions of ``ringdove.triton``, for other compilers."""
    return _there(_FILES / "kernels" / "functions.bc")


def ptx() -> Path:
    """The same functions as PTX, and as Numba calls them."""
    return _there(_FILES / "kernels" / "functions.ptx")
