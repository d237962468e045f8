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

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Sequence

__all__ = ["HANDLE", "Array", "explore", "on_ranks"]


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
        values: what it holds at first: a NumPy array, or what else has ``dtype`` and ``tobytes()``
        expected: the same of what it must hold at the end, bit for bit; None: whatever it may be
    """

    def __init__(self, values: Any, expected: Any = None) -> None:
        self.dtype = str(values.dtype)
        self._bytes = values.tobytes()
        self._expected = None if expected is None else expected.tobytes()
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
    """Runs a kernel of Triton on several ranks, on a weak memory and in adversarial orders.

        def brings(rank):
            data = testing.Array(x[rank], expected=x.sum(0))
            return [data, testing.Array(inbox)], [testing.HANDLE, 64]

        testing.explore(ring_all_reduce, brings, ranks=4, programs=2, lanes=2, runs=200)

    What the kernel reads too early, or leaves without a wait or a flush, shows in some of the runs.
    One thread does it all, so keep sizes small: a few hundred elements, one or two warps. This
    memory has no instructions of tensor cores: ``tl.dot`` wants ``pytest --hwsim dgx1v``, for which
    Triton does without.

    Args:
        kernel: a function with ``@triton.jit``
        brings: a rank's windows, by their numbers, and the arguments of its launch, in their order:
            ``HANDLE`` for the address of the device handle, an ``Array``, which may be a window,
            for each array, whole numbers, and those that are ``tl.constexpr``
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
        RuntimeError: not on virtual hardware, where Triton has a GPU to compile for
        ValueError: the kernel or its arguments cannot be run so
    """
    import hwsim

    if not hwsim.is_running():
        raise RuntimeError("not on virtual hardware: see pytest --hwsim, and hwsim run")

    from . import triton as functions

    of_ranks = [brings(rank) for rank in range(ranks)]
    options = {"grid": (programs,), "extern_libs": functions.libraries(), **options}
    compiled = [kernel.warmup(*given, **options) for _, given in of_ranks]
    if any(other.asm["ptx"] != compiled[0].asm["ptx"] for other in compiled):
        raise ValueError("expected arguments for which Triton compiles one kernel for all ranks")
    kinds = list(compiled[0].src.signature.values())
    metadata = compiled[0].metadata
    description = {
        "ptx": compiled[0].asm["ptx"],
        "entry": metadata.name,
        "blocks": programs,
        "threads": 32 * metadata.num_warps,
        "shared_bytes": metadata.shared,
        "lanes": lanes,
        "ranks": [
            _rank(windows, list(zip(kernel.arg_names, kinds, given)), launches)
            for windows, given in of_ranks
        ],
    }
    folder = Path(tempfile.mkdtemp(prefix="ringdove-explore-"))
    file = folder / f"{metadata.name}.json"
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
    if done.returncode == 0:
        file.unlink()
        folder.rmdir()
        return done.stdout.strip()
    said = done.stdout.splitlines()
    if not said or _REFUSED in said[0]:
        raise ValueError(said[0] if said else f"status {done.returncode}: {done.stderr}")
    raise AssertionError("\n".join([said[0], said[-1]]))


# How hwsim begins to name an instruction for which the weak memory has no model.
_REFUSED = "instruction that the weak memory does not model"


def _rank(
    windows: Sequence[Array], given: Sequence[tuple[str, str, Any]], launches: int
) -> dict[str, Any]:
    """What a rank brings, as ``hwsim explore --kernel`` reads it."""
    known = list(windows)
    arrays = [array._described(f"window {number}", True) for number, array in enumerate(windows)]
    parameters: list[Any] = []
    for name, kind, value in given:
        if isinstance(value, Array):
            if not any(array is value for array in known):
                known.append(value)
                arrays.append(value._described(name, False))
            number = next(number for number, array in enumerate(known) if array is value)
            parameters.append({"array": number})
        elif value is HANDLE:
            parameters.append("handle")
        elif kind in _INTEGERS:
            size, signed = _INTEGERS[kind]
            parameters.append({"hex": int(value).to_bytes(size, "little", signed=signed).hex()})
        elif kind != "constexpr":
            raise ValueError(f"{name}: expected an Array, HANDLE, a whole number or a constexpr")
    # Triton's own: memory for scratch and for profiles, which these kernels do not ask for.
    parameters += [{"hex": "00" * 8}] * 2
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
