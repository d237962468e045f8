//! Cooperative launches: blocks of a grid that wait for each other, as CUDA's headers have them do.

mod common;

use common::{context, device_memory, kernel, launch, on_machine, stream};
use std::ptr::null_mut;

/// What nvcc makes of `slots[block]++; grid.sync(); seen[block] = slots[block + 1];`: the barrier
/// is that of `cooperative_groups`, in the workspace that the driver names in two registers.
const MEET: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry meet(.param .u64 slots, .param .u64 seen)
{
    .reg .pred %p<5>;
    .reg .b32 %r<14>;
    .reg .b64 %rd<12>;
    ld.param.u64 %rd7, [slots];
    ld.param.u64 %rd8, [seen];
    mov.u32 %r1, %envreg2;
    cvt.u64.u32 %rd1, %r1;
    mov.u32 %r2, %envreg1;
    cvt.u64.u32 %rd2, %r2;
    bfi.b64 %rd3, %rd2, %rd1, 32, 32;
    mov.u32 %r5, %tid.x;
    setp.ne.u32 %p2, %r5, 0;
    @%p2 bra DONE;
    setp.ne.s64 %p1, %rd3, 0;
    @%p1 bra GO;
    trap;
GO:
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd4, %r3, 4;
    add.s64 %rd5, %rd7, %rd4;
    ld.global.u32 %r6, [%rd5];
    add.u32 %r6, %r6, 1;
    st.global.u32 [%rd5], %r6;
    add.s64 %rd6, %rd3, 4;
    setp.eq.u32 %p3, %r3, 0;
    mov.u32 %r7, -2147483647;
    sub.s32 %r7, %r7, %r4;
    selp.b32 %r8, %r7, 1, %p3;
    atom.add.release.gpu.u32 %r9, [%rd6], %r8;
SPIN:
    ld.acquire.gpu.u32 %r10, [%rd6];
    xor.b32 %r11, %r10, %r9;
    setp.gt.s32 %p4, %r11, -1;
    @%p4 bra SPIN;
    add.u32 %r12, %r3, 1;
    rem.u32 %r12, %r12, %r4;
    mul.wide.u32 %rd9, %r12, 4;
    add.s64 %rd10, %rd7, %rd9;
    ld.global.u32 %r13, [%rd10];
    add.s64 %rd11, %rd8, %rd4;
    st.global.u32 [%rd11], %r13;
DONE:
    ret;
}
";

const BLOCKS: u32 = 8;

fn words(address: u64) -> [u32; BLOCKS as usize] {
    let mut words = [0; BLOCKS as usize];
    ok!(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), address, 4 * words.len()));
    words
}

/// Without a workspace compiled code traps; one that is not left as it was found hangs the second
/// launch; one for two streams lets their grids pass each other's barriers.
#[test]
fn a_cooperative_grid_passes_its_barrier_many_times() {
    on_machine("a_cooperative_grid_passes_its_barrier_many_times", "dgx1v", || {
        context(0);
        let meet = kernel(MEET, "meet");
        let grids = [stream(), stream()].map(|on| {
            let (slots, seen) = (device_memory(32), device_memory(32));
            ok!(cuMemsetD8_v2(slots, 0, 32));
            (on, slots, seen)
        });
        for _ in 0..3 {
            for (on, slots, seen) in &grids {
                let mut arguments =
                    [(&raw const *slots).cast_mut().cast(), (&raw const *seen).cast_mut().cast()];
                let list = arguments.as_mut_ptr();
                ok!(cuLaunchCooperativeKernel(meet, BLOCKS, 1, 1, 32, 1, 1, 0, *on, list));
            }
        }
        ok!(cuCtxSynchronize());
        for (_, slots, seen) in grids {
            assert_eq!((words(slots), words(seen)), ([3; BLOCKS as usize], [3; BLOCKS as usize]));
        }
    });
}

/// A barrier in a launch that is not cooperative cannot work: compiled code finds no workspace.
#[test]
fn an_ordinary_launch_has_no_workspace() {
    on_machine("an_ordinary_launch_has_no_workspace", "dgx1v", || {
        context(0);
        let meet = kernel(MEET, "meet");
        let (slots, seen) = (device_memory(32), device_memory(32));
        assert_eq!(launch(meet, BLOCKS, 32, null_mut(), &[slots, seen]) as u32, 0);
        refused!(CUDA_ERROR_LAUNCH_FAILED: cuCtxSynchronize());
    });
}
