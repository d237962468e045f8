"""CuPy on one virtual machine, compared with NumPy. Arguments: the names of the programs to run."""
import sys
import time

import cupy as cp
import numpy as np
from cupyx import jit
from cupyx.scipy import ndimage

random = np.random.default_rng(7)


def equal(got, expected):
    """The same shape, type and values."""
    got = cp.asnumpy(got)
    expected = np.asarray(expected)
    return got.dtype == expected.dtype and np.array_equal(got, expected)


def close(got, expected, tolerance=1e-5):
    return np.allclose(cp.asnumpy(got), expected, rtol=tolerance, atol=tolerance)


def element_wise():
    """Arithmetic of every width, broadcasts, selections, casts, and functions of libdevice."""
    right = True
    for dtype in (np.int8, np.uint16, np.int32, np.uint64, np.float16, np.float32, np.float64):
        a, b = (random.integers(1, 9, (37, 1)).astype(dtype), random.integers(1, 9, 53).astype(dtype))
        x, y = cp.asarray(a), cp.asarray(b)
        right &= equal(x + y * y, a + b * b) and equal(cp.maximum(x, y), np.maximum(a, b))
        right &= equal(cp.where(x > y, x, y), np.where(a > b, a, b)) and equal(x // y, a // b)
    for function in ("sin", "exp", "log1p", "sqrt", "arctan", "cbrt", "tanh"):
        values = random.uniform(0.1, 3, 999)
        for dtype, tolerance in ((np.float32, 1e-5), (np.float64, 1e-13)):
            data = values.astype(dtype)
            right &= close(getattr(cp, function)(cp.asarray(data)), getattr(np, function)(data),
                           tolerance)
    z = random.normal(size=99) + 1j * random.normal(size=99)
    return right and close(cp.exp(cp.asarray(z)) / 3, np.exp(z) / 3, 1e-12)


def kernels():
    """ElementwiseKernel, ReductionKernel and fused functions."""
    a, b = random.normal(size=5000), random.normal(size=5000)
    x, y = cp.asarray(a), cp.asarray(b)
    square = cp.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "square")
    length = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "length")

    @cp.fuse()
    def fused(x, y):
        return cp.sum(cp.square(x) * y + 1)

    return (close(square(x, y), (a - b) ** 2) and close(length(x), np.linalg.norm(a))
            and close(fused(x, y), np.sum(a * a * b + 1)))


def reductions():
    """Over all, first, middle and last axis; results of other types; sizes that fill no block."""
    right = True
    for shape in ((1,), (100_003,), (7, 129, 33)):
        a = random.normal(size=shape)
        x = cp.asarray(a)
        for axis in (None, *range(len(shape))):
            for name in ("sum", "mean", "var", "max", "prod"):
                right &= close(getattr(x, name)(axis=axis), getattr(a, name)(axis=axis), 1e-9)
            right &= equal(x.argmin(axis=axis), a.argmin(axis=axis))
            right &= equal((x > 0).sum(axis=axis), (a > 0).sum(axis=axis))
    words = random.integers(0, 50, 3001)
    count = cp.bincount(cp.asarray(words), minlength=50)
    return right and equal(count, np.bincount(words, minlength=50))


def scans():
    a = random.integers(-9, 9, 70_001)
    return (equal(cp.cumsum(cp.asarray(a)), np.cumsum(a))
            and equal(cp.nonzero(cp.asarray(a) > 3)[0], np.nonzero(a > 3)[0])
            and equal(cp.asarray(a)[cp.asarray(a) < 0], a[a < 0]))


def indexing():
    """Slices with steps, takes, scatters by atomics, concatenations, transposed copies."""
    a = random.normal(size=(40, 50, 6)).astype(np.float32)
    x = cp.asarray(a)
    rows = random.integers(0, 40, 77)
    right = equal(x[3:30:4, ::-1], a[3:30:4, ::-1]) and equal(x[cp.asarray(rows)], a[rows])
    right &= equal(cp.ascontiguousarray(x.transpose(2, 0, 1)), a.transpose(2, 0, 1))
    right &= equal(cp.concatenate([x, x[:5]]), np.concatenate([a, a[:5]]))
    got, expected = cp.zeros(40), np.zeros(40)
    cp.add.at(got, cp.asarray(rows), 1.5)
    np.add.at(expected, rows, 1.5)
    return right and equal(got, expected)


