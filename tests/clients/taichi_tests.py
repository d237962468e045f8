"""Taichi's own tests on a virtual GPU.

    taichi_tests.py TESTS EXPLAINED OUT [FILE...]    the folder tests/python, a list, a folder for output

Each file of tests runs in a process of its own. What fails there, or is not reached, runs again by itself:
after an error of a kernel, all later ones of a process fail. EXPLAINED has a line `PATTERN: REASON` for each
test that need not pass; a pattern is that of a file name. $hwsim is the command. Prints every test that
fails, and counts in its last line; fails where a failure is not explained."""

import concurrent.futures
import fnmatch
import os
import pathlib
import re
import subprocess
import sys

# For one test by itself, and for a file of them: a test has 60 s on an idle machine, which this one may
# not be.
TEST_SECONDS = int(os.environ.get("CLIENT_TEST_SECONDS", "180"))
FILE_SECONDS = 5 * TEST_SECONDS
LINE = re.compile(r"^(\S+\.py::.+?) (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)\b", re.MULTILINE)
COLLECTED = re.compile(r"^(\S+\.py::.+)$", re.MULTILINE)


def pytest(tests, names, seconds, *options):
    """What pytest prints about these tests, on a machine of its own."""
    command = [
        os.environ["hwsim"], "run", "-q", "--machine", "dgx-a100", "--", sys.executable, "-m", "pytest",
        "-p", "no:cacheprovider", "--rootdir", tests, "-c", os.devnull, "--tb=line", *options, *names,
    ]
    environment = {**os.environ, "TI_WANTED_ARCHS": "cuda", "PYTHONPATH": str(tests.parent.parent),
                   "TI_OFFLINE_CACHE": "0", "COLUMNS": "200"}
    try:
        done = subprocess.run(command, cwd=tests, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=seconds, stdin=subprocess.DEVNULL)
        return done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace") + f"\nno end after {seconds} s\n"


def run_file(tests, out, file):
    """Each test of a file, and how it ended."""
    log = pytest(tests, [file], FILE_SECONDS, "-v")
    results = dict(LINE.findall(log))
    count = re.search(r"^collected (\d+) items?", log, re.MULTILINE)
    collected = list(results)
    if count is None or int(count[1]) != len(results):
        listed = pytest(tests, [file], FILE_SECONDS, "--collect-only", "-q")
        collected = COLLECTED.findall(listed)
        log += listed
    for name in collected:
        if results.get(name) in (None, "FAILED", "ERROR"):
            alone = pytest(tests, [name], TEST_SECONDS, "-v")
            log += alone
            results[name] = dict(LINE.findall(alone)).get(name, "NOT ENDED")
    (out / f"{file}.log").write_text(log)
    if not collected:
        results[file] = "NOT COLLECTED"
    return results


def main():
    tests, explained, out = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
    out.mkdir(parents=True, exist_ok=True)
    reasons = [line.split(": ", 1) for line in explained.read_text().splitlines()
               if line and not line.startswith("#")]
    files = sys.argv[4:] or sorted(path.name for path in tests.glob("test_*.py"))
    counts, unexplained = {}, []
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("CLIENT_JOBS", "2"))) as pool:
        for file, results in zip(files, pool.map(lambda file: run_file(tests, out, file), files)):
            for name, how in results.items():
                good = how in ("PASSED", "XFAIL", "XPASS", "SKIPPED")
                reason = next((reason for pattern, reason in reasons
                               if fnmatch.fnmatchcase(name, pattern)), None)
                word = how.lower() if good else "explained" if reason else "unexplained"
                counts[word] = counts.get(word, 0) + 1
                if not good:
                    print(f"{how}: {name}: {reason or 'not explained'}", flush=True)
                if word == "unexplained":
                    unexplained.append(name)
            print(f"{file}: {len(results)}", flush=True)
    said = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    print(f"{len(files)} files: {said}")
    return bool(unexplained) or counts.get("passed", 0) == 0


if __name__ == "__main__":
    sys.exit(main())
