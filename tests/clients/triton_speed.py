"""How fast virtual GPUs run kernels that Triton wrote, beside NumPy in the same run. The rates are
those of a simulation on this machine's processors, not of any GPU:

    hwsim run -q --machine dgx-a100 -- python3 tests/clients/triton_speed.py [NAME...]

Each line has the least and the middle of several times on the wall, and processor time of all
threads: the least, for the small kernel the mean."""

import ctypes
import resource
import statistics
import sys
import time

import numpy as np
import triton
import triton.language as tl
from triton_arrays import Array, call, cuda


@triton.jit
def copy_kernel(x, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < count), mask=i < count)


@triton.jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + i, mask=i < count) + tl.load(y + i, mask=i < count)
    tl.store(out + i, total, mask=i < count)


@triton.jit
def matmul_kernel(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    column = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + row * K + k[None, :])
        y = tl.load(b + k[:, None] * N + column)
        total = tl.dot(x, y, total, input_precision="ieee")
    tl.store(c + row * N + column, total)


def spent():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(run, times=7):
    """Least and middle time on the wall, least processor time, in seconds."""
    run()
    wall, processor = [], []
    for _ in range(times):
        began, before = time.perf_counter(), spent()
        run()
        wall.append(time.perf_counter() - began)
        processor.append(spent() - before)
    return min(wall), statistics.median(wall), min(processor)


def synchronized(launch):
    def run():
        launch()
        call("cuCtxSynchronize")

    return run


def elementwise(name):
    count = 16 << 20
    x, y = np.arange(count, dtype=np.float32), np.ones(count, np.float32)
    out = np.empty_like(x)
    blocks = (count // 1024,)
    if name == "copy":
        host = measure(lambda: np.copyto(out, x))
        a, c = Array(x), Array(np.zeros_like(x))
        gpu = measure(synchronized(lambda: copy_kernel[blocks](a, c, count, BLOCK=1024)))
        assert (c.get() == x).all()
    else:
        host = measure(lambda: np.add(x, y, out=out))
        a, b, c = Array(x), Array(y), Array(np.zeros_like(x))
        gpu = measure(synchronized(lambda: add_kernel[blocks](a, b, c, count, BLOCK=1024)))
        assert (c.get() == x + y).all()
    report(f"{name} of 64 MB, NumPy", host)
    rates = f"{host[0] / gpu[0]:.2f} of NumPy's rate (medians {host[1] / gpu[1]:.2f})"
    report(f"{name} of 64 MB", gpu, rates)


def product(name):
    kind = np.float32 if name == "product" else np.float16
    random = np.random.default_rng(1)
    x, y = (random.standard_normal((1024, 1024)).astype(kind) for _ in range(2))
    a, b, c = Array(x), Array(y), Array(np.zeros((1024, 1024), np.float32))
    grid = (16, 16)
    tiles = {"BM": 64, "BN": 64, "BK": 32}
    gpu = measure(synchronized(lambda: matmul_kernel[grid](a, b, c, 1024, 1024, **tiles)), 3)
    wanted = x.astype(np.float64) @ y.astype(np.float64)
    assert np.allclose(c.get(), wanted, rtol=1e-3, atol=1e-2)
    report(f"product of 1024 x 1024, {x.dtype}", gpu, f"{2 * 1024**3 / gpu[0] / 1e9:.2f} GFLOP/s")


def small(_):
    """A small kernel by the driver itself: the launch, and from it to the finish."""
    text = b"""
.version 7.8
.target sm_70
.address_size 64
.visible .entry small(.param .u64 out) {
.reg .b64 %rd<2>; .reg .b32 %r<2>;
ld.param.u64 %rd1, [out]; mov.u32 %r1, 1; st.global.u32 [%rd1], %r1; ret; }
"""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    out = Array(np.zeros(4, np.int32))
    call("cuModuleLoadData", ctypes.byref(module), text)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"small")
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(out.address))
    launch, wait = cuda.cuLaunchKernel, cuda.cuCtxSynchronize
    words = [ctypes.c_uint(word) for word in (1, 1, 1, 32, 1, 1, 0)]
    starts, ends = [], []
    before = spent()
    for _ in range(20000):
        began = time.perf_counter()
        launch(function, *words, None, arguments, None)
        started = time.perf_counter()
        wait()
        ends.append(time.perf_counter() - began)
        starts.append(started - began)
    each = (spent() - before) / len(ends)
    report("start of a small kernel", (min(starts), statistics.median(starts), each))
    report("launch to finish of a small kernel", (min(ends), statistics.median(ends), each))


def load(_):
    """Loading of a module of 1 MB: kernels of the f32 product, each under a name of its own."""
    a = Array(np.zeros((64, 64), np.float32))
    text = matmul_kernel[(1, 1)](a, a, a, 64, 64, BM=64, BN=64, BK=32).asm["ptx"]
    begin = text.index(".visible .entry")
    end = text.index("}", text.index("$L__func_end0")) + 1
    head, kernel = text[:begin], text[begin:end]
    kernel = "\n".join(line for line in kernel.splitlines() if not line.strip().startswith(".loc"))
    module = ctypes.c_void_p()
    loads, again = [], []
    for number in range(8):
        names = [f"k{number}_{copy}" for copy in range((1 << 20) // len(kernel) + 1)]
        whole = (head + "".join(kernel.replace("matmul_kernel", name) for name in names)).encode()
        for times in (loads, again):
            before, began = spent(), time.perf_counter()
            call("cuModuleLoadData", ctypes.byref(module), whole)
            times.append((time.perf_counter() - began, spent() - before))
    for what, times in ("loading 1 MB of PTX", loads), ("loading it again", again):
        wall, processor = zip(*times)
        report(what, (min(wall), statistics.median(wall), min(processor)), f"{len(whole)} bytes")


def report(what, times, more=""):
    def text(value):
        return f"{1e6 * value:.1f} us" if value < 1e-3 else f"{1e3 * value:.1f} ms"

    least, middle, processor = map(text, times)
    print(f"{what}: {least}, median {middle}, processor {processor}  {more}", flush=True)


programs = {
    "copy": elementwise,
    "add": elementwise,
    "product": product,
    "product_f16": product,
    "small": small,
    "load": load,
}
for program in sys.argv[1:] or programs:
    programs[program](program)
