//! Streams, host functions and stream memory operations.

use super::call::{self, In, Out, driver_calls};
use super::code::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, Outcome, refuse};
use super::handles::Handle;
use super::state;
use hwsim_machine::command::Command;
use hwsim_machine::graph::{HostFunction, MemoryOperation as NodeOperation, Work};
use hwsim_machine::profile::MemoryOperations;
use hwsim_machine::stream::StreamKind;
use hwsim_machine::wait_value::{Condition, WaitValue, WriteValue};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_WAIT_VALUE_FLUSH`: remote writes are always flushed here.
const WAIT_FLUSH: c_uint = 1 << 30;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`: allowed, and ignored: a barrier is never wrong.
const WRITE_NO_BARRIER: c_uint = 1;

fn create(stream: Out<Handle>, flags: c_uint, priority: c_int) -> Outcome {
    let (driver, context) = state::current()?;
    stream.require()?;
    if flags & !NON_BLOCKING != 0 {
        return refuse(INVALID_VALUE, format!("stream flags {flags:#x}"));
    }
    let blocking = flags & NON_BLOCKING == 0;
    stream.set(driver.streams.add(context.create_stream(blocking, priority.clamp(-5, 0))))
}

fn destroy(stream: Handle) -> Outcome {
    // What is queued still runs: whoever drives the stream keeps it.
    state::driver()?.streams.remove(stream)?.abandon_capture();
    Ok(())
}

/// A wait or a write as `cuStreamBatchMemOp` and the single calls pass it.
#[derive(Clone, Copy)]
struct MemoryOperation {
    address: u64,
    value: u64,
    flags: c_uint,
    wide: bool,
}

impl MemoryOperation {
    fn check(&self) -> Outcome {
        if profile()? == MemoryOperations::None {
            return refuse(NOT_SUPPORTED, "stream memory operations: this driver has none");
        }
        let size = if self.wide { 8 } else { 4 };
        if !self.address.is_multiple_of(size) {
            return refuse(
                INVALID_VALUE,
                format!("{:#x} is not {size}-byte aligned", self.address),
            );
        }
        let memory = &state::driver()?.machine.memory;
        if memory.is_reserved(self.address, size) {
            return Ok(());
        }
        Ok(memory.check(self.address, size)?)
    }

    fn wait(self) -> Outcome<WaitValue> {
        self.check()?;
        let condition = match self.flags & !WAIT_FLUSH {
            0 => Condition::AtLeast,
            1 => Condition::Equal,
            2 => Condition::And,
            3 => Condition::Nor,
            flags => return refuse(INVALID_VALUE, format!("wait flags {flags:#x}")),
        };
        let Self { address, value, wide, .. } = self;
        Ok(WaitValue { address, value, condition, wide })
    }

    /// None for a write that is lost.
    fn write(self, own: usize) -> Outcome<Option<WriteValue>> {
        self.check()?;
        if self.flags & !WRITE_NO_BARRIER != 0 {
            return refuse(INVALID_VALUE, format!("write flags {:#x}", self.flags));
        }
        let Self { address, value, wide, .. } = self;
        let memory = &state::driver()?.machine.memory;
        let elsewhere = || {
            let gpu = memory.find(address).and_then(|found| found.kind.gpu());
            gpu.is_some_and(|gpu| gpu != own)
        };
        match profile()? {
            MemoryOperations::OwnDrop if elsewhere() => return Ok(None),
            MemoryOperations::OwnFail if elsewhere() => {
                return refuse(INVALID_VALUE, format!("{address:#x} is on another GPU"));
            }
            _ => {}
        }
        Ok(Some(WriteValue { address, value, wide }))
    }
}

/// The memory operations that this driver has.
fn profile() -> Outcome<MemoryOperations> {
    Ok(state::driver()?.machine.description.driver.memops)
}

fn wait(stream: Handle, operation: MemoryOperation) -> Outcome {
    let stream = state::stream(stream)?;
    stream.submit(Command::WaitValue(operation.wait()?));
    Ok(())
}

fn write(stream: Handle, operation: MemoryOperation) -> Outcome {
    let stream = state::stream(stream)?;
    if let Some(write) = operation.write(stream.context.gpu)? {
        stream.submit(Command::WriteValue(write));
    }
    Ok(())
}

/// `CUstreamBatchMemOpParams`: six words; the first holds the operation.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct BatchOperation {
    operation: u32,
    _pad: u32,
    address: u64,
    value: u64,
    flags: u32,
    _pad2: u32,
    _rest: [u64; 2],
}

const _: () = assert!(size_of::<BatchOperation>() == 48);

impl BatchOperation {
    /// Its bytes, as C has them.
    pub fn bytes(&self) -> [u8; 48] {
        let mut bytes = [0u8; 48];
        bytes[..4].copy_from_slice(&self.operation.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.value.to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.flags.to_ne_bytes());
        bytes
    }

