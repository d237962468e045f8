"""Ranks whose packages are not of one build do not start a job: each learns of both builds.

The other build is a copy of this package in whose compiled half the name of the build is another one."""

import pathlib
import shutil
import sys
import tempfile
import time

import ringdove
from ranks import Ranks

RANKS = 3
# This rank has the other package, and this one comes last.
OTHER, LATE = 1, 2


def rank():
    try:
        ringdove.init()
    except ringdove.DisagreementError as error:
        values = sorted([error.expected, error.seen])
        print(f"seen: {' '.join(values)} {OTHER in (error.rank, error.peer)} {error}", flush=True)
    else:
        print("seen: nothing", flush=True)


def rebuilt(folder, build):
    """The package in `folder`, of the name `build`."""
    package = pathlib.Path(ringdove.__path__[0])
    shutil.copytree(package, folder / "ringdove")
    (module,) = (folder / "ringdove").glob("_ringdove*.so")
    image, own = module.read_bytes(), ringdove.__build__.encode()
    assert own in image and len(build) == len(own), (own, build)
    # Its last bytes stand in an instruction, too, which writes them.
    for part in [slice(None), slice(-8, None)]:
        image = image.replace(own[part], build.encode()[part])
    module.write_bytes(image)


def run(other):
    """What each rank printed, where `OTHER` has its package from the folder `other`."""
    ranks = Ranks(RANKS)
    for number in range(RANKS):
        if number == LATE:
            # The others know already that they do not fit, and rank 0 waits for it.
            time.sleep(1)
        ranks.start(__file__, "rank", **({"PYTHONPATH": other} if number == OTHER else {}))
    return ranks.outputs()


def main():
    own = ringdove.__build__
    version, source = own.split("+")
    assert version == ringdove.__version__ and len(source) == 16, own
    of_other_source = f"{version}+{'0' * 16}"
    of_other_version = f"{version[:-1]}{'2' if version[-1] != '2' else '3'}+{source}"
    for build in [of_other_source, of_other_version]:
        with tempfile.TemporaryDirectory() as folder:
            rebuilt(pathlib.Path(folder), build)
            outputs = run(folder)
        values = " ".join(sorted([own, build]))
        for number, output in enumerate(outputs):
            expected = f"seen: {values} True "
            line = next((it for it in output.splitlines() if it.startswith("seen: ")), "")
            assert line.startswith(expected), f"rank {number}: {output}, and not {expected}"
            assert "install the same one for all ranks" in line, output
            print(f"rank {number}: {line}")
    print("right")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank()
    else:
        main()
