//! Driver profiles: context locks, hardware queues, launch queues. Each test shows that a call or a
//! kernel waits where a real driver may let it wait, and that it does not without the key.

mod common;
#[path = "common/profile.rs"]
mod profile;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, device_memory, eventually, kernel, launch, pinned, stream};
use cudarc::driver::sys;
use profile::{Call, Case, Waiting, address, has_key, with_keys, word};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

type DriverCall = Box<dyn FnOnce() + Send>;

/// A draining call that a kernel waits behind hangs on hardware; here it must not pass unseen.
#[test]
fn calls_that_drain_wait_for_kernels_and_hold_the_lock() {
    const NAME: &str = "calls_that_drain_wait_for_kernels_and_hold_the_lock";
    let watchdog = [("HWSIM_WATCHDOG", "0.1")];
    let said = with_keys(NAME, "pcie4", &[("context-lock=on", &watchdog)], || {
        let peer = context(1) as usize;
        context(0);
        let waiting = Waiting::new();
        let page = vec![0u8; 8192].leak().as_ptr() as u64;
        let page = page.next_multiple_of(4096);
        let (device, host) = (device_memory(64), pinned(64) as u64);
        let calls: Vec<(&str, DriverCall)> = vec![
            ("cuMemAlloc", Box::new(|| _ = device_memory(64))),
            ("cuMemFree", Box::new(move || ok!(cuMemFree_v2(device)))),
            ("cuMemHostAlloc", Box::new(|| _ = pinned(64))),
            ("cuMemFreeHost", Box::new(move || ok!(cuMemFreeHost(host as *mut _)))),
            (
                "cuMemHostRegister",
                Box::new(move || {
                    ok!(cuMemHostRegister_v2(page as *mut _, 64, 0));
                }),
            ),
            ("cuMemHostUnregister", Box::new(move || ok!(cuMemHostUnregister(page as *mut _)))),
            ("cuStreamCreate", Box::new(|| _ = stream())),
            ("cuModuleLoadData", Box::new(|| _ = kernel(ptx::ADD, "add"))),
            (
                "cuCtxEnablePeerAccess",
                Box::new(move || {
                    ok!(cuCtxEnablePeerAccess(peer as sys::CUcontext, 0));
                }),
            ),
        ];
        let (from, to) = (device_memory_elsewhere(), device_memory_elsewhere());
        for (name, body) in calls {
            waiting.start();
            let call = Call::start(0, body);
            call.must_block(name);
            let copy = Call::start(0, move || {
                ok!(cuMemcpyDtoDAsync_v2(to, from, 8, null_mut()));
            });
            copy.must_block("a copy behind a call that drains");
            waiting.release();
            call.must_return(name);
            copy.must_return("the copy");
        }
    });
    if let Some(said) = said.first() {
        assert!(said.contains("cuMemAlloc_v2 has waited"), "{said}");
        let head = "commands done, whose head is a kernel: kernel meet, 1 blocks";
        assert!(said.contains(head), "{said}");
        assert!(said.contains("has waited") && said.contains("in cuMemAlloc_v2"), "{said}");
    }
}

/// Memory of GPU 2, whose context nobody drains.
fn device_memory_elsewhere() -> u64 {
    let memory = std::thread::spawn(|| {
        context(2);
        device_memory(64)
    });
    memory.join().unwrap()
}

/// If these drained, no program could keep a GPU busy.
#[test]
fn calls_that_do_not_drain_go_on_beside_a_kernel() {
    const NAME: &str = "calls_that_do_not_drain_go_on_beside_a_kernel";
    with_keys(NAME, "pcie4", &[("context-lock=on", &[])], || {
        context(0);
        let (waiting, other) = (Waiting::new(), Waiting::new());
        let (queue, flag, memory) = (stream() as usize, word(), device_memory(64));
        let mut event = null_mut();
        ok!(cuEventCreate(&mut event, 2));
        waiting.start();
        let event = event as usize;
        let calls = Call::start(0, move || {
            let (queue, event) = (queue as sys::CUstream, event as sys::CUevent);
            ok!(cuMemcpyDtoDAsync_v2(memory, memory + 32, 8, queue));
            ok!(cuStreamWriteValue64_v2(queue, address(flag), 1, 0));
            ok!(cuEventRecord(event, queue));
            ok!(cuEventSynchronize(event));
            ok!(cuStreamQuery(queue));
            let mut host = [0u8; 8];
            ok!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), memory, 8, queue));
        });
        calls.must_return("copies, writes, events and queries");
        other.start();
        other.release();
        ok!(cuStreamSynchronize(other.stream));
        waiting.release();
        ok!(cuCtxSynchronize());
    });
}