    /// As a node of a graph has it, and as programs read it from there.
    pub fn of(operation: &NodeOperation) -> Self {
        let wide = |number: u32, wide: bool| if wide { number + 3 } else { number };
        match *operation {
            NodeOperation::Wait(wait) => {
                let flags = match wait.condition {
                    Condition::AtLeast => 0,
                    Condition::Equal => 1,
                    Condition::And => 2,
                    Condition::Nor => 3,
                };
                let WaitValue { address, value, .. } = wait;
                Self { operation: wide(1, wait.wide), address, value, flags, ..Self::default() }
            }
            NodeOperation::Write(write) => {
                let WriteValue { address, value, .. } = write;
                Self { operation: wide(2, write.wide), address, value, ..Self::default() }
            }
        }
    }
}

/// What a batch of memory operations does; `own` is the GPU of its stream.
pub(super) fn batch_of(
    own: usize,
    count: c_uint,
    operations: In<BatchOperation>,
    flags: c_uint,
) -> Outcome<Vec<NodeOperation>> {
    if count > 256 || flags != 0 {
        return refuse(
            INVALID_VALUE,
            format!("{count} operations (at most 256), flags {flags:#x}"),
        );
    }
    let operations: Vec<Option<NodeOperation>> = (0..count as usize)
        .map(|index| {
            let op = operations.at(index).get()?;
            let wide = matches!(op.operation, 4 | 5);
            let (address, flags) = (op.address, op.flags);
            let value = if wide { op.value } else { op.value & 0xffff_ffff };
            let operation = MemoryOperation { address, value, flags, wide };
            match op.operation {
                1 | 4 => Ok(Some(NodeOperation::Wait(operation.wait()?))),
                2 | 5 => Ok(operation.write(own)?.map(NodeOperation::Write)),
                // Flush of remote writes, memory barrier: this memory is always coherent.
                3 | 6 => Ok(None),
                number => refuse(INVALID_VALUE, format!("memory operation {number}")),
            }
        })
        .collect::<Outcome<_>>()?;
    Ok(operations.into_iter().flatten().collect())
}

fn batch(stream: Handle, count: c_uint, operations: In<BatchOperation>, flags: c_uint) -> Outcome {
    let stream = state::stream(stream)?;
    let operations = batch_of(stream.context.gpu, count, operations, flags)?;
    if stream.is_captured() {
        stream.note(Work::Memory(operations));
        return Ok(());
    }
    for operation in operations {
        stream.submit(match operation {
            NodeOperation::Wait(wait) => Command::WaitValue(wait),
            NodeOperation::Write(write) => Command::WriteValue(write),
        });
    }
    Ok(())
}

/// A host function and its argument.
struct Callee<F> {
    function: F,
    argument: *mut c_void,
}

// SAFETY: the program hands function and argument to the driver to be used on another thread; that
// is what the call is for.
unsafe impl<F> Send for Callee<F> {}
// SAFETY: as above; the driver calls it from one thread at a time.
unsafe impl<F> Sync for Callee<F> {}

/// `CUhostFn`
pub(super) type Host = extern "C" fn(*mut c_void);

/// A host function as streams and graphs call it: not at all where its context has failed.
pub(super) fn host_function(function: Host, argument: *mut c_void) -> HostFunction {
    let identity = [function as usize as u64, argument as u64];
    let host = Callee { function, argument };
    let call = move |outcome: hwsim_machine::error::Result<()>| {
        let host = &host;
        if outcome.is_ok() {
            call::host_function(|| (host.function)(host.argument));
        }
    };
    HostFunction { call: Arc::new(call), identity }
}

type Callback = extern "C" fn(Handle, u32, *mut c_void);

