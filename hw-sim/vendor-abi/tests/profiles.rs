//! Driver profiles: what is refused, lost, late or out of room. Each test runs with a key and
//! without it, so that it fails where the key does nothing.

mod common;
#[path = "common/profile.rs"]
mod profile;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, device_memory, eventually, kernel, launch, stream};
use cudarc::driver::sys;
use profile::{Call, Waiting, address, has_key, small_machine, with_keys, word};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn read(address: u64) -> u32 {
    let mut seen = 0u32;
    ok!(cuMemcpyDtoH_v2((&raw mut seen).cast(), address, 4));
    seen
}

/// Signals to another GPU's memory by `cuStreamWriteValue` are lost from CUDA 13.1 on.
#[test]
fn memory_operations_reach_what_the_profile_allows() {
    const NAME: &str = "memory_operations_reach_what_the_profile_allows";
    let body = || {
        context(1);
        let far = device_memory(64);
        ok!(cuMemsetD32_v2(far, 0, 16));
        let peer = context(1);
        context(0);
        ok!(cuCtxEnablePeerAccess(peer, 0));
        let (queue, near, host) = (stream(), device_memory(64), word());
        let mut able = -1;
        let attribute =
            sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1;
        ok!(cuDeviceGetAttribute(&mut able, attribute, 0));
        assert_eq!(able, i32::from(!has_key("memops=none")));
        if has_key("memops=none") {
            refused!(CUDA_ERROR_NOT_SUPPORTED: cuStreamWriteValue64_v2(queue, near, 5, 0));
            refused!(CUDA_ERROR_NOT_SUPPORTED: cuStreamWaitValue64_v2(queue, near, 5, 0));
            return;
        }
        ok!(cuStreamWriteValue64_v2(queue, near, 5, 0));
        ok!(cuStreamWriteValue64_v2(queue, address(host), 5, 0));
        if has_key("memops=own-fail") {
            refused!(CUDA_ERROR_INVALID_VALUE: cuStreamWriteValue64_v2(queue, far, 5, 0));
        } else {
            ok!(cuStreamWriteValue64_v2(queue, far, 5, 0));
        }
        ok!(cuCtxSynchronize());
        let arrived = if has_key("memops=own") { 0 } else { 5 };
        assert_eq!((read(near), host.load(Ordering::Acquire), read(far)), (5, 5, arrived));
    };
    let keys = ["memops=none", "memops=own-fail", "memops=own-drop", "memops=all"];
    with_keys(NAME, "pcie4", &keys.map(|keys| (keys, &[][..])), body);
}

/// If this fails, tests of what a driver withholds run on a driver that gives it.
#[test]
fn what_the_profile_withholds_is_refused_and_attributes_say_so() {
    const NAME: &str = "what_the_profile_withholds_is_refused_and_attributes_say_so";
    use sys::CUdevice_attribute as Attribute;
    let body = || {
        context(0);
        let memory = device_memory(1 << 16);
        let is_there = |attribute| {
            let mut value = -1;
            ok!(cuDeviceGetAttribute(&mut value, attribute, 0));
            value == 1
        };
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        match has_key("ipc=off") {
            true => refused!(CUDA_ERROR_NOT_SUPPORTED: cuIpcGetMemHandle(&mut handle, memory)),
            false => ok!(cuIpcGetMemHandle(&mut handle, memory)),
        }
        let pools = !has_key("memory-pools=off");
        assert_eq!(is_there(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED), pools);
        let (mut pool, mut taken) = (null_mut(), 0);
        if pools {
            ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
            ok!(cuMemAllocAsync(&mut taken, 64, null_mut()));
        } else {
            refused!(CUDA_ERROR_NOT_SUPPORTED: cuDeviceGetDefaultMemPool(&mut pool, 0));
            refused!(CUDA_ERROR_NOT_SUPPORTED: cuMemAllocAsync(&mut taken, 64, null_mut()));
        }
        let exports = !has_key("dma-buf=off");
        assert_eq!(is_there(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED), exports);
        let kind = sys::CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let mut descriptor = -1i32;
        let descriptor = (&raw mut descriptor).cast();
        match exports {
            true => ok!(cuMemGetHandleForAddressRange(descriptor, memory, 1 << 16, kind, 0)),
            false => refused!(CUDA_ERROR_NOT_SUPPORTED:
                cuMemGetHandleForAddressRange(descriptor, memory, 1 << 16, kind, 0)),
        }
    };
    let keys = ["ipc=off", "dma-buf=off", "memory-pools=off", ""];
    with_keys(NAME, "pcie4", &keys.map(|keys| (keys, &[][..])), body);
}