def integer_product():
    a, b = random.integers(-9, 9, (65, 130)), random.integers(-9, 9, (130, 33))
    return equal(cp.matmul(cp.asarray(a), cp.asarray(b)), a @ b)


RAW = r"""
extern "C" { __constant__ float weights[3]; }
template <typename T, int WIDTH>
__global__ void blur(const T* in, T* out, int count) {
    extern __shared__ char bytes[];
    T* tile = reinterpret_cast<T*>(bytes);
    int at = blockIdx.x * WIDTH + threadIdx.x;
    tile[threadIdx.x + 1] = at < count ? in[at] : T(0);
    if (threadIdx.x == 0) tile[0] = at > 0 ? in[at - 1] : T(0);
    if (threadIdx.x == WIDTH - 1) tile[WIDTH + 1] = at + 1 < count ? in[at + 1] : T(0);
    __syncthreads();
    if (at < count)
        out[at] = T(weights[0]) * tile[threadIdx.x] + T(weights[1]) * tile[threadIdx.x + 1]
            + T(weights[2]) * tile[threadIdx.x + 2];
}
"""


def raw_kernels():
    """RawModule with templates, constant memory and dynamic shared memory; RawKernel; jit."""
    module = cp.RawModule(code=RAW, options=("-std=c++14",),
                          name_expressions=["blur<float, 64>", "blur<double, 128>"])
    weights = np.array([0.25, 0.5, 0.125], np.float32)
    pointer = module.get_global("weights")
    cp.ndarray(3, cp.float32, pointer)[...] = cp.asarray(weights)
    right = True
    for name, dtype, width in (("float", np.float32, 64), ("double", np.float64, 128)):
        a = random.normal(size=1000).astype(dtype)
        out = cp.empty(1000, dtype)
        kernel = module.get_function(f"blur<{name}, {width}>")
        kernel(((999 + width) // width,), (width,), (cp.asarray(a), out, np.int32(1000)),
               shared_mem=(width + 2) * out.itemsize)
        padded = np.pad(a, 1)
        right &= close(out, padded[:-2] * 0.25 + padded[1:-1] * 0.5 + padded[2:] * 0.125)
    warp = cp.RawKernel(r"""extern "C" __global__ void warp_sum(const int* in, int* out) {
        int sum = in[blockIdx.x * 32 + threadIdx.x];
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }""", "warp_sum")
    words, total = random.integers(0, 100, 320).astype(np.int32), cp.zeros(1, np.int32)
    warp((10,), (32,), (cp.asarray(words), total))

    @jit.rawkernel()
    def doubled(x, y, count):
        at = jit.grid(1)
        if at < count:
            y[at] = x[at] * 2

    twice = cp.empty(320, np.int32)
    doubled[10, 32](cp.asarray(words), twice, 320)
    return right and equal(total, [words.sum(dtype=np.int32)]) and equal(twice, words * 2)


def filters():
    """Generated kernels with many arguments: n-dimensional filters and measurements."""
    from scipy import ndimage as reference
    a = random.normal(size=(40, 31))
    x = cp.asarray(a)
    right = close(ndimage.gaussian_filter(x, 1.5), reference.gaussian_filter(a, 1.5), 1e-9)
    right &= close(ndimage.median_filter(x, 3), reference.median_filter(a, 3), 1e-12)
    got, count = ndimage.label(x > 0.3)
    expected, number = reference.label(a > 0.3)
    return right and count == number and equal(got, expected)


def streams():
    """Work of two streams, in an order that events make; copies from pinned memory; elapsed time."""
    first, second = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    host = cp.cuda.alloc_pinned_memory(8 * 4096)
    words = np.frombuffer(host, np.float64, 4096)
    words[:] = random.normal(size=4096)
    began, ended = cp.cuda.Event(), cp.cuda.Event()
    with first:
        x = cp.empty(4096)
        began.record()
        x.set(words, stream=first)
        x *= 3
        ended.record()
    second.wait_event(ended)
    with second:
        y = x + 1
    second.synchronize()
    seen = []
    second.launch_host_func(seen.append, "called")
    second.synchronize()
    return (close(y, words * 3 + 1, 1e-12) and seen == ["called"]
            and cp.cuda.get_elapsed_time(began, ended) >= 0)


def graphs():
    """A captured graph that is launched again and again, with new data in its input."""
    stream, right = cp.cuda.Stream(non_blocking=True), True
    with stream:
        x, y = cp.zeros(1000), cp.zeros(1000)
        cp.multiply(x, 2, out=y)
        stream.begin_capture()
        cp.multiply(x, 2, out=y)
        cp.add(y, 1, out=y)
        graph = stream.end_capture()
        for _ in range(3):
            a = random.normal(size=1000)
            x.set(a, stream=stream)
            graph.launch(stream)
            stream.synchronize()
            right &= close(y, a * 2 + 1, 1e-12)
    return right


def memory():
    """The pool, managed memory, stream-ordered allocation, and limits that are kept."""
    pool = cp.cuda.MemoryPool(cp.cuda.malloc_managed)
    right = True
    for allocator in (pool.malloc, cp.cuda.MemoryAsyncPool().malloc, None):
        with cp.cuda.using_allocator(allocator):
            a = random.normal(size=12_345)
            right &= close(cp.asarray(a) * 2, a * 2, 1e-12)
    small = cp.cuda.MemoryPool()
    small.set_limit(size=1 << 20)
    with cp.cuda.using_allocator(small.malloc):
        try:
            cp.empty(1 << 20)
            return False
        except cp.cuda.memory.OutOfMemoryError:
            return right


def devices():
    """Every GPU of the machine, and copies from each to each."""
    count = cp.cuda.runtime.getDeviceCount()
    a = random.normal(size=3000)
    right = count > 1
    for source in range(count):
        with cp.cuda.Device(source):
            x = cp.asarray(a) + source
        target = (source + 1) % count
        with cp.cuda.Device(target):
            y = cp.asarray(x) * 2
            right &= y.device.id == target and close(y, (a + source) * 2, 1e-12)
    return right


def shaped_copies():
    """Arrays of other libraries by DLPack and by their interface; a memory map's bytes back."""
    a = random.normal(size=(30, 20)).astype(np.float32)
    x = cp.from_dlpack(cp.asarray(a))
    raw = cp.frombuffer(a.tobytes(), np.float32).reshape(30, 20)
    return equal(x, a) and equal(raw, a) and x.tobytes() == a.tobytes()


def sorts():
    """Thrust, as the wheel holds it: sorts of keys, of pairs, along an axis, and what uses them."""
    right = True
    for dtype in (np.int32, np.float32, np.float64, np.uint8):
        a = random.integers(0, 200, 5000).astype(dtype)
        right &= equal(cp.sort(cp.asarray(a)), np.sort(a))
        right &= equal(cp.argsort(cp.asarray(a), kind="stable"), np.argsort(a, kind="stable"))
        right &= equal(cp.unique(cp.asarray(a)), np.unique(a))
    a = random.normal(size=(30, 200))
    keys = random.integers(0, 5, (2, 900))
    return (right and equal(cp.sort(cp.asarray(a), axis=0), np.sort(a, axis=0))
            and equal(cp.lexsort(cp.asarray(keys)), np.lexsort(keys)))


def cub():
    """Reductions and scans of CUB, as the wheel holds them."""
    from cupy.cuda import cub as own
    a = random.normal(size=50_000)
    x, words = cp.asarray(a), random.integers(-9, 9, 50_000)
    return (close(own.device_reduce(x, own.CUPY_CUB_SUM, (0,), (), None, False), a.sum(), 1e-9)
            and equal(own.device_reduce(x, own.CUPY_CUB_MAX, (0,), (), None, False), a.max())
            and equal(own.device_scan(cp.asarray(words), own.CUPY_CUB_CUMSUM), np.cumsum(words)))


def generators():
    """Random numbers by the kernels of the wheel: in range, and of the right mean."""
    numbers = cp.random.Generator(cp.random.XORWOW(1)).random(20_000)
    again = cp.random.Generator(cp.random.XORWOW(1)).random(20_000)
    a = numbers.get()
    return (equal(again, a) and len(set(a)) > 19_990 and a.min() >= 0 and a.max() < 1
            and abs(a.mean() - 0.5) < 0.01)


for name in sys.argv[1:]:
    began = time.monotonic()
    if not globals()[name]():
        sys.exit(f"{name}: wrong")
    print(f"{name}: right ({time.monotonic() - began:.2f} s)", flush=True)