/// A communicator whose kernels are loaded by their first launch deadlocks on hardware.
#[test]
fn the_first_launch_of_a_lazily_loaded_kernel_drains() {
    const NAME: &str = "the_first_launch_of_a_lazily_loaded_kernel_drains";
    let body = || {
        context(0);
        let waiting = Waiting::new();
        let (store, target, queue) = (kernel(ptx::STORE, "store"), word(), stream());
        let mut loaded = sys::CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_MAX;
        ok!(cuFuncIsLoaded(&mut loaded, store));
        let eager = std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER");
        assert_eq!(loaded as u32, u32::from(eager));
        waiting.start();
        let (store, queue) = (store as usize, queue as usize);
        let first = Call::start(0, move || {
            let (store, queue) = (store as sys::CUfunction, queue as sys::CUstream);
            assert_eq!(launch(store, 1, 1, queue, &[address(target), 7]) as u32, 0);
            ok!(cuStreamSynchronize(queue));
        });
        if !eager {
            first.must_block("the first launch");
            waiting.release();
        }
        first.must_return("the first launch");
        assert_eq!(target.load(Ordering::Acquire), 7);
        waiting.release();
        ok!(cuCtxSynchronize());
    };
    let eager = [("CUDA_MODULE_LOADING", "EAGER")];
    with_keys(NAME, "pcie4", &[("context-lock=on", &[]), ("context-lock=on", &eager)], body);
}

/// Memory operations may synchronise all GPUs that peer access joins; ranks of one process that
/// share a thread then wait for each other.
#[test]
fn mappings_drain_every_context_that_peer_access_joins() {
    const NAME: &str = "mappings_drain_every_context_that_peer_access_joins";
    with_keys(NAME, "pcie4", &[("context-lock=on", &[])], || {
        let far = context(2);
        context(1);
        ok!(cuCtxEnablePeerAccess(far, 0));
        context(0);
        let between = context(1);
        context(0);
        ok!(cuCtxEnablePeerAccess(between, 0));
        let waiting = Waiting::new();
        waiting.start();
        let alone = Call::start(3, || _ = device_memory(64));
        alone.must_return("an allocation on a GPU that is joined with none");
        let queue = Call::start(2, || _ = stream());
        queue.must_return("a call that changes no mapping, on a GPU that is joined");
        let joined = Call::start(2, || _ = device_memory(64));
        joined.must_block("an allocation on a GPU that is joined over another");
        waiting.release();
        joined.must_return("the allocation");
    });
}

/// A kernel with a command behind it, which waits for it and thereby stops their hardware queue.
fn stop_a_queue() -> Waiting {
    let waiting = Waiting::new();
    waiting.start();
    ok!(cuStreamWriteValue64_v2(waiting.stream, address(word()), 1, 0));
    waiting
}

/// A proxy whose copies stand behind a command that waits never makes them. If this fails, tests on
/// virtual hardware pass with an order of commands that hangs on an H100: all priorities share the
/// queues, a stream gets one when work comes to it, and a command that waits stops it.
#[test]
fn a_command_that_waits_stops_its_queue_for_every_stream() {
    const NAME: &str = "a_command_that_waits_stops_its_queue_for_every_stream";
    let body = || {
        context(0);
        // Made first, and before all: neither helps.
        let (mut urgent, flag, other) = (null_mut(), word(), word());
        ok!(cuStreamCreateWithPriority(&mut urgent, 1, -3));
        let second = stream();
        let stopped: Vec<_> = (0..2).map(|_| stop_a_queue()).collect();
        let streams = [urgent, second].map(|stream| stream as usize);
        if has_key("connections=2") && std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").is_err() {
            for stream in streams {
                let held = Call::start(0, move || {
                    let stream = stream as sys::CUstream;
                    ok!(cuStreamWriteValue64_v2(stream, address(flag), 1, 0));
                    ok!(cuStreamSynchronize(stream));
                });
                held.must_block("a stream behind another's command");
                assert_eq!(flag.load(Ordering::Acquire), 0);
            }
            // A queue of another context is another queue.
            let mut apart = null_mut();
            ok!(cuCtxCreate_v2(&mut apart, 0, 0));
            let beside = stream();
            ok!(cuStreamWriteValue64_v2(beside, address(other), 1, 0));
            ok!(cuStreamSynchronize(beside));
            assert_eq!(other.load(Ordering::Acquire), 1);
            context(0);
            stopped.iter().for_each(Waiting::release);
        }
        for stream in streams {
            ok!(cuStreamWriteValue64_v2(stream as sys::CUstream, address(flag), 2, 0));
            ok!(cuStreamSynchronize(stream as sys::CUstream));
        }
        assert_eq!(flag.load(Ordering::Acquire), 2);
        stopped.iter().for_each(Waiting::release);
        ok!(cuCtxSynchronize());
    };
    let watchdog = [("HWSIM_WATCHDOG", "0.1")];
    let variable = [("CUDA_DEVICE_MAX_CONNECTIONS", "32")];
    let cases: [Case; 4] = [
        ("connections=2", &watchdog),
        ("connections=2", &variable),
        // Those that stand still, and one for both others, one after the other.
        ("connections=3", &[]),
        ("connections=unlimited", &[]),
    ];
    if let Some(said) = with_keys(NAME, "pcie4", &cases, body).first() {
        assert!(said.contains("waits for its turn in its hardware queue (queue "), "{said}");
    }
}

/// Kernels of one queue that are independent run together: an H100 ran 128 of them. If this fails,
/// a program that works there hangs here.
#[test]
fn independent_kernels_of_one_queue_run_together() {
    const NAME: &str = "independent_kernels_of_one_queue_run_together";
    with_keys(NAME, "one-gpu", &[("connections=1", &[])], || {
        context(0);
        let (kernels, flag) = ((0..20).map(|_| Waiting::new()).collect::<Vec<_>>(), word());
        kernels.iter().for_each(Waiting::start);
        // And what waits for none of them, of whatever stream.
        let other = stream();
        ok!(cuStreamWriteValue64_v2(other, address(flag), 1, 0));
        ok!(cuStreamSynchronize(other));
        assert_eq!(flag.load(Ordering::Acquire), 1);
        assert!(kernels.iter().all(Waiting::runs));
        kernels.iter().for_each(Waiting::release);
        ok!(cuCtxSynchronize());
    });
}

/// An engine that copies between two places of pinned memory waits for its stream, in the call. If
/// this fails, a program that tries streams by such copies finds here what it does not find on an
/// H100: it refused ranks there.
#[test]
fn copies_between_pinned_memories_are_made_while_the_caller_waits() {
    const NAME: &str = "copies_between_pinned_memories_are_made_while_the_caller_waits";
    let cases: [Case; 2] = [("context-lock=on", &[]), ("context-lock=off", &[])];
    with_keys(NAME, "one-gpu", &cases, || {
        context(0);
        let (waiting, from, to, device) = (Waiting::new(), word(), word(), device_memory(8));
        let other = stream();
        from.store(7, Ordering::Release);
        waiting.start();
        let held = waiting.stream as usize;
        let copies = [address(to), address(from)];
        let call = Call::start(0, move || {
            ok!(cuMemcpyAsync(copies[0], copies[1], 8, held as sys::CUstream));
        });
        call.must_block("a copy between pinned memories, behind a kernel");
        // Nobody else waits, and copies to a device are made later.
        ok!(cuMemcpyAsync(device, copies[1], 8, other));
        ok!(cuStreamSynchronize(other));
        ok!(cuMemcpyAsync(device, copies[1], 8, held as sys::CUstream));
        assert_eq!(to.load(Ordering::Acquire), 0);
        waiting.release();
        call.must_return("the copy");
        assert_eq!(to.load(Ordering::Acquire), 7);
        ok!(cuCtxSynchronize());
    });
}