/// Peers that are enabled do not reach pool memory; a kernel that does ends its context.
#[test]
fn memory_of_a_pool_is_reached_by_the_pools_rights() {
    const NAME: &str = "memory_of_a_pool_is_reached_by_the_pools_rights";
    let body = || {
        let first = context(0);
        let (mut granted, mut pool) = (0, null_mut());
        ok!(cuMemAllocAsync(&mut granted, 64, null_mut()));
        ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        let mut of: sys::CUmemoryPool = null_mut();
        let attribute = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
        ok!(cuPointerGetAttribute((&raw mut of).cast(), attribute, granted));
        assert_eq!(of, pool);
        if has_key("pools=own") {
            refused!(CUDA_ERROR_INVALID_VALUE: cuIpcGetMemHandle(&mut handle, granted));
        } else {
            ok!(cuIpcGetMemHandle(&mut handle, granted));
        }
        ok!(cuStreamSynchronize(null_mut()));
        context(1);
        ok!(cuCtxEnablePeerAccess(first, 0));
        let second = {
            let mut current = null_mut();
            ok!(cuCtxGetCurrent(&mut current));
            current
        };
        let mut own = 0;
        ok!(cuMemAlloc_v2(&mut own, 64));
        // A copy whose call does not name the contexts needs the right; one that does is none's.
        // SAFETY: both ends have 64 bytes, which live until the test's end.
        let copy = |to, from| unsafe { sys::cuMemcpyAsync(to, from, 64, null_mut()) };
        let denied = match has_key("pools=own") {
            true => sys::CUresult::CUDA_ERROR_INVALID_VALUE,
            false => sys::CUresult::CUDA_SUCCESS,
        };
        assert_eq!([copy(own, granted), copy(granted, own)], [denied; 2]);
        ok!(cuMemcpyPeerAsync(granted, first, own, second, 64, null_mut()));
        ok!(cuStreamSynchronize(null_mut()));
        let store = kernel(ptx::STORE, "store");
        let access = |flags| {
            let description = sys::CUmemAccessDesc { location: on_device(1), flags };
            ok!(cuMemPoolSetAccess(pool, &description, 1));
        };
        access(sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        assert_eq!(copy(granted, own), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(launch(store, 1, 1, null_mut(), &[granted, 7]) as u32, 0);
        ok!(cuCtxSynchronize());
        assert_eq!(read(granted), 7);
        access(sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE);
        assert_eq!(launch(store, 1, 1, null_mut(), &[granted, 8]) as u32, 0);
        if has_key("pools=own") {
            refused!(CUDA_ERROR_ILLEGAL_ADDRESS: cuCtxSynchronize());
        } else {
            ok!(cuCtxSynchronize());
        }
    };
    with_keys(NAME, "pcie4", &[("pools=own", &[]), ("pools=peer", &[])], body);
}

/// Without peer access, a pool's own rights let another GPU's kernels use what it gave out before
/// and gives out later. If not, programs with pools of several GPUs end in illegal addresses.
#[test]
fn rights_to_a_pool_need_no_peer_access() {
    const NAME: &str = "rights_to_a_pool_need_no_peer_access";
    let body = || {
        let first = context(0);
        // SAFETY: zeros are a value of this structure of C.
        let mut properties: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = on_device(0);
        let (mut default, mut own) = (null_mut(), null_mut());
        ok!(cuDeviceGetDefaultMemPool(&mut default, 0));
        ok!(cuMemPoolCreate(&mut own, &properties));
        for pool in [default, own] {
            ok!(cuCtxSetCurrent(first));
            let take = || {
                let mut address = 0;
                ok!(cuMemAllocFromPoolAsync(&mut address, 64, pool, null_mut()));
                address
            };
            let before = take();
            use sys::CUmemAccess_flags as Access;
            let may = || {
                let mut flags = Access::CU_MEM_ACCESS_FLAGS_PROT_READ;
                ok!(cuMemPoolGetAccess(&mut flags, pool, &mut on_device(1)));
                flags
            };
            assert_eq!(may(), Access::CU_MEM_ACCESS_FLAGS_PROT_NONE);
            let flags = Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
            let description = sys::CUmemAccessDesc { location: on_device(1), flags };
            ok!(cuMemPoolSetAccess(pool, &description, 1));
            assert_eq!(may(), flags);
            let after = take();
            ok!(cuCtxSynchronize());
            context(1);
            let store = kernel(ptx::STORE, "store");
            for address in [before, after] {
                assert_eq!(launch(store, 1, 1, null_mut(), &[address, 7]) as u32, 0);
                ok!(cuCtxSynchronize());
                assert_eq!(read(address), 7);
            }
        }
        // What was not granted stays closed.
        ok!(cuCtxSetCurrent(first));
        let mut alone = 0;
        ok!(cuMemAlloc_v2(&mut alone, 64));
        context(1);
        let store = kernel(ptx::STORE, "store");
        assert_eq!(launch(store, 1, 1, null_mut(), &[alone, 7]) as u32, 0);
        refused!(CUDA_ERROR_ILLEGAL_ADDRESS: cuCtxSynchronize());
    };
    with_keys(NAME, "pcie4", &[("pools=own", &[]), ("pools=peer", &[])], body);
}

/// A place in device memory.
fn on_device(id: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id }
}

/// A program that uploads and lets another stream read at once reads what was there before.
#[test]
fn pageable_uploads_land_late_for_who_does_not_wait() {
    const NAME: &str = "pageable_uploads_land_late_for_who_does_not_wait";
    let body = || {
        context(0);
        let (target, seen, queue) = (device_memory(64), word(), stream());
        ok!(cuMemsetD8_v2(target, 0, 64));
        ok!(cuCtxSynchronize());
        let source = [0x55u8; 64];
        ok!(cuMemcpyHtoD_v2(target, source.as_ptr().cast(), 64));
        let host = address(seen) as *mut std::ffi::c_void;
        ok!(cuMemcpyDtoHAsync_v2(host, target, 8, queue));
        ok!(cuStreamSynchronize(queue));
        let late = if has_key("lazy-dma") { 0 } else { 0x5555_5555_5555_5555 };
        assert_eq!(seen.load(Ordering::Acquire), late);
        // The default stream, which did the copy, has it in order.
        assert_eq!(read(target), 0x5555_5555);
    };
    with_keys(NAME, "one-gpu", &[("lazy-dma=500000", &[]), ("", &[])], body);
}

#[test]
fn io_memory_is_registered_for_whom_the_profile_says() {
    const NAME: &str = "io_memory_is_registered_for_whom_the_profile_says";
    let body = || {
        context(0);
        let page = vec![0u8; 8192].leak().as_mut_ptr();
        // No engine's ring either way: without the key it is refused for that.
        if has_key("iomemory=refused") {
            refused!(CUDA_ERROR_NOT_PERMITTED: cuMemHostRegister_v2(page.cast(), 4096, 4));
        } else {
            refused!(CUDA_ERROR_INVALID_VALUE: cuMemHostRegister_v2(page.cast(), 4096, 4));
        }
    };
    with_keys(NAME, "one-gpu", &[("iomemory=refused", &[]), ("iomemory=any", &[])], body);
}

/// A pair that grants access and loses writes must be found by who uses it, not by its users.
#[test]
fn a_broken_pair_loses_writes_and_no_other_does() {
    const NAME: &str = "a_broken_pair_loses_writes_and_no_other_does";
    let body = || {
        let far = context(0);
        let (by_kernel, by_copy, by_write) = (device_memory(64), device_memory(64), word_on_gpu());
        for target in [by_kernel, by_copy] {
            ok!(cuMemsetD32_v2(target, 0, 16));
        }
        ok!(cuCtxSynchronize());
        for (device, lost) in [(1, has_key("broken-peer=0-1")), (2, false)] {
            let here = context(device);
            let mut can = 0;
            ok!(cuDeviceCanAccessPeer(&mut can, device, 0));
            assert_eq!(can, 1);
            ok!(cuCtxEnablePeerAccess(far, 0));
            let source = device_memory(64);
            ok!(cuMemsetD32_v2(source, 9, 16));
            let store = kernel(ptx::STORE, "store");
            assert_eq!(launch(store, 1, 1, null_mut(), &[by_kernel, 9]) as u32, 0);
            ok!(cuMemcpyPeer(by_copy, far, source, here, 4));
            ok!(cuStreamWriteValue64_v2(null_mut(), by_write, 9, 0));
            ok!(cuCtxSynchronize());
            let expected = if lost { 0 } else { 9 };
            let seen = [read(by_kernel), read(by_copy), read(by_write)];
            assert_eq!(seen, [expected; 3], "from GPU {device}");
        }
    };
    with_keys(NAME, "pcie4", &[("broken-peer=0-1", &[]), ("broken-peer=none", &[])], body);
}

fn word_on_gpu() -> u64 {
    let memory = device_memory(64);
    ok!(cuMemsetD32_v2(memory, 0, 16));
    memory
}

#[test]
fn without_peers_no_gpu_reaches_another() {
    const NAME: &str = "without_peers_no_gpu_reaches_another";
    let body = || {
        let peer = context(1);
        context(0);
        let (mut can, reaches) = (-1, !has_key("no-peer=on"));
        ok!(cuDeviceCanAccessPeer(&mut can, 0, 1));
        assert_eq!(can, i32::from(reaches));
        if reaches {
            ok!(cuCtxEnablePeerAccess(peer, 0));
        } else {
            refused!(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: cuCtxEnablePeerAccess(peer, 0));
        }
    };
    with_keys(NAME, "pcie4", &[("no-peer=on", &[]), ("no-peer=off", &[])], body);
}

/// A timeout that begins before the first load must allow for it.
#[test]
fn the_first_load_takes_its_time_and_the_second_does_not() {
    const NAME: &str = "the_first_load_takes_its_time_and_the_second_does_not";
    with_keys(NAME, "one-gpu", &[("jit-delay=3000", &[])], || {
        context(0);
        let load = || {
            let started = Instant::now();
            kernel(ptx::STORE, "store");
            started.elapsed()
        };
        let (first, second) = (load(), load());
        assert!(first >= Duration::from_secs(3), "{first:?}");
        assert!(second < Duration::from_secs(3), "{second:?}");
    });
}

/// Two ranks that share a GPU hang where the second one's blocks never become resident.
#[test]
fn blocks_wait_for_those_of_earlier_kernels() {
    const NAME: &str = "blocks_wait_for_those_of_earlier_kernels";
    let body = || {
        context(0);
        let (wide, narrow) = (Waiting::new(), Waiting::new());
        // Three blocks of 672 threads fill a multiprocessor but for one warp; one is left over.
        wide.launch(7, 672);
        eventually("the wide kernel", || wide.runs());
        narrow.launch(1, 32);
        let queue = narrow.stream as usize;
        narrow.release();
        let end = Call::start(0, move || {
            ok!(cuStreamSynchronize(queue as sys::CUstream));
        });
        if has_key("resident-blocks=on") {
            end.must_block("a kernel behind one that does not fit");
            wide.release();
        }
        end.must_return("the narrow kernel");
        wide.release();
        ok!(cuCtxSynchronize());
    };
    let (_folder, machine) = small_machine();
    with_keys(NAME, &machine, &[("resident-blocks=on", &[]), ("resident-blocks=off", &[])], body);
}

/// A kernel that fills its GPU and waits for a copy within it waits for ever.
#[test]
fn local_copies_need_room_where_they_are_kernels() {
    const NAME: &str = "local_copies_need_room_where_they_are_kernels";
    let body = || {
        context(0);
        let (full, queue, memory) = (Waiting::new(), stream() as usize, device_memory(64));
        full.launch(4, 1024);
        eventually("the kernel", || full.runs());
        let host = address(word());
        let away = Call::start(0, move || {
            ok!(cuMemcpyAsync(host, memory, 8, queue as sys::CUstream));
            ok!(cuStreamSynchronize(queue as sys::CUstream));
        });
        away.must_return("a copy to the host");
        let within = Call::start(0, move || {
            ok!(cuMemcpyDtoDAsync_v2(memory + 32, memory, 8, queue as sys::CUstream));
            ok!(cuStreamSynchronize(queue as sys::CUstream));
        });
        if has_key("local-copies=kernels") {
            within.must_block("a copy on a GPU without room");
            full.release();
        }
        within.must_return("the copy");
        full.release();
        ok!(cuCtxSynchronize());
    };
    let (_folder, machine) = small_machine();
    with_keys(
        NAME,
        &machine,
        &[("local-copies=kernels", &[]), ("local-copies=engines", &[])],
        body,
    );
}

/// Kernels of two processes that wait for each other go on at the pace of the slices.
#[test]
fn kernels_of_two_processes_take_turns() {
    const NAME: &str = "kernels_of_two_processes_take_turns";
    const ROUNDS: u64 = 12;
    const SLICE: Duration = Duration::from_millis(40);
    if common::is_inside(NAME) {
        return play_one_of_two(ROUNDS);
    }
    let took = |keys: &str, extra: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let shared = folder.path().join("words");
        std::fs::write(&shared, [0; 4096]).unwrap();
        let shared = shared.display().to_string();
        let play = |rank: &'static str| {
            let mut variables = vec![
                ("HWSIM_DRIVER_PROFILE", "lenient"),
                ("HWSIM_DRIVER_KEYS", keys),
                ("HWSIM_FABRIC", &path),
                ("TEST_WORDS", &shared),
                ("TEST_RANK", rank),
            ];
            variables.extend(extra);
            common::run_again(NAME, "one-gpu", &variables)
        };
        let started = Instant::now();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| play("1"));
            for output in [play("0"), other.join().unwrap()] {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success() && text.contains("1 passed"), "{text}");
            }
        });
        started.elapsed()
    };
    // In its slice a kernel ends one round, begins the next, and waits for the other's slice.
    let sliced = took("time-slicing=40000", &[]);
    let least = SLICE * (ROUNDS as u32 - 2);
    assert!(sliced >= least, "{sliced:?}, and {ROUNDS} rounds take {least:?} at least");
    // Must end; how fast is not for a busy machine to promise.
    took("time-slicing=off", &[]);
    took("time-slicing=1000000", &[("CUDA_MPS_PIPE_DIRECTORY", "/tmp")]);
}

/// One of two processes whose kernels go in step over a file that both have registered.
fn play_one_of_two(rounds: u64) {
    let (path, rank) = (std::env::var("TEST_WORDS").unwrap(), std::env::var("TEST_RANK").unwrap());
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    use std::os::fd::AsRawFd;
    // SAFETY: a fresh mapping of a file of that size, which is never unmapped.
    let words = unsafe {
        let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        libc::mmap(null_mut(), 4096, protection, shared, file.as_raw_fd(), 0)
    };
    assert_ne!(words, libc::MAP_FAILED);
    context(0);
    ok!(cuMemHostRegister_v2(words, 4096, 0));
    let meet = kernel(ptx::MEET, "meet");
    let (mut mine, mut theirs) = (words as u64, words as u64 + 2048);
    if rank == "1" {
        std::mem::swap(&mut mine, &mut theirs);
    }
    let queue = stream();
    assert_eq!(launch(meet, 1, 32, queue, &[mine, theirs, rounds]) as u32, 0);
    ok!(cuStreamSynchronize(queue));
}
