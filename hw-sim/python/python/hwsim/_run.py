"""Programs and functions on virtual machines of their own, with faults."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

from ._command import command

#: What `run` takes: a function, the path of a program in Python, or a command.
Target = Union[Callable[..., object], str, "os.PathLike[str]", Sequence[str]]

_FAULTS = "HWSIM_FAULTS"
_faults: ContextVar[str | None] = ContextVar("hwsim_faults", default=None)
# hwsim marks the lines of several processes with their ranks.
_LABEL = re.compile(r"^\[(\d+)\] ?(.*)$")


@dataclass(frozen=True)
class Completed:
    """How the processes of a virtual machine ended.

    Attributes:
        returncode: 0 if all ended well; else that of the first that did not
        output: what they printed, standard output and errors, as it came
        command: what a shell runs to repeat it, faults and seed included
        reports: what each process that used the driver did, as ``hwsim run --report`` has it
    """

    returncode: int
    output: str
    command: str
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Did all processes end well?"""
        return self.returncode == 0

    @property
    def by_rank(self) -> dict[int, str]:
        """What each rank printed. With one process, all is rank 0's."""
        ranks: dict[int, list[str]] = {}
        for line in self.output.splitlines():
            found = _LABEL.match(line)
            number, text = (int(found[1]), found[2]) if found else (0, line)
            ranks.setdefault(number, []).append(text)
        return {rank: "\n".join(lines) for rank, lines in sorted(ranks.items())}

    def check(self) -> Completed:
        """Itself, if all processes ended well.

        Raises:
            RunError: some did not; its message has the output and the command that repeats it
        """
        if not self.ok:
            raise RunError(self)
        return self


class RunError(Exception):
    """A process on a virtual machine failed. ``completed`` has all about it."""

    def __init__(self, completed: Completed) -> None:
        super().__init__(
            f"status {completed.returncode}\n{completed.output}\nrepeat with: {completed.command}"
        )
        self.completed = completed


@contextlib.contextmanager
def fault(*faults: str, seed: int = 0) -> Iterator[str]:
    """Faults of the virtual machines that ``run`` starts in this block, in addition to outer ones.

        with hwsim.fault("*:delay=200", "node1/hwsim0:port-down-after=100", seed=7):
            hwsim.run(ranks, machine="pcie4 x 2", procs=4).check()

    Args:
        faults: ``DEVICE:FAULT`` or ``nodeN/DEVICE:FAULT``, with ``*`` for all devices of a node;
            the README of virtual hardware lists them. A wrong one ends the processes, with a message
        seed: of the choices that faults make at random; the same seed makes the same ones
    """
    outer = _faults.get()
    listed = ",".join([*([outer] if outer else []), f"seed={seed}", *faults])
    token = _faults.set(listed)
    try:
        yield listed
    finally:
        _faults.reset(token)


def run(
    target: Target,
    *arguments: Any,
    machine: str = "pcie4",
    procs: int | None = None,
    profile: str | None = None,
    keys: Mapping[str, str] | None = None,
    driver: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
) -> Completed:
    """Runs a function, a program in Python, or a command on a virtual machine of its own.

    A function is called in new processes, which load its file anew and get ``arguments`` pickled.
    It is one of the file's own names. Processes have the variables of torchrun: ``ringdove.init()``
    and ``torch.distributed`` find one another.

    Args:
        machine: as ``hwsim run --machine`` takes it; ``"pcie4 x 2"`` has two nodes
        procs: how many processes, equally many on each node; else one on each
        profile: of the driver, ``strict`` or ``lenient``
        keys: keys of the driver's profile, by name
        driver: the version of CUDA whose driver is shown
        env: variables beside those of this process
        timeout: seconds after which all processes are killed

    Raises:
        TimeoutError: they were killed; with what they had printed
        ValueError: the function is none of its file's own names
    """
    options = ["--quiet", "--machine", machine]
    for name, value in [("procs", procs), ("driver-profile", profile), ("driver", driver)]:
        if value is not None:
            options += [f"--{name}", str(value)]
    for key, setting in (keys or {}).items():
        options += ["--driver-key", f"{key}={setting}"]
    # This process may be on a virtual machine itself: the new one is another.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HWSIM_")}
    # Output that comes late is lost if a process is killed.
    environment["PYTHONUNBUFFERED"] = "1"
    own = dict(env or {})
    listed = _faults.get()
    if listed is not None:
        own[_FAULTS] = listed
    environment.update(own)
    with tempfile.TemporaryDirectory(prefix="hwsim-run-") as folder:
        report = os.path.join(folder, "report")
        started = _command_of(target, arguments)
        full = [command(), "run", *options, "--report", report, "--", *started]
        status, output = _bounded(full, environment, timeout)
        reports = _read(report)
    words = [f"{key}={shlex.quote(value)}" for key, value in own.items()]
    words += ["hwsim", "run", *map(shlex.quote, options), "--", *map(shlex.quote, started)]
    return Completed(status, output, " ".join(words), reports)


def _command_of(target: Target, arguments: tuple[Any, ...]) -> list[str]:
    if callable(target):
        code = getattr(target, "__code__", None)
        name = getattr(target, "__qualname__", "")
        if code is None or not name or "<" in name or "." in name:
            raise ValueError(f"{target!r} is no function that its file names")
        passed = base64.b64encode(pickle.dumps(arguments)).decode()
        called = [os.path.abspath(code.co_filename), name, passed]
        return [sys.executable, "-m", "hwsim._call", *called]
    words = [str(argument) for argument in arguments]
    if isinstance(target, (str, os.PathLike)):
        return [sys.executable, os.fspath(target), *words]
    return [*target, *words]


def _bounded(words: list[str], environment: dict[str, str], timeout: float) -> tuple[int, str]:
    """Status and output of a command that is killed, with all that it started, after a time."""
    with tempfile.TemporaryFile(mode="w+", errors="replace") as output:
        process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        late = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            # Also where Ctrl-C ends the wait: nothing stays behind.
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    pass
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read()
        if late:
            raise TimeoutError(f"not over after {timeout} s:\n{text}")
        status = process.returncode
        return (status if status >= 0 else 128 - status), text


def _read(report: str) -> list[dict[str, Any]]:
    try:
        with open(report, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []
