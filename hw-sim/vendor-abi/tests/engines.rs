//! Device engines through the driver: what may be registered as I/O memory, and that a kernel's
//! stores to a ring move data with no thread of the program in between.

mod common;

use common::{context, device_memory, is_inside, kernel, pinned, run_again};
use cudarc::driver::sys;
use hwsim_machine::description::Description;
use hwsim_machine::engine::{Identity, identity, make_bar};
use ringdove_kernels::bar::{
    CONTROL_OFFSET, Command, Control, ERROR_OFFSET, ErrorCode, ErrorRecord, Lane, Peer,
    RING_OFFSET, Route, STATUS_OFFSET, Signal, State, Window,
};
use ringdove_kernels::descriptor::Descriptor;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PORTABLE: u32 = 1;
const DEVICE_MAP: u32 = 2;
const IO_MEMORY: u32 = 4;

/// Runs `body` on the machine `ark`, with BARs in a tree of the test's own, and with these faults.
fn on_ark(test: &str, faults: &str, body: fn()) {
    if is_inside(test) {
        return body();
    }
    let tree = tempfile::tempdir().unwrap();
    let machine = Description::builtin("ark").unwrap();
    for (index, engine) in machine.engines.iter().enumerate() {
        let folder = tree.path().join("bus/pci/devices").join(engine.bus_id.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        make_bar(&folder.join("resource0"), &identity(engine, 0, index)).unwrap();
    }
    let output = run_again(
        test,
        "ark",
        &[("SYSFS_PATH", tree.path().to_str().unwrap()), ("HWSIM_FAULTS", faults)],
    );
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

fn resource(engine: usize) -> (Identity, File) {
    let machine = Description::builtin("ark").unwrap();
    let tree = PathBuf::from(std::env::var_os("SYSFS_PATH").unwrap());
    let folder = tree.join("bus/pci/devices").join(machine.engines[engine].bus_id.to_string());
    let file = File::options().read(true).write(true).open(folder.join("resource0")).unwrap();
    (identity(&machine.engines[engine], 0, engine), file)
}

/// Maps a part of a file; never unmapped.
fn map(file: &File, offset: u64, bytes: u64) -> u64 {
    let (rights, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    // SAFETY: a mapping at an address of the kernel's choice touches no other.
    let mapped = unsafe {
        let null = std::ptr::null_mut();
        libc::mmap(null, bytes as usize, rights, libc::MAP_SHARED, fd, offset as i64)
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped as u64
}

fn word(address: u64) -> &'static AtomicU64 {
    // SAFETY: the tests' mappings and allocations are never unmapped, and aligned.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

fn store(address: u64, words: &[u64]) {
    for (index, value) in words.iter().enumerate() {
        word(address + 8 * index as u64).store(*value, Ordering::Release);
    }
}

fn until(what: &str, met: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !met() {
        assert!(Instant::now() < deadline, "waited 20 s for {what}");
        std::thread::yield_now();
    }
}

/// A channel of an engine, mapped, its ring registered.
fn channel(engine: usize, number: u64) -> (Identity, u64) {
    let (identity, file) = resource(engine);
    let start = identity.channels_offset + number * identity.channel_bytes;
    let base = map(&file, start, identity.channel_bytes);
    ok!(cuMemHostRegister_v2((base + RING_OFFSET) as *mut _, 16384, IO_MEMORY | DEVICE_MAP));
    assert_eq!(word(base + STATUS_OFFSET).load(Ordering::Acquire), State::Ready as u64);
    (identity, base)
}

#[test]
fn only_a_bar_is_io_memory() {
    on_ark("only_a_bar_is_io_memory", "", || {
        context(0);
        let (identity, file) = resource(3);
        let bar = map(&file, 0, identity.channels_offset + identity.channel_bytes);
        let ring = bar + identity.channels_offset + RING_OFFSET;
        let own = Box::leak(vec![0u64; 4096].into_boxed_slice()).as_mut_ptr();
        let io = IO_MEMORY | DEVICE_MAP;
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemHostRegister_v2(own.cast(), 4096, io));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemHostRegister_v2(ring as *mut _, 4096, DEVICE_MAP));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemHostRegister_v2(bar as *mut _, 4096, io));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemHostRegister_v2(ring as *mut _, 1 << 30, io));
        ok!(cuMemHostRegister_v2(ring as *mut _, 4096, io | PORTABLE));
        let mut address = 0;
        ok!(cuMemHostGetDevicePointer_v2(&mut address, ring as *mut _, 0));
        assert_eq!(address, ring);
        // The same channel by another mapping.
        let again = map(&file, identity.channels_offset, identity.channel_bytes) + RING_OFFSET;
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemHostRegister_v2(again as *mut _, 4096, io));
        ok!(cuMemHostUnregister(ring as *mut _));
        let state = word(ring - RING_OFFSET + STATUS_OFFSET).load(Ordering::Acquire);
        assert_eq!(state, State::Absent as u64, "nobody answers any more");
        ok!(cuMemHostRegister_v2(again as *mut _, 4096, io));
        refused!(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED: cuMemHostUnregister(ring as *mut _));
    });
}

/// Rings a doorbell, then waits for a signal: all by itself.
const RING_AND_WAIT: &str = r#"
.version 7.0
.target sm_70
.address_size 64
.visible .entry ring_and_wait(
    .param .u64 slot, .param .u64 word0, .param .u64 word1, .param .u64 signal, .param .u64 count
) {
    .reg .u64 %rd<8>;
    .reg .pred %p;
    ld.param.u64 %rd1, [slot];
    ld.param.u64 %rd2, [word0];
    ld.param.u64 %rd3, [word1];
    ld.param.u64 %rd4, [signal];
    ld.param.u64 %rd5, [count];
    fence.acq_rel.sys;
    st.relaxed.sys.global.u64 [%rd1], %rd2;
    st.relaxed.sys.global.u64 [%rd1+8], %rd3;
again:
    ld.acquire.sys.global.u64 %rd6, [%rd4];
    setp.lt.u64 %p, %rd6, %rd5;
    @%p bra again;
    ret;
}
"#;

/// Two channels of two engines that run, a lane and a route from the first to the second: the first
/// one's registers, its tail, the signals of arrival and completion, the target.
fn prepared(ring_log2: u64) -> (u64, u64, u64, u64) {
    let [(identity, a), (_, b)] = [channel(0, 0), channel(1, 2)];
    let (source, target) = (device_memory(1 << 20), device_memory(1 << 20));
    let tails = pinned(4096) as u64;
    let signals = device_memory(4096);
    let data = pattern();
    ok!(cuMemcpyHtoD_v2(source, data.as_ptr().cast(), data.len()));
    ok!(cuMemsetD8_v2(signals, 0, 4096));
    let enter = |base: u64, table: u64, bytes: &[u8]| {
        store(base + table, bytemuck::cast_slice(bytes));
    };
    let peer =
        |channel, link_address, generation| Peer { link_address, channel, generation, valid: 1 };
    let address = identity.link_address;
    enter(a, identity.peers_offset, bytemuck::bytes_of(&peer(2, address + 1, 22)));
    enter(b, identity.peers_offset, bytemuck::bytes_of(&peer(0, address, 11)));
    let lane = Lane { peer: 0, arrival_signal: 0, completion_address: signals + 8, valid: 1 };
    enter(a, identity.lanes_offset, bytemuck::bytes_of(&lane));
    let route = Route {
        source_base: source,
        source_length: 1 << 20,
        destination_length: 1 << 20,
        valid: 1,
        ..Route::default()
    };
    enter(a, identity.routes_offset, bytemuck::bytes_of(&route));
    let signal = Signal { address: signals, valid: 1, ..Signal::default() };
    enter(b, identity.signals_offset, bytemuck::bytes_of(&signal));
    let window = Window { base: target, length: 1 << 20, reserved: 0, valid: 1 };
    enter(b, identity.windows_offset, bytemuck::bytes_of(&window));
    for (base, generation, tail) in [(a, 11, tails), (b, 22, tails + 64)] {
        let control = Control {
            command: Command::Run as u64,
            ring_log2,
            tail_address: tail,
            abort_address: tail + 8,
            generation,
            rank: 0,
        };
        let words: &[u64] = bytemuck::cast_slice(bytemuck::bytes_of(&control));
        store(base + CONTROL_OFFSET + 8, &words[1..]);
        store(base + CONTROL_OFFSET, &words[..1]);
        let state = word(base + STATUS_OFFSET);
        until("the channel to run", || state.load(Ordering::Acquire) == State::Running as u64);
    }
    (a, tails, signals, target)
}

