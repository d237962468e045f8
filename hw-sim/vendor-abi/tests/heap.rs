//! Device `malloc` and `free`: what kernels allocate lasts, is bounded, and belongs to them alone.

mod common;

use common::{context, device_memory, kernel, launch, on_machine};
use cudarc::driver::sys;
use std::ptr::null_mut;

/// `take(slots, bytes)`: each thread stores a pointer of `malloc(bytes)` in its slot and, if it got
/// one, its number in the first and in the last word there. `give(slots)`: each thread frees what
/// its slot holds. `read(slots, out, bytes)`: each thread copies the last word.
const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b64 r) malloc (.param .b64 bytes);
.extern .func free (.param .b64 address);
.visible .entry take(.param .u64 slots, .param .u64 bytes) {
    .param .b64 a; .param .b64 b;
    .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %rd<9>;
    ld.param.u64 %rd0, [slots]; ld.param.u64 %rd1, [bytes];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mad.wide.u32 %rd2, %r4, 8, %rd0;
    st.param.b64 [a], %rd1;
    call.uni (b), malloc, (a);
    ld.param.b64 %rd3, [b];
    st.u64 [%rd2], %rd3;
    setp.eq.u64 %p, %rd3, 0;
    @%p bra end;
    st.u32 [%rd3], %r4;
    add.u64 %rd4, %rd3, %rd1;
    st.u32 [%rd4+-4], %r4;
end: ret;
}
.visible .entry give(.param .u64 slots) {
    .param .b64 a;
    .reg .b32 %r<6>; .reg .b64 %rd<5>;
    ld.param.u64 %rd0, [slots];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mad.wide.u32 %rd2, %r4, 8, %rd0;
    ld.u64 %rd3, [%rd2];
    st.param.b64 [a], %rd3;
    call.uni free, (a);
    ret;
}
.visible .entry read(.param .u64 slots, .param .u64 out, .param .u64 bytes) {
    .reg .b32 %r<6>; .reg .b64 %rd<9>;
    ld.param.u64 %rd0, [slots]; ld.param.u64 %rd1, [out]; ld.param.u64 %rd5, [bytes];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    mad.lo.u32 %r4, %r2, %r3, %r1;
    mad.wide.u32 %rd2, %r4, 8, %rd0;
    mad.wide.u32 %rd3, %r4, 4, %rd1;
    ld.u64 %rd4, [%rd2];
    add.u64 %rd4, %rd4, %rd5;
    ld.u32 %r5, [%rd4+-4];
    st.u32 [%rd3], %r5;
    ret;
}";

const HEAP: sys::CUlimit = sys::CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE;

/// Slots in device memory.
struct Slots {
    address: u64,
    count: usize,
}

impl Slots {
    fn new(count: usize) -> Self {
        Self { address: device_memory(8 * count), count }
    }

    /// Runs a kernel of `PTX` with one thread for each slot, and waits.
    fn run(&self, name: &str, more: &[u64]) -> sys::CUresult {
        let threads = self.count.min(64) as u32;
        let parameters = [&[self.address], more].concat();
        let function = kernel(PTX, name);
        let grid = self.count as u32 / threads;
        let launched = launch(function, grid, threads, null_mut(), &parameters);
        assert_eq!(launched as u32, 0, "{name}");
        // SAFETY: it takes nothing.
        unsafe { sys::cuCtxSynchronize() }
    }

    fn get(&self) -> Vec<u64> {
        let mut seen = vec![0u64; self.count];
        ok!(cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), self.address, 8 * self.count));
        seen
    }

    fn set(&self, values: &[u64]) {
        ok!(cuMemcpyHtoD_v2(self.address, values.as_ptr().cast(), 8 * values.len()));
    }
}

fn done(code: sys::CUresult) {
    assert_eq!(code as u32, 0, "{code:?}");
}

fn heap_limit() -> usize {
    let mut bytes = 0;
    ok!(cuCtxGetLimit(&mut bytes, HEAP));
    bytes
}

fn free_memory() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    free
}

#[test]
fn what_a_kernel_allocates_is_there_for_later_ones() {
    on_machine("what_a_kernel_allocates_is_there_for_later_ones", "pcie4", || {
        context(0);
        let (slots, count, bytes) = (Slots::new(512), 512, 100u64);
        let out = device_memory(4 * count);
        for round in 0..3 {
            done(slots.run("take", &[bytes]));
            let mut pointers = slots.get();
            assert!(pointers.iter().all(|p| *p != 0 && p.is_multiple_of(16)), "round {round}");
            pointers.sort_unstable();
            assert!(pointers.windows(2).all(|pair| pair[1] - pair[0] >= bytes));
            done(slots.run("read", &[out, bytes]));
            let mut seen = vec![0u32; count];
            ok!(cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), out, 4 * count));
            assert!(seen.iter().enumerate().all(|(index, seen)| *seen == index as u32));
            done(slots.run("give", &[]));
        }
        slots.set(&[0; 512]);
        done(slots.run("give", &[]));
    });
}

