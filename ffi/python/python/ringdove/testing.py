"""Programs of several ranks as tests, on virtual GPUs, under faults and on hostile drivers.

    from ringdove import testing

    def ranks():
        with ringdove.init() as comm:
            ...

    def test_ranks():
        faults = ["*:delay=200"]
        testing.on_ranks(ranks, count=4, machine="pcie4 x 2", faults=faults, seeds=range(5))

It needs the package ``hwsim``, and no GPU. Each seed is a run of its own: it decides what faults do
at random, such as how long which message takes. Which of several threads goes on first is the
host's choice, and no seed's.

``explore`` runs a kernel, without the program around it, where the seed decides all: which thread
of which rank goes on, and which of the values that PTX's memory model allows a load returns.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Sequence

from . import files

__all__ = ["HANDLE", "Array", "Ptx", "explore", "on_ranks"]


def on_ranks(
    function: Callable[..., object],
    *arguments: Any,
    count: int = 4,
    machine: str = "pcie4",
    faults: Iterable[str] = (),
    seeds: Iterable[int] = (0,),
    profile: str = "strict",
    env: Mapping[str, str] | None = None,
    timeout: float = 600.0,
) -> list[str]:
    """Runs a function on each of ``count`` ranks, once for each seed, and raises if one fails.

    Args:
        function: as ``hwsim.run`` takes it, with its ``arguments``; ``ringdove.init()`` in it joins
        machine: as ``hwsim run --machine`` takes it; the ranks are spread evenly over its nodes
        faults: as ``hwsim.fault`` takes them
        profile: of the driver; ``strict`` does what real drivers are known to do
        env: more variables, such as ``RINGDOVE_USER_LANES``

    Returns:
        What the ranks printed, a text for each seed.

    Raises:
        hwsim.RunError: a rank failed; the message has its output, the seed, and the command that
            repeats the run
        TimeoutError: a run was not over in time
    """
    import hwsim

    listed, printed = list(faults), []
    for seed in seeds:
        with hwsim.fault(*listed, seed=seed):
            done = hwsim.run(
                function,
                *arguments,
                machine=machine,
                procs=count,
                profile=profile,
                env=env,
                timeout=timeout,
            )
        printed.append(done.check().output)
    return printed


class Array:
    """An array of a rank, for ``explore``.

    Args:
        values: what it holds at first: a NumPy array, what else has ``dtype`` and ``tobytes()``;
            for kernels in PTX also ``array.array`` and bytes
        expected: the same of what it must hold at the end, bit for bit; None: whatever it may be
    """

    def __init__(self, values: Any, expected: Any = None) -> None:
        self.dtype = str(getattr(values, "dtype", "uint8"))
        self._bytes = _bytes_of(values)
        self._expected = None if expected is None else _bytes_of(expected)
        if self._expected is not None and len(self._expected) != len(self._bytes):
            raise ValueError(
                f"expected as many bytes as the array has, {len(self._bytes)}, "
                f"seen {len(self._expected)}"
            )

    @staticmethod
    def data_ptr() -> int:
        """An address as aligned as arrays are; Triton asks for it."""
        return 0

    def _described(self, name: str, is_window: bool) -> dict[str, Any]:
        expected = None if self._expected is None else self._expected.hex()
        described = {"name": name, "hex": self._bytes.hex(), "window": is_window}
        return {**described, "expected": expected}


def _bytes_of(values: Any) -> bytes:
    return bytes(values.tobytes() if hasattr(values, "tobytes") else memoryview(values))


class Ptx:
    """A kernel that another compiler has written, for ``explore``; calls of ringdove's are linked.

    Args:
        text: in PTX, with ``.extern`` functions as ``ringdove.files.ptx()`` has them
        entry: the kernel's name
        threads: of a block
        shared_bytes: shared memory of a block, beside its variables
    """

    def __init__(self, text: str, entry: str, threads: int, shared_bytes: int = 0) -> None:
        self._described: dict[str, Any] = {
            "ptx": [text, files.ptx().read_text(encoding="utf-8")],
            "entry": entry,
            "threads": threads,
            "shared_bytes": shared_bytes,
        }


#: Stands for the address of the device handle among the arguments of a kernel.
HANDLE = 1 << 40


def explore(
    kernel: Any,
    brings: Callable[[int], tuple[Sequence[Array], Sequence[Any]]],
    *,
    ranks: int,
    programs: int,
    lanes: int = 1,
    launches: int = 1,
    seed: int = 0,
    runs: int = 100,
    timeout: float = 600.0,
    **options: Any,
) -> str:
    """Runs a kernel of Triton or in PTX on several ranks, on a weak memory, in adversarial orders.

        def brings(rank):
            data = testing.Array(x[rank], expected=x.sum(0))
            return [data, testing.Array(inbox)], [testing.HANDLE, 64]

        testing.explore(ring_all_reduce, brings, ranks=4, programs=2, lanes=2, runs=200)

    What the kernel reads before it has come, or hands on without an order, shows in some runs. One
    thread does it all, so keep sizes small: a few hundred elements, one or two warps. This memory
    has no instructions of tensor cores: ``tl.dot`` wants ``pytest --hwsim dgx1v``, for which Triton
    does without.

    Args:
        kernel: a function with ``@triton.jit``, or ``Ptx``
        brings: a rank's windows, by their numbers, and the arguments of its launch, in their order:
            ``HANDLE`` for the address of the device handle, an ``Array``, which may be a window,
            for each array, whole numbers, and those that are ``tl.constexpr``; of ``Ptx``, numbers
            are those of ``ctypes``, which have a size
        ranks: how many, at most 8, each on a GPU of its own
        programs: of a launch
        lanes: to each peer, as ``RINGDOVE_USER_LANES`` has it
        launches: how many times, one behind the other with the same arguments
        seed: of the first run; the next one has the next seed
        options: of Triton, such as ``num_warps``

    Returns:
        How many runs there were.

    Raises:
        AssertionError: a run failed; the message says what is wrong, and the command that replays
            it and says what each agent did last, with the kernel in a file that stays
        RuntimeError: not on virtual hardware, where Triton has a GPU to compile for; ``Ptx`` needs
            none
        ValueError: the kernel or its arguments cannot be run so
    """
    import hwsim

    of_ranks = [brings(rank) for rank in range(ranks)]
    given = [list(arguments) for _, arguments in of_ranks]
    if isinstance(kernel, Ptx):
        described, parameters = kernel._described, [_of_ptx(each) for each in given]
    else:
        described, parameters = _compiled(kernel, given, {"grid": (programs,), **options})
    description = {
        **described,
        "blocks": programs,
        "lanes": lanes,
        "ranks": [
            _rank(windows, each, launches) for (windows, _), each in zip(of_ranks, parameters)
        ],
    }
    folder = Path(tempfile.mkdtemp(prefix="ringdove-explore-"))
    file = folder / f"{described['entry']}.json"
    file.write_text(json.dumps(description))
    command = [hwsim.command(), "explore", "--kernel", str(file), "--seed", str(seed)]
    # The weak memory is none of this process's virtual machine.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HWSIM_")}
    done = subprocess.run(
        [*command, "--runs", str(runs)],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    said = done.stdout.splitlines()
    if done.returncode != 0 and said and _REFUSED not in said[0]:
        raise AssertionError("\n".join([said[0], said[-1]]))
    file.unlink()
    folder.rmdir()
    if done.returncode != 0:
        raise ValueError(said[0] if said else f"status {done.returncode}: {done.stderr}")
    return said[-1]


# How hwsim begins to name an instruction for which the weak memory has no model.
_REFUSED = "instruction that the weak memory does not model"


def _compiled(
    kernel: Any, given: Sequence[Sequence[Any]], options: dict[str, Any]
) -> tuple[dict[str, Any], list[list[tuple[str, Any]]]]:
    """The kernel as Triton compiles it for these arguments, and its parameters on each rank."""
    import hwsim

    if not hwsim.is_running():
        raise RuntimeError("not on virtual hardware: see pytest --hwsim, and hwsim run")

    from . import triton as functions

    libraries = functions.libraries()
    compiled = [kernel.warmup(*each, extern_libs=libraries, **options) for each in given]
    one = compiled[0]
    if any(other.asm["ptx"] != one.asm["ptx"] for other in compiled):
        raise ValueError("expected arguments for which Triton compiles one kernel for all ranks")
    described = {
        "ptx": [one.asm["ptx"]],
        "entry": one.metadata.name,
        "threads": 32 * one.metadata.num_warps,
        "shared_bytes": one.metadata.shared,
    }
    kinds = list(one.src.signature.values())
    parameters = [_of_triton(kernel.arg_names, kinds, each) for each in given]
    return described, parameters


def _of_triton(
    names: Sequence[str], kinds: Sequence[str], given: Sequence[Any]
) -> list[tuple[str, Any]]:
    """Names and values of a kernel's parameters: arrays, ``HANDLE`` and bytes."""
    parameters: list[tuple[str, Any]] = []
    for name, kind, value in zip(names, kinds, given):
        if isinstance(value, Array) or value is HANDLE:
            parameters.append((name, value))
        elif kind in _INTEGERS:
            size, signed = _INTEGERS[kind]
            parameters.append((name, int(value).to_bytes(size, "little", signed=signed)))
        elif kind != "constexpr":
            raise ValueError(f"{name}: expected an Array, HANDLE, a whole number or a constexpr")
    # Triton's own: memory for scratch and for profiles, which these kernels do not ask for.
    return [*parameters, ("scratch", bytes(8)), ("profile", bytes(8))]