fn pattern() -> Vec<u8> {
    (0..1 << 20).map(|index| (index * 7 % 251) as u8).collect()
}

/// If this fails, a kernel needs a host thread to move its data.
#[test]
fn a_kernel_rings_and_is_answered() {
    on_ark("a_kernel_rings_and_is_answered", "", || {
        context(0);
        let (a, tails, signals, target) = prepared(4);
        let function = kernel(RING_AND_WAIT, "ring_and_wait");
        for position in 0..40u64 {
            let asked = Descriptor {
                route: 0,
                source_offset: 0,
                destination_offset: 0,
                length: 1 << 20,
                arrival: true,
                completion: true,
            };
            let words = asked.encode((position >> 4).is_multiple_of(2));
            let slot = a + RING_OFFSET + 16 * (position % 16);
            let mut parameters = [slot, words[0], words[1], signals, position + 1];
            let mut pointers: Vec<_> =
                parameters.iter_mut().map(|one| std::ptr::from_mut(one).cast()).collect();
            let (stream, extra) = (std::ptr::null_mut::<sys::CUstream_st>(), std::ptr::null_mut());
            let pointers = pointers.as_mut_ptr();
            ok!(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, extra));
            ok!(cuStreamSynchronize(stream));
        }
        let mut seen = vec![0u8; 1 << 20];
        ok!(cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), target, seen.len()));
        assert!(seen == pattern());
        assert_eq!(word(a + ERROR_OFFSET).load(Ordering::Acquire), 0);
        assert_eq!(word(tails).load(Ordering::Acquire), 40, "the tail went to pinned memory");
    });
}

/// If this fails, programs cannot be tried against engines that fail.
#[test]
fn faults_of_the_list_reach_the_engines() {
    on_ark(
        "faults_of_the_list_reach_the_engines",
        "hwsim0:delay=5,engine0:fetch-fault-after=0",
        || {
            context(0);
            let (a, tails, ..) = prepared(4);
            let asked = Descriptor {
                route: 0,
                source_offset: 64,
                destination_offset: 0,
                length: 1000,
                arrival: true,
                completion: false,
            };
            store(a + RING_OFFSET, &asked.encode(true));
            let error =
                |field: usize| word(a + ERROR_OFFSET + field as u64).load(Ordering::Acquire);
            until("the error record", || error(offset_of!(ErrorRecord, state)) == 1);
            assert_eq!(error(offset_of!(ErrorRecord, code)), ErrorCode::FetchFault as u64);
            until("the abort word", || word(tails + 8).load(Ordering::Acquire) == 1);
        },
    );
}

/// If this fails, a context that is gone leaves an engine that rings for nobody.
#[test]
fn a_destroyed_context_takes_its_channels_along() {
    on_ark("a_destroyed_context_takes_its_channels_along", "", || {
        ok!(cuInit(0));
        let mut context = std::ptr::null_mut();
        ok!(cuCtxCreate_v2(&mut context, 0, 2));
        let (_, base) = channel(2, 15);
        ok!(cuCtxDestroy_v2(context));
        let state = word(base + STATUS_OFFSET).load(Ordering::Acquire);
        assert_eq!(state, State::Absent as u64);
        ok!(cuCtxCreate_v2(&mut context, 0, 2));
        channel(2, 15);
    });
}