#[test]
fn a_full_heap_gives_null_and_its_size_is_the_programs() {
    on_machine("a_full_heap_gives_null_and_its_size_is_the_programs", "pcie4", || {
        context(0);
        assert_eq!(heap_limit(), 8 << 20);
        ok!(cuCtxSetLimit(HEAP, 64 << 10));
        assert_eq!(heap_limit(), 64 << 10);
        let slots = Slots::new(128);
        let free = free_memory();
        // 1 KiB and the gap behind it: 63 pieces fit into 64 KiB.
        done(slots.run("take", &[1024]));
        assert_eq!(free_memory(), free - (64 << 10));
        let got = slots.get().iter().filter(|pointer| **pointer != 0).count();
        assert_eq!(got, 63);
        done(slots.run("give", &[]));
        done(slots.run("take", &[1024]));
        assert_eq!(slots.get().iter().filter(|pointer| **pointer != 0).count(), 63, "as before");
        done(slots.run("give", &[]));
        for bytes in [0, 1 << 20, u64::MAX, u64::MAX - 20] {
            done(slots.run("take", &[bytes]));
            assert_eq!(slots.get(), [0; 128], "{bytes} bytes");
        }
        refused!(CUDA_ERROR_INVALID_VALUE: cuCtxSetLimit(HEAP, 1 << 20));
        ok!(cuCtxSetLimit(sys::CUlimit::CU_LIMIT_STACK_SIZE, 4096));
        // Another context has another heap.
        context(1);
        assert_eq!(heap_limit(), 8 << 20);
        // The heap goes with its context.
        ok!(cuDevicePrimaryCtxReset_v2(0));
        context(0);
        assert_eq!(heap_limit(), 8 << 20);
        assert!(free_memory() >= free);
    });
}

/// A kernel that must fail, and what its report says.
fn faulty(test: &'static str, body: fn(), words: &[&str]) {
    let report = on_machine(test, "pcie4", body);
    let inside = common::is_inside(test);
    for word in words {
        assert!(inside || report.contains(word), "the report lacks {word:?}:\n{report}");
    }
}

#[test]
fn a_free_of_what_is_not_mallocs_is_a_fault() {
    let body = || {
        for (device, twice) in [(0, true), (1, false)] {
            context(device);
            let slots = Slots::new(32);
            if twice {
                done(slots.run("take", &[64]));
                done(slots.run("give", &[]));
            } else {
                slots.set(&[device_memory(64); 32]);
            }
            assert_eq!(slots.run("give", &[]), sys::CUresult::CUDA_ERROR_LAUNCH_FAILED);
        }
    };
    faulty(
        "a_free_of_what_is_not_mallocs_is_a_fault",
        body,
        &["InvalidFree", "kernel give", "call.uni free"],
    );
}

#[test]
fn accesses_past_a_piece_and_after_its_end_are_faults() {
    let body = || {
        let illegal = sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        for (device, after_free) in [(0, true), (1, false)] {
            context(device);
            let (slots, out) = (Slots::new(32), device_memory(128));
            done(slots.run("take", &[64]));
            if after_free {
                done(slots.run("give", &[]));
            }
            let bytes = if after_free { 64 } else { 68 };
            assert_eq!(slots.run("read", &[out, bytes]), illegal, "after free: {after_free}");
        }
    };
    let test = "accesses_past_a_piece_and_after_its_end_are_faults";
    faulty(test, body, &["OutOfBounds", "kernel read"]);
}

#[test]
fn the_host_cannot_use_the_heap() {
    on_machine("the_host_cannot_use_the_heap", "pcie4", || {
        context(0);
        let (slots, other) = (Slots::new(32), device_memory(64));
        done(slots.run("take", &[64]));
        let piece = slots.get()[0];
        let (mut bytes, mut word) = ([0u8; 64], 0u64);
        let room = bytes.as_mut_ptr().cast();
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemcpyDtoH_v2(room, piece, 64));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemcpyDtoD_v2(other, piece, 64));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemsetD8_v2(piece, 0, 64));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFree_v2(piece));
        let kind = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        let room = (&raw mut word).cast();
        refused!(CUDA_ERROR_INVALID_VALUE: cuPointerGetAttribute(room, kind, piece));
        ok!(cuCtxSynchronize());
    });
}
