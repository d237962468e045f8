"""Virtual GPUs and RDMA adapters: CUDA programs run unmodified, without hardware.

The command ``hwsim run -- COMMAND`` starts any program on a virtual machine; ``pytest --hwsim
MACHINE`` starts the tests on one. Inside of them, libcuda.so.1, libcudart, libnvidia-ml.so.1 and
RDMA adapters are virtual. ``hwsim.run`` starts a function, or a program, on a machine of its own,
in several processes and on several nodes, and ``hwsim.fault`` gives that machine faults.
``hwsim.fault_here`` gives them to this process's devices while a block of it runs.
"""

from __future__ import annotations

import os
import re

from ._command import command
from ._run import Completed, RunError, fault, run
from ._switch import fault_here

__all__ = [
    "Completed",
    "RunError",
    "command",
    "fault",
    "fault_here",
    "is_running",
    "machine",
    "run",
]


def is_running() -> bool:
    """Was this process, or one that started it, started by ``hwsim run``?"""
    return "HWSIM_NODES" in os.environ


def machine() -> str:
    """The name of the machine on which this process runs, as its file gives it."""
    named = os.environ.get("HWSIM_MACHINE", "pcie4")
    try:
        with open(named, encoding="utf-8") as file:
            found = re.search(r'^name\s*=\s*"([^"]*)"', file.read(), re.MULTILINE)
    except FileNotFoundError:
        # A built-in machine, of several nodes perhaps: "dgx-a100 x 2".
        return named.split(" x ")[0].strip()
    return named if found is None else found[1]
