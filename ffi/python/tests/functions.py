"""The functions of ``ringdove.triton`` and ``ringdove.numba``, called by a kernel without either.

Each rank fills a window, puts it to the next rank, and waits for what the one before has put. The
kernel is linked with the functions as compilers link it.
"""

import ctypes

import ringdove
import ringdove.files
from ringdove import DeviceArray

CUDA = ctypes.CDLL("libcuda.so.1")
PTX = 1  # CU_JIT_INPUT_PTX
THREADS, BYTES = 64, 256

# Every thread stores whether each call was well, and what has arrived at its place.
KERNEL = """
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 r) ringdove_rank(.param .b64 a);
.extern .func (.param .b32 r) ringdove_rank_count(.param .b64 a);
.extern .func (.param .b64 r) ringdove_window(.param .b64 a, .param .b32 b);
.extern .func (.param .b64 r) ringdove_window_bytes(.param .b64 a, .param .b32 b);
.extern .func (.param .b32 r) ringdove_put_with_signal(.param .b64 a, .param .b32 b, .param .b32 c,
    .param .b64 d, .param .b32 e, .param .b64 f, .param .b64 g, .param .b32 h);
.extern .func (.param .b32 r) ringdove_numba_wait(.param .b64 p, .param .b64 a, .param .b32 b,
    .param .b32 c, .param .b32 d);
.extern .func (.param .b32 r) ringdove_flush(.param .b64 a, .param .b32 b, .param .b32 c);

.visible .entry shift(.param .u64 handle, .param .u64 seen, .param .s64 bytes)
{
    .reg .b32 %r<20>;
    .reg .b64 %rd<20>;
    .reg .pred %p<4>;
    .local .align 4 .b8 result[4];
    .param .b64 a; .param .b32 b; .param .b32 c; .param .b64 d;
    .param .b32 e; .param .b64 f; .param .b64 g; .param .b32 h;
    .param .b32 r; .param .b64 rd; .param .b64 p;
    ld.param.u64 %rd1, [handle];
    ld.param.u64 %rd2, [seen];
    ld.param.u64 %rd12, [bytes];
    mov.u32 %r1, %tid.x;
    st.param.b64 [a], %rd1;
    call (r), ringdove_rank, (a);
    ld.param.b32 %r2, [r];
    call (r), ringdove_rank_count, (a);
    ld.param.b32 %r3, [r];
    st.param.b32 [b], 1;
    call (rd), ringdove_window, (a, b);
    ld.param.b64 %rd3, [rd];
    call (rd), ringdove_window_bytes, (a, b);
    ld.param.b64 %rd4, [rd];
    // window[tid] = 1000 * rank + tid
    st.param.b32 [b], 0;
    call (rd), ringdove_window, (a, b);
    ld.param.b64 %rd5, [rd];
    mad.lo.s32 %r4, %r2, 1000, %r1;
    mul.wide.u32 %rd6, %r1, 4;
    add.u64 %rd7, %rd5, %rd6;
    st.u32 [%rd7], %r4;
    // To the next rank, from window 0 into window 1.
    add.s32 %r5, %r2, 1;
    rem.s32 %r5, %r5, %r3;
    st.param.b32 [b], %r5;
    st.param.b32 [c], 1;
    st.param.b64 [d], 0;
    st.param.b32 [e], 0;
    st.param.b64 [f], 0;
    st.param.b64 [g], %rd12;
    st.param.b32 [h], 0;
    call (r), ringdove_put_with_signal, (a, b, c, d, e, f, g, h);
    ld.param.b32 %r6, [r];
    add.s32 %r7, %r2, %r3;
    sub.s32 %r7, %r7, 1;
    rem.s32 %r7, %r7, %r3;
    mov.u64 %rd8, result;
    cvta.local.u64 %rd8, %rd8;
    mov.u32 %r9, 7;
    st.u32 [%rd8], %r9;
    // Where the put was refused, there is nothing to wait for.
    setp.eq.s32 %p1, %r6, 0;
    @%p1 bra OVER;
    st.param.b64 [p], %rd8;
    st.param.b32 [b], %r7;
    st.param.b32 [c], 1;
    st.param.b32 [e], 0;
    call (r), ringdove_numba_wait, (p, a, b, c, e);
    st.param.b32 [b], %r5;
    st.param.b32 [c], 0;
    call (r), ringdove_flush, (a, b, c);
    ld.param.b32 %r10, [r];
    add.s32 %r6, %r6, %r10;
OVER:
    ld.u32 %r9, [%rd8];
    mad.lo.s32 %r6, %r6, 100, %r9;
    add.u64 %rd9, %rd3, %rd6;
    ld.u32 %r8, [%rd9];
    cvt.u32.u64 %r11, %rd4;
    // Four words of each thread.
    mul.wide.u32 %rd10, %r1, 16;
    add.u64 %rd11, %rd2, %rd10;
    st.u32 [%rd11], %r6;
    st.u32 [%rd11+4], %r8;
    st.u32 [%rd11+8], %r11;
    st.u32 [%rd11+12], %r3;
    ret;
}
"""