def _of_ptx(given: Sequence[Any]) -> list[tuple[str, Any]]:
    """The same of a kernel in PTX."""
    parameters: list[tuple[str, Any]] = []
    for number, value in enumerate(given):
        name = f"argument {number}"
        if isinstance(value, Array) or value is HANDLE:
            parameters.append((name, value))
        elif isinstance(value, ctypes._SimpleCData):
            parameters.append((name, bytes(value)))
        else:
            raise ValueError(f"{name}: expected an Array, HANDLE or a number of ctypes")
    return parameters


def _rank(
    windows: Sequence[Array], given: Sequence[tuple[str, Any]], launches: int
) -> dict[str, Any]:
    """What a rank brings, as ``hwsim explore --kernel`` reads it."""
    known = list(windows)
    arrays = [array._described(f"window {number}", True) for number, array in enumerate(windows)]
    parameters: list[Any] = []
    for name, value in given:
        if isinstance(value, Array):
            if not any(array is value for array in known):
                known.append(value)
                arrays.append(value._described(name, False))
            number = next(number for number, array in enumerate(known) if array is value)
            parameters.append({"array": number})
        else:
            parameters.append("handle" if value is HANDLE else {"hex": value.hex()})
    return {"arrays": arrays, "launches": [parameters] * launches}


# Triton's names of types of numbers: bytes, and whether they have a sign.
_INTEGERS = {
    "i1": (1, False),
    "i8": (1, True),
    "i32": (4, True),
    "u32": (4, False),
    "i64": (8, True),
    "u64": (8, False),
}
