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
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping

__all__ = ["on_ranks"]


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
