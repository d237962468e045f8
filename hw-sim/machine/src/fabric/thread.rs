//! Host settings of threads that simulate hardware.

/// The time slice that such a thread asks for: the least that the kernel gives.
const SLICE_NS: u64 = 100_000;

/// Leaves signals to the program's own threads.
pub(crate) fn block_signals() {
    // SAFETY: the set is filled before it is used; only this thread's mask changes.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

/// Asks the host to let this thread run soon after each wake, and briefly: programs that spin on
/// memory until a message arrives would keep it waiting for a whole time slice. Where the kernel
/// does not know the wish, nothing changes.
pub(crate) fn ask_for_short_slices() {
    #[repr(C)]
    #[derive(Default)]
    struct Wish {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        /// The slice, ns, for threads of the normal kind (Linux 6.12).
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let wish = Wish { size: size_of::<Wish>() as u32, runtime: SLICE_NS, ..Wish::default() };
    // SAFETY: the structure is as the kernel has it, and outlives the call, which concerns this
    // thread alone.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wish, 0) };
}
