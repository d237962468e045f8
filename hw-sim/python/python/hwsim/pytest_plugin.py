"""``pytest --hwsim MACHINE``: the tests run on virtual GPUs.

pytest starts itself once more, under ``hwsim run``, and ends with that process's status. Workers of
pytest-xdist are processes of the same virtual machine. In ``pyproject.toml``:

    [tool.pytest.ini_options]
    hwsim = "dgx-a100"

Markers: ``hwsim_machine("dgx-a100", ...)`` skips a test on other machines, ``hwsim_gpus(4)`` where
there are fewer GPUs, ``hwsim_nodes(2)`` where there are fewer nodes, and ``hwsim_faults`` skips it
where no faults were asked for (``--hwsim-faults``). Outside of virtual machines all of them skip.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from typing import Any, Generator

import pytest

import hwsim

_MARKERS = {
    "hwsim_machine(*names)": "skip on virtual machines of other names",
    "hwsim_gpus(count)": "skip on virtual machines with fewer GPUs",
    "hwsim_nodes(count)": "skip on fewer virtual nodes",
    "hwsim_faults": "skip where virtual hardware has no faults",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hwsim", "virtual GPUs")
    group.addoption("--hwsim", metavar="MACHINE", help="run the tests on this virtual machine")
    group.addoption("--hwsim-faults", metavar="FAULTS", help="faults of virtual adapters")
    group.addoption("--hwsim-profile", metavar="PROFILE", help="driver profile, such as strict")
    parser.addini("hwsim", "virtual machine on which the tests run", default="")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, args: list[str]
) -> Generator[None, Any, Any]:
    # Before pytest captures output, and before conftest.py files import CUDA libraries.
    known = early_config.known_args_namespace
    machine = known.hwsim or early_config.getini("hwsim")
    if machine and not hwsim.is_running():
        _exit(_run(machine, known, list(early_config.invocation_params.args)))
    return (yield)


def _exit(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing of this process's own tests is to run.
    os._exit(status)


def _run(machine: str, known: Any, args: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="pytest-hwsim-") as folder:
        report = os.path.join(folder, "report")
        command = [hwsim.command(), "run", "--machine", machine, "--report", report]
        if known.hwsim_profile:
            command += ["--driver-profile", known.hwsim_profile]
        command += ["--", sys.executable, "-m", "pytest", *args]
        environment = dict(os.environ)
        if known.hwsim_faults:
            environment["HWSIM_FAULTS"] = known.hwsim_faults
        sys.stdout.flush()
        # Ctrl-C reaches the tests, too, and they say what it ended.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            restore = lambda: signal.signal(signal.SIGINT, before)  # noqa: E731
            status = subprocess.call(command, env=environment, preexec_fn=restore)
        except OSError as error:
            print(f"hwsim: {error}", file=sys.stderr)
            return pytest.ExitCode.USAGE_ERROR
        finally:
            signal.signal(signal.SIGINT, before)
        print(_summary(machine, report))
        # A signal is a status below 0 here, and above 128 for shells.
        return status if status >= 0 else 128 - status


def _summary(machine: str, report: str) -> str:
    """What all processes of the tests did on the virtual machine, in one line, and refusals."""
    launches = instructions = processes = 0
    refused: Counter[str] = Counter()
    try:
        with open(report, encoding="utf-8") as file:
            for line in file:
                seen = json.loads(line)
                processes += 1
                launches += sum(kernel["launches"] for kernel in seen["kernels"].values())
                instructions += seen["instructions"]
                for refusal in seen["refused"]:
                    refused[f"{refusal['function']}: {refusal['why']}"] += refusal["times"]
    except FileNotFoundError:
        return f"hwsim: {machine}; no process used its GPUs"
    words = (
        f"hwsim: {machine}; {processes} processes, {launches} launches, "
        f"{instructions} warp instructions"
    )
    for reason, count in refused.most_common():
        words += f"\nhwsim: refused {count} times: {reason}"
    return words


def pytest_configure(config: pytest.Config) -> None:
    for marker, meaning in _MARKERS.items():
        config.addinivalue_line("markers", f"{marker}: {meaning}")


def pytest_report_header(config: pytest.Config) -> str | None:
    if not hwsim.is_running():
        return None
    return f"hwsim: {hwsim.machine()}, virtual GPUs"


def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = [mark for mark in item.iter_markers() if mark.name.startswith("hwsim_")]
    if needed and not hwsim.is_running():
        pytest.skip("not on virtual hardware; see pytest --hwsim")
    for mark in needed:
        reason = _lacks(mark)
        if reason is not None:
            pytest.skip(reason)


def _lacks(mark: pytest.Mark) -> str | None:
    if mark.name == "hwsim_machine":
        name = hwsim.machine()
        return None if name in mark.args else f"needs machine {' or '.join(mark.args)}, not {name}"
    if mark.name == "hwsim_nodes":
        nodes = int(os.environ.get("HWSIM_NODES", "1"))
        return None if nodes >= mark.args[0] else f"needs {mark.args[0]} nodes, not {nodes}"
    if mark.name == "hwsim_gpus":
        gpus = _gpus()
        return None if gpus >= mark.args[0] else f"needs {mark.args[0]} GPUs, not {gpus}"
    if mark.name == "hwsim_faults":
        return None if os.environ.get("HWSIM_FAULTS") else "needs --hwsim-faults"
    return f"no marker {mark.name}"


def _gpus() -> int:
    """How many GPUs the driver shows."""
    import ctypes

    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
