//! How far kernels can touch device allocations: to the byte, or as far as on real GPUs.

mod common;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, device_memory, is_inside, kernel, launch, run_again};
use cudarc::driver::sys;
use std::ptr::null_mut;

const MIB: u64 = 1 << 20;

fn in_both_modes(test: &str) -> bool {
    if is_inside(test) {
        return true;
    }
    for value in ["0", "1"] {
        let output = run_again(test, "dgx-a100", &[("HWSIM_ROUND_ALLOCATIONS", value)]);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && out.contains("1 passed"), "{value}:\n{out}\n{err}");
    }
    false
}

fn rounds() -> bool {
    std::env::var("HWSIM_ROUND_ALLOCATIONS").is_ok_and(|value| value == "1")
}

#[test]
fn kernels_reach_the_slack_of_an_allocation_where_it_is_given() {
    if !in_both_modes("kernels_reach_the_slack_of_an_allocation_where_it_is_given") {
        return;
    }
    // Bytes, and how far a kernel gets with real rounding. Each on a GPU of its own, for a fault is
    // for good.
    for (device, (bytes, reach)) in
        [(8, 512), (512, 512), (516, 1024), (3 * MIB + 4, 4 * MIB)].into_iter().enumerate()
    {
        context(device as i32);
        let store = kernel(ptx::STORE, "store");
        let memory = device_memory(bytes as usize);
        let write = |offset: u64| {
            assert_eq!(launch(store, 1, 1, null_mut(), &[memory + offset, 1]) as u32, 0);
            // SAFETY: it takes nothing.
            unsafe { sys::cuCtxSynchronize() as u32 }
        };
        let reach = if rounds() { reach } else { bytes };
        assert_eq!(write(reach - 4), 0, "{bytes} bytes, offset {}", reach - 4);
        // The host's calls know what was asked for.
        let (mut base, mut size) = (0, 0);
        ok!(cuMemGetAddressRange_v2(&mut base, &mut size, memory));
        assert_eq!((base, size as u64), (memory, bytes));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemsetD8_v2(memory, 0, bytes as usize + 1));
        assert_eq!(write(reach.next_multiple_of(4)), 700, "{bytes} bytes, past {reach}");
    }
}

#[test]
fn large_allocations_take_whole_pages_and_give_them_back() {
    if !in_both_modes("large_allocations_take_whole_pages_and_give_them_back") {
        return;
    }
    context(0);
    let free = || {
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        free as u64
    };
    let before = free();
    let memory = device_memory((3 * MIB) as usize);
    assert_eq!(before - free(), if rounds() { 4 * MIB } else { 3 * MIB });
    ok!(cuMemFree_v2(memory));
    assert_eq!(free(), before);
}
