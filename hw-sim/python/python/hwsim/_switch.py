"""Faults of this process's own virtual devices, while a block of it runs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from typing import Iterator

_lock = threading.Lock()
# Of all threads: the devices are the process's.
_on: list[str] = []


@contextlib.contextmanager
def fault_here(*faults: str, seed: int = 0) -> Iterator[None]:
    """Faults of this process's virtual devices while the block runs, with those of outer blocks.

        comm.all_reduce(array)
        with hwsim.fault_here("*:delay=500", "gpu0:slow=20", seed=7):
            comm.all_reduce(array)              # the messages of this rank are late

    Only this process is concerned, and all of its threads. What faults count (``loss-at=100``) they
    count from the last time that such a block began or ended. What was struck stays so behind the
    block: a port that went down, a launch that never began.

    Args:
        faults: ``DEVICE:FAULT`` or ``nodeN/DEVICE:FAULT``, of GPUs, pinned memory and adapters. Not
            ``port-down``, for which there is ``port-down-after=0``, ``qp-error-after`` and
            ``completions-max``: ``hwsim.fault`` has those, and the faults of processes and engines
        seed: of the choices that these faults make at random

    Raises:
        ValueError: there is no such fault, or it cannot be turned on while a program runs
        RuntimeError: this process is not on virtual hardware
    """
    own = ",".join([f"seed={seed}", *faults])
    with _lock:
        _switch([*_on, own])
        _on.append(own)
    try:
        yield
    finally:
        with _lock:
            _on.remove(own)
            _switch(_on)


def _switch(lists: list[str]) -> None:
    if "HWSIM_NODES" not in os.environ:
        raise RuntimeError("not on virtual hardware: see hwsim.run, and pytest --hwsim")
    driver = ctypes.CDLL("libcuda.so.1")
    why = ctypes.create_string_buffer(1024)
    if driver.hwsim_switch_faults(",".join(lists).encode(), why, ctypes.c_size_t(len(why))) != 0:
        raise ValueError(why.value.decode(errors="replace"))
