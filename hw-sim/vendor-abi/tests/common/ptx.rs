//! Kernels of the driver tests.

#![allow(dead_code, reason = "each test program uses a part of this")]

/// `c[i] = a[i] + b[i]` for `i < n`, f32.
pub const ADD: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u64 %rd4, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd5, %r4;
    setp.ge.u64 %p1, %rd5, %rd4;
    @%p1 bra DONE;
    shl.b64 %rd6, %rd5, 2;
    add.s64 %rd7, %rd1, %rd6;
    add.s64 %rd8, %rd2, %rd6;
    ld.global.f32 %f1, [%rd7];
    ld.global.f32 %f2, [%rd8];
    add.f32 %f3, %f1, %f2;
    add.s64 %rd7, %rd3, %rd6;
    st.global.f32 [%rd7], %f3;
DONE:
    ret;
}
";

/// `meet(mine, theirs, rounds)`: thread 0 counts `mine` up and waits until `theirs` has followed,
/// so that two of them go in step. `spin` does so without a pause, `meet` with one.
pub const MEET: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry meet(.param .u64 mine, .param .u64 theirs, .param .u64 rounds)
{
    .reg .pred %p<4>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<8>;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    ld.param.u64 %rd1, [mine];
    ld.param.u64 %rd2, [theirs];
    ld.param.u64 %rd3, [rounds];
    mov.u64 %rd4, 0;
ROUND:
    add.u64 %rd4, %rd4, 1;
    st.release.sys.global.u64 [%rd1], %rd4;
WAIT:
    ld.acquire.sys.global.u64 %rd5, [%rd2];
    setp.ge.u64 %p2, %rd5, %rd4;
    @%p2 bra MET;
    nanosleep.u32 100;
    bra WAIT;
MET:
    setp.lt.u64 %p3, %rd4, %rd3;
    @%p3 bra ROUND;
DONE:
    bar.sync 0;
    ret;
}
.visible .entry spin(.param .u64 mine, .param .u64 theirs, .param .u64 rounds)
{
    .reg .pred %p<4>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [mine];
    ld.param.u64 %rd2, [theirs];
    ld.param.u64 %rd3, [rounds];
    mov.u64 %rd4, 0;
ROUND:
    add.u64 %rd4, %rd4, 1;
    st.volatile.global.u64 [%rd1], %rd4;
WAIT:
    ld.volatile.global.u64 %rd5, [%rd2];
    setp.lt.u64 %p2, %rd5, %rd4;
    @%p2 bra WAIT;
    setp.lt.u64 %p3, %rd4, %rd3;
    @%p3 bra ROUND;
    ret;
}
";

/// `arrive(counter, blocks)`: each block counts itself and waits for all others: a grid barrier.
pub const ARRIVE: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry arrive(.param .u64 counter, .param .u64 blocks)
{
    .reg .pred %p<3>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<6>;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    ld.param.u64 %rd1, [counter];
    ld.param.u64 %rd2, [blocks];
    atom.global.add.u64 %rd3, [%rd1], 1;
WAIT:
    ld.volatile.global.u64 %rd4, [%rd1];
    setp.lt.u64 %p2, %rd4, %rd2;
    @%p2 bra WAIT;
DONE:
    bar.sync 0;
    ret;
}
";

/// `store(address, value)`: thread 0 stores a 32-bit word; `trip` traps.
pub const STORE: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 address, .param .u64 value)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [address];
    ld.param.u64 %rd2, [value];
    cvt.u32.u64 %r1, %rd2;
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry trip()
{
    trap;
}
";

/// A module with variables and shared memory.
pub const VARIABLES: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 table[4] = {1, 2, 3, 4};
.visible .const .align 8 .u64 pointer = generic(table);
.extern .shared .align 16 .b8 scratch[];
.visible .entry read(.param .u64 out)
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [out];
    ld.const.u64 %rd2, [pointer];
    ld.u32 %r1, [%rd2+8];
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry small() .maxntid 64, 1, 1
{
    .shared .align 4 .b8 buffer[1024];
    .reg .b32 %r<2>;
    mov.u32 %r1, buffer;
    st.shared.u32 [%r1], %r1;
    ret;
}
";

/// `count(address, value)`: adds to a 64-bit word.
pub const COUNT: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry count(.param .u64 address, .param .u64 value)
{
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [address];
    ld.param.u64 %rd2, [value];
    atom.global.sys.add.u64 %rd3, [%rd1], %rd2;
    ret;
}
";
