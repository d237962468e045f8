"""Random C programs of csmith, compiled by clang to PTX at -O0 to -O3, against the same programs on the
host's processor.

    csmith_programs.py FIRST COUNT FOLDER    programs of the seeds FIRST, FIRST + 1, ...

$hwsim is the command; what fails stays in FOLDER. A program is left out, and counted, if it takes a tenth
of a second of the host's processor, as csmith's programs need not end, or if it converts a float to an
integer that cannot hold it, which C leaves undefined, and processors and GPUs do differently; a signal
ends it then, as where it fails otherwise. Every second one computes with floats. The last line counts:
right, left out, and wrong or refused."""

import concurrent.futures
import ctypes
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent / "csmith"
HEADERS = "/usr/include/csmith"
CLANG = os.environ.get("CLANG_C", "clang-19")
LEVELS = range(4)
# Longest time of a program on the host, and of its four kernels, which are a thousand times slower.
HOST_SECONDS = 0.1
KERNELS_SECONDS = 300
# Signed overflow is undefined: csmith's wrappers avoid it. Packed structures are not aligned.
CSMITH = ["--no-packed-struct", "--no-argc", "--max-funcs", "6", "--max-block-depth", "4"]
COMPILE = ["-w", "-ffp-contract=off"]
# Where the result is undefined, the program ends by a signal.
HOST = ["-O1", "-fsanitize=float-cast-overflow", "-fsanitize-trap=all"]
GPU = ["--target=nvptx64-nvidia-cuda", "-march=sm_70", "-nogpulib", "-ffreestanding", "-S"]


def tool(*command, **more):
    return subprocess.run([str(word) for word in command], check=True, **more)


def on_host(program):
    """What a program prints, if that is defined, and its processor's time, which other load does not change: one that does
    not end is ended after a second of it."""
    limited = ["sh", "-c", 'ulimit -t 1; exec "$0"', str(program)]
    with subprocess.Popen(limited, stdout=subprocess.PIPE) as running:
        printed = running.stdout.read().decode()
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    return (printed if running.returncode == 0 else None), seconds


def prepare(folder, seed):
    """The checksum of a seed's program on the host, and its kernels;
    None where it is left out."""
    program = folder / f"{seed}.c"
    floats = ["--float"] if seed % 2 else []
    tool("csmith", "--seed", seed, *CSMITH, *floats, "-o", program, cwd=folder)
    host = folder / f"{seed}.host"
    tool(CLANG, *COMPILE, *HOST, "-I", HEADERS, program, "-lm", "-o", host)
    printed, seconds = on_host(host)
    host.unlink()
    if printed is None or seconds > HOST_SECONDS:
        print(f"seed {seed}: {'takes long' if printed else 'ended by a signal'} on the host")
        program.unlink()
        return None
    kernels = []
    for level in LEVELS:
        kernels.append(folder / f"{seed}.O{level}.ptx")
        tool(CLANG, *GPU, *COMPILE, f"-O{level}", "-I", HERE, "-I", HEADERS,
             f'-DPROGRAM="{program}"', HERE / "kernel.c", "-o", kernels[-1])
    return int(re.fullmatch(r"checksum = ([0-9A-F]+)\n", printed)[1], 16), kernels


def on_gpu(kernels):
    """What each kernel computes, or why it does not: a process for all, and one more behind a failure,
    which ends the context."""
    seen = []
    while len(seen) < len(kernels):
        command = [os.environ["hwsim"], "run", "-q", "--", sys.executable, __file__, "--launch"]
        left = [str(kernel) for kernel in kernels[len(seen):]]
        try:
            done = subprocess.run(command + left, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=KERNELS_SECONDS)
            lines = done.stdout.decode().splitlines()
            seen += [int(line, 16) for line in lines]
            if len(lines) < len(left):
                seen.append(done.stderr.decode().strip() or f"status {done.returncode}")
        except subprocess.TimeoutExpired as late:
            seen += [int(line, 16) for line in (late.stdout or b"").decode().splitlines()]
            seen.append(f"no end after {KERNELS_SECONDS} s")
    return seen


def launch(kernels):
    """On the virtual machine: prints what each kernel computes."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        status = getattr(cuda, name)(*arguments)
        if status:
            sys.exit(f"{name}: status {status}")

    device, context, out = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(4))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(out))
    for kernel in kernels:
        module, function, found = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint32()
        call("cuModuleLoad", ctypes.byref(module), kernel.encode())
        call("cuModuleGetFunction", ctypes.byref(function), module, b"run")
        call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        call("cuMemcpyDtoH_v2", ctypes.byref(found), out, ctypes.c_size_t(4))
        call("cuModuleUnload", module)
        print(f"{found.value:X}", flush=True)


def main():
    first, count, folder = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    right, out, bad = 0, 0, []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        seeds = range(first, first + count)
        for seed, made in zip(seeds, pool.map(lambda seed: prepare(folder, seed), seeds)):
            if made is None:
                out += 1
                continue
            expected, kernels = made
            wrong = False
            for kernel, found in zip(kernels, on_gpu(kernels)):
                if found == expected:
                    kernel.unlink()
                    continue
                said = found if isinstance(found, str) else f"{found:X}"
                print(f"seed {seed}, {kernel.name}: expected {expected:X}, seen {said}", flush=True)
                wrong = True
            if wrong:
                bad.append(seed)
            else:
                right += 1
                (folder / f"{seed}.c").unlink()
    print(f"seeds {first} to {first + count - 1}: {right} programs right at -O0 to -O3, "
          f"{out} left out, {len(bad)} wrong or refused{': ' * bool(bad)}"
          f"{' '.join(map(str, bad))}")
    return bool(bad) or right == 0


if __name__ == "__main__":
    if sys.argv[1] == "--launch":
        launch(sys.argv[2:])
    else:
        sys.exit(main())