driver_calls! {
    fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) {
        create(stream, flags, priority)
    }

    fn cuStreamDestroy(stream: Handle) { destroy(stream) }
    fn cuStreamDestroy_v2(stream: Handle) { destroy(stream) }

    #[per_thread(cuStreamSynchronize_ptsz)]
    fn cuStreamSynchronize(stream: Handle) {
        let stream = state::stream(stream)?;
        stream.refuse_if_captured()?;
        stream.wait_idle();
        Ok(stream.context.check()?)
    }

    #[per_thread(cuStreamQuery_ptsz)]
    fn cuStreamQuery(stream: Handle) {
        let stream = state::stream(stream)?;
        stream.refuse_if_captured()?;
        if stream.is_idle() { Ok(stream.context.check()?) } else { Err(NOT_READY.into()) }
    }

    #[per_thread(cuStreamGetFlags_ptsz)]
    fn cuStreamGetFlags(stream: Handle, flags: Out<c_uint>) {
        let kind = state::stream(stream)?.kind;
        flags.set(if kind == StreamKind::NonBlocking { NON_BLOCKING } else { 0 })
    }

    #[per_thread(cuStreamGetPriority_ptsz)]
    fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>) {
        priority.set(state::stream(stream)?.priority)
    }

    #[per_thread(cuStreamGetId_ptsz)]
    fn cuStreamGetId(stream: Handle, id: Out<u64>) {
        id.set(state::stream(stream)?.id)
    }

    #[per_thread(cuStreamGetCtx_ptsz)]
    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) {
        let (driver, stream) = (state::driver()?, state::stream(stream)?);
        match driver.contexts.handle_where(|context| context.id == stream.context.id) {
            Some(handle) => context.set(handle),
            None => Err(INVALID_HANDLE.into()),
        }
    }

    #[per_thread(cuStreamCopyAttributes_ptsz)]
    fn cuStreamCopyAttributes(to: Handle, from: Handle) {
        state::stream(to)?;
        state::stream(from).map(drop)
    }

    #[per_thread(cuStreamAttachMemAsync_ptsz)]
    fn cuStreamAttachMemAsync(
        stream: Handle,
        address: u64,
        _length: usize,
        _flags: c_uint,
    ) {
        // Managed memory is reachable from everywhere at all times.
        state::stream(stream)?.refuse_if_captured()?;
        Ok(state::driver()?.machine.memory.check(address, 1)?)
    }

    #[per_thread(cuLaunchHostFunc_ptsz)]
    fn cuLaunchHostFunc(
        stream: Handle,
        function: Option<Host>,
        argument: *mut c_void,
    ) {
        let stream = state::stream(stream)?;
        let Some(function) = function else { return Err(INVALID_VALUE.into()) };
        let host = host_function(function, argument);
        if stream.is_captured() {
            stream.note(Work::Host(host));
        } else {
            stream.submit(Command::HostCall(host.call));
        }
        Ok(())
    }

    #[per_thread(cuStreamAddCallback_ptsz)]
    fn cuStreamAddCallback(
        stream: Handle,
        callback: Option<Callback>,
        argument: *mut c_void,
        flags: c_uint,
    ) {
        let (handle, stream) = (stream, state::stream(stream)?);
        let Some(function) = callback.filter(|_| flags == 0) else {
            return Err(INVALID_VALUE.into());
        };
        // A callback knows its stream, which a graph does not have.
        stream.refuse_if_captured()?;
        let host = Callee { function, argument };
        stream.submit(Command::HostCall(Arc::new(move |outcome| {
            let host = &host;
            let code = outcome.map_or_else(|error| super::code::Failure::from(error).code, |()| 0);
            call::host_function(|| (host.function)(handle, code, host.argument));
        })));
        Ok(())
    }

    #[per_thread(cuStreamWaitValue32_ptsz)]
    fn cuStreamWaitValue32(
        stream: Handle, address: u64, value: u32, flags: c_uint,
    ) {
        wait(stream, MemoryOperation { address, value: value.into(), flags, wide: false })
    }

    #[per_thread(cuStreamWaitValue32_v2_ptsz)]
    fn cuStreamWaitValue32_v2(
        stream: Handle, address: u64, value: u32, flags: c_uint,
    ) {
        wait(stream, MemoryOperation { address, value: value.into(), flags, wide: false })
    }

    #[per_thread(cuStreamWaitValue64_ptsz)]
    fn cuStreamWaitValue64(
        stream: Handle, address: u64, value: u64, flags: c_uint,
    ) {
        wait(stream, MemoryOperation { address, value, flags, wide: true })
    }

    #[per_thread(cuStreamWaitValue64_v2_ptsz)]
    fn cuStreamWaitValue64_v2(
        stream: Handle, address: u64, value: u64, flags: c_uint,
    ) {
        wait(stream, MemoryOperation { address, value, flags, wide: true })
    }

    #[per_thread(cuStreamWriteValue32_ptsz)]
    fn cuStreamWriteValue32(
        stream: Handle, address: u64, value: u32, flags: c_uint,
    ) {
        write(stream, MemoryOperation { address, value: value.into(), flags, wide: false })
    }

    #[per_thread(cuStreamWriteValue32_v2_ptsz)]
    fn cuStreamWriteValue32_v2(
        stream: Handle, address: u64, value: u32, flags: c_uint,
    ) {
        write(stream, MemoryOperation { address, value: value.into(), flags, wide: false })
    }

    #[per_thread(cuStreamWriteValue64_ptsz)]
    fn cuStreamWriteValue64(
        stream: Handle, address: u64, value: u64, flags: c_uint,
    ) {
        write(stream, MemoryOperation { address, value, flags, wide: true })
    }

    #[per_thread(cuStreamWriteValue64_v2_ptsz)]
    fn cuStreamWriteValue64_v2(
        stream: Handle, address: u64, value: u64, flags: c_uint,
    ) {
        write(stream, MemoryOperation { address, value, flags, wide: true })
    }

    #[per_thread(cuStreamBatchMemOp_ptsz)]
    fn cuStreamBatchMemOp(
        stream: Handle, count: c_uint, operations: In<BatchOperation>, flags: c_uint,
    ) {
        batch(stream, count, operations, flags)
    }

    #[per_thread(cuStreamBatchMemOp_v2_ptsz)]
    fn cuStreamBatchMemOp_v2(
        stream: Handle, count: c_uint, operations: In<BatchOperation>, flags: c_uint,
    ) {
        batch(stream, count, operations, flags)
    }
}