def cuda(name, *arguments):
    code = getattr(CUDA, name)(*arguments)
    assert code == 0, f"{name}: {code}"


def linked():
    """The kernel, joined with the functions, on the current GPU."""
    state, image, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    cuda("cuLinkCreate_v2", 0, None, None, ctypes.byref(state))
    for name, text in [
        (b"kernel", KERNEL.encode()),
        (b"functions", ringdove.files.ptx().read_bytes()),
    ]:
        data = ctypes.create_string_buffer(text)
        arguments = (state, PTX, data, ctypes.c_size_t(len(data)), name, 0, None, None)
        cuda("cuLinkAddData_v2", *arguments)
    cuda("cuLinkComplete", state, ctypes.byref(image), ctypes.byref(size))
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuModuleLoadData", ctypes.byref(module), image)
    cuda("cuLinkDestroy", state)
    cuda("cuModuleGetFunction", ctypes.byref(function), module, b"shift")
    return function


def launch(function, handle, seen, length):
    values = [
        ctypes.c_uint64(handle.address),
        ctypes.c_uint64(seen.data_ptr()),
        ctypes.c_int64(length),
    ]
    pointers = (ctypes.c_void_p * 3)(*[ctypes.addressof(value) for value in values])
    # On the default stream, which `tolist` waits for.
    cuda("cuLaunchKernel", function, 1, 1, 1, THREADS, 1, 1, 0, None, pointers, None)


def ranks():
    """Each rank with its kernel, its windows' handle, and what the kernel is to store."""
    parts = []
    for comm in ringdove.init_all():
        windows = [
            comm.register(DeviceArray(THREADS, "int32", comm.device)) for _ in range(2)
        ]
        ringdove.set_device(comm.device)
        parts.append((comm, linked(), windows, DeviceArray(4 * THREADS, "int32", comm.device)))
    return [
        (comm, function, comm.device_handle(windows), seen)
        for comm, function, windows, seen in parts
    ]


def run(parts, length):
    for comm, function, handle, seen in parts:
        ringdove.set_device(comm.device)
        launch(function, handle, seen, length)
    return [seen.tolist() for _, _, _, seen in parts]


def main():
    parts = ranks()
    size = len(parts)
    for _ in range(3):
        for rank, seen in enumerate(run(parts, BYTES)):
            source = (rank + size - 1) % size
            for thread in range(THREADS):
                # Put and flush have said 1 each, and wait 1 through its pointer.
                want = [201, 1000 * source + thread, BYTES, size]
                assert seen[4 * thread : 4 * thread + 4] == want, (rank, thread, seen[:8])
    for comm, *_ in parts:
        comm.check()
    # More bytes than the windows have: the engine refuses them. The put is on its way by then; the
    # wait and the flush behind it end, and say so to every thread.
    for seen in run(parts, BYTES + 4):
        assert seen[::4] == [100] * THREADS, seen[:8]
    said = []
    for comm, *_ in parts:
        try:
            comm.synchronize()
        except ringdove.Error as error:
            said.append(str(error))
    assert len(said) == size, said
    assert any(str(BYTES + 4) in text for text in said), said
    print("right")


if __name__ == "__main__":
    main()