/// If this fails, a program with copies in a context of their own is said to be safe beside module
/// loads, which on an H100 stop the copies of all contexts of the process.
#[test]
fn module_loads_stop_calls_of_all_contexts() {
    const NAME: &str = "module_loads_stop_calls_of_all_contexts";
    with_keys(NAME, "pcie4", &[("context-lock=on", &[])], || {
        let (apart, here) = (context(1) as usize, context(0));
        let (waiting, flag) = (Waiting::new(), word());
        ok!(cuCtxSetCurrent(apart as sys::CUcontext));
        let beside = stream() as usize;
        ok!(cuCtxSetCurrent(here));
        waiting.start();
        let load = Call::start(0, || _ = kernel(ptx::ADD, "add"));
        load.must_block("a module load beside a kernel");
        let other = Call::start(1, move || {
            ok!(cuStreamWriteValue64_v2(beside as sys::CUstream, address(flag), 1, 0));
        });
        other.must_block("a call of another context, behind a module load");
        waiting.release();
        load.must_return("the module load");
        other.must_return("the call");
        ok!(cuCtxSynchronize());
    });
}

/// Order within a stream, over events and over the default stream must survive shared queues.
#[test]
fn work_that_waits_for_nothing_later_ends_in_one_queue() {
    const NAME: &str = "work_that_waits_for_nothing_later_ends_in_one_queue";
    with_keys(NAME, "pcie4", &[("connections=1,launch-queue=16,context-lock=on", &[])], || {
        context(0);
        let bytes = 1 << 20;
        let (a, b, flag) = (device_memory(bytes), device_memory(bytes), word());
        let streams: Vec<_> = (0..5).map(|_| stream()).collect();
        let mut event = null_mut();
        ok!(cuEventCreate(&mut event, 2));
        let mut expected = 0;
        for round in 0..60u8 {
            for queue in &streams {
                ok!(cuStreamWaitEvent(*queue, event, 0));
                ok!(cuMemsetD8Async(a, round, bytes, *queue));
                ok!(cuMemcpyDtoDAsync_v2(b, a, bytes, *queue));
                expected += 1;
                ok!(cuStreamWriteValue64_v2(*queue, address(flag), expected, 0));
                ok!(cuEventRecord(event, *queue));
            }
            ok!(cuMemsetD8Async(a, 0xff, bytes, null_mut()));
        }
        ok!(cuEventSynchronize(event));
        assert_eq!(flag.load(Ordering::Acquire), expected);
        ok!(cuCtxSynchronize());
        let mut host = vec![0u8; bytes];
        ok!(cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), b, bytes));
        assert!(host.iter().all(|byte| *byte == 59));
    });
}

extern "C" fn nothing(_: *mut std::ffi::c_void) {}

/// A caller that runs ahead is stopped inside of the driver, and takes others with it.
#[test]
fn a_full_launch_queue_blocks_its_caller_and_then_others() {
    const NAME: &str = "a_full_launch_queue_blocks_its_caller_and_then_others";
    let watchdog = [("HWSIM_WATCHDOG", "0.1")];
    let said = with_keys(NAME, "pcie4", &[("launch-queue=8,context-lock=on", &watchdog)], || {
        context(0);
        let (queue, other, gate, flag) = (stream() as usize, stream() as usize, word(), word());
        ok!(cuStreamWaitValue64_v2(queue as _, address(gate), 1, 0));
        for value in 1..8 {
            ok!(cuStreamWriteValue64_v2(queue as _, address(flag), value, 0));
        }
        // What an H100 does not count.
        let mut event = null_mut();
        ok!(cuEventCreate(&mut event, 2));
        for _ in 0..20 {
            ok!(cuEventRecord(event, queue as _));
            ok!(cuLaunchHostFunc(queue as _, Some(nothing), null_mut()));
        }
        let ahead = Call::start(0, move || {
            ok!(cuStreamWriteValue64_v2(queue as _, address(flag), 8, 0));
        });
        ahead.must_block("a command too many");
        let bystander = Call::start(0, move || {
            ok!(cuStreamWriteValue64_v2(other as _, address(flag), 100, 0));
        });
        bystander.must_block("a command of another stream");
        gate.store(1, Ordering::Release);
        ahead.must_return("the command");
        bystander.must_return("the other stream's");
        ok!(cuCtxSynchronize());
        eventually("all writes", || flag.load(Ordering::Acquire) >= 8);
    });
    if let Some(said) = said.first() {
        let words = "room in the launch queue of context 1 (GPU 0), which holds 8";
        assert!(said.contains(words), "{said}");
    }
}
