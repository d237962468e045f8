//! The structures by which programs say what nodes do.

use crate::driver::call::{In, Out};
use crate::driver::code::{INVALID_CONTEXT, INVALID_VALUE, Outcome, refuse};
use crate::driver::handles::Handle;
use crate::driver::launch::{Parameters, plain_shape, prepare};
use crate::driver::state::GraphNode;
use crate::driver::stream::{BatchOperation, Host, batch_of, host_function};
use crate::driver::{copy, library, state};
use hwsim_machine::copy::Source;
use hwsim_machine::graph::{KernelLaunch, MemoryOperation, NodeId, Shape, Transfer3d, Work};
use hwsim_machine::transfer::{self, CopyAddress, Pattern, Planes, Rows};
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// What a structure says a node does.
pub(super) trait NodeParameters: Copy {
    /// The node's work.
    fn work(&self) -> Outcome<Work>;
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct KernelV1 {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    pointers: In<In<u8>>,
    extra: In<u64>,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`, and `_v3`, which is laid out alike.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Kernel {
    first: KernelV1,
    kernel: Handle,
    context: Handle,
}

/// One side of `CUDA_MEMCPY3D`; both are laid out alike.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Side {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    memory_type: c_uint,
    host: u64,
    device: u64,
    array: u64,
    _reserved: u64,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Copy3d {
    source: Side,
    destination: Side,
    width: usize,
    height: usize,
    depth: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Fill {
    destination: u64,
    pitch: usize,
    value: c_uint,
    element: c_uint,
    width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct HostCall {
    function: Option<Host>,
    argument: *mut c_void,
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Batch {
    context: Handle,
    count: c_uint,
    operations: In<BatchOperation>,
    flags: c_uint,
}

const _: () = assert!(size_of::<KernelV1>() == 56 && size_of::<Kernel>() == 72);
const _: () = assert!(size_of::<Copy3d>() == 200 && size_of::<Fill>() == 40);
const _: () = assert!(size_of::<HostCall>() == 16 && size_of::<Batch>() == 32);

/// Refuses a context that is none.
pub(super) fn require_context(handle: Handle) -> Outcome {
    match handle {
        0 => refuse(INVALID_VALUE, "a node of this kind needs a context"),
        handle if state::driver()?.contexts.find(handle).is_some() => Ok(()),
        handle => refuse(INVALID_CONTEXT, format!("context handle {handle:#x}")),
    }
}

impl NodeParameters for KernelV1 {
    fn work(&self) -> Outcome<Work> {
        let function = library::function(self.function)?;
        let Self { grid, block, shared_bytes, pointers, extra, .. } = *self;
        let shape = plain_shape(grid, block, shared_bytes);
        Ok(Work::Kernel(prepare(&function, shape, Parameters { pointers, extra })?))
    }
}

impl NodeParameters for Kernel {
    fn work(&self) -> Outcome<Work> {
        if self.first.function != 0 {
            return self.first.work();
        }
        let function = library::function_for(self.kernel, self.context)?;
        KernelV1 { function, ..self.first }.work()
    }
}

/// New work of a node: a kernel keeps the attributes that its parameters do not say.
pub(super) fn with_attributes(mut work: Work, node: &GraphNode) -> Outcome<Work> {
    if let (Work::Kernel(launch), Ok(Work::Kernel(before))) =
        (&mut work, node.graph.work(node.number))
    {
        launch.keep_attributes(&before)?;
    }
    Ok(work)
}

/// Memory that a program reads parameters from: it belongs to their node.
#[derive(Default)]
struct Kept {
    bytes: Vec<u128>,
    pointers: Vec<u64>,
}

static KEPT: Mutex<Option<HashMap<NodeId, Kept>>> = Mutex::new(None);

/// Keeps bytes for a program to read, with pointers to some of them, until the next time or until
/// the node goes.
fn keep(node: NodeId, bytes: &[u8], offsets: impl Iterator<Item = usize>) -> (u64, u64) {
    let mut words = vec![0u128; bytes.len().div_ceil(16)];
    for (word, part) in words.iter_mut().zip(bytes.chunks(16)) {
        let mut whole = [0u8; 16];
        whole[..part.len()].copy_from_slice(part);
        *word = u128::from_ne_bytes(whole);
    }
    let base = words.as_ptr() as u64;
    let kept = Kept { bytes: words, pointers: offsets.map(|at| base + at as u64).collect() };
    let addresses = (kept.bytes.as_ptr() as u64, kept.pointers.as_ptr() as u64);
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    all.get_or_insert_default().insert(node, kept);
    addresses
}

/// Keeps an array of handles for a program to read, as long as the node is there.
pub(super) fn keep_handles(node: NodeId, handles: &[Handle]) -> u64 {
    let bytes: Vec<u8> = handles.iter().flat_map(|handle| handle.to_ne_bytes()).collect();
    keep(node, &bytes, std::iter::empty()).0
}

/// The nodes are gone.
pub(super) fn forget_kept(nodes: &[NodeId]) {
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(all) = all.as_mut() {
        nodes.iter().for_each(|node| drop(all.remove(node)));
    }
}

impl KernelV1 {
    /// As a program reads it from a node.
    pub fn of(node: NodeId, launch: &KernelLaunch) -> Outcome<Self> {
        let driver = state::driver()?;
        let found = driver.functions.handle_where(|function| {
            let same = Arc::ptr_eq(&function.kernel, &launch.kernel);
            same && function.module.context.id == launch.context()
        });
        let Some(function) = found else {
            return refuse(INVALID_VALUE, "the node's kernel was unloaded");
        };
        let offsets = launch.kernel.params.iter().map(|param| param.offset);
        let (_, pointers) = keep(node, &launch.params, offsets);
        let Shape { grid, block, dynamic_shared_bytes: shared_bytes, .. } = launch.shape;
        let (pointers, extra) = (In::from_address(pointers), In::from_address(0));
        Ok(Self { function, grid, block, shared_bytes, pointers, extra })
    }
}

impl Kernel {
    /// As a program reads it from a node.
    pub fn of(node: NodeId, launch: &KernelLaunch) -> Outcome<Self> {
        let first = KernelV1::of(node, launch)?;
        let driver = state::driver()?;
        let context = driver.contexts.handle_where(|context| context.id == launch.context());
        Ok(Self { first, kernel: 0, context: context.unwrap_or(0) })
    }
}

impl Side {
    fn planes(&self, whole: &Copy3d) -> Outcome<Planes> {
        let base = copy::base(self.memory_type, self.host, self.device)?;
        let pitch = if self.pitch == 0 { whole.width } else { self.pitch } as u64;
        let height = if self.height == 0 { whole.height } else { self.height } as u64;
        let (x, y, z) = (self.x as u64, self.y as u64, self.z as u64);
        let plane = pitch.checked_mul(height);
        let offset = plane.and_then(|plane| {
            let rows = y.checked_mul(pitch)?.checked_add(x)?;
            z.checked_mul(plane)?.checked_add(rows)
        });
        let address = offset.and_then(|offset| base.address.checked_add(offset));
        let (Some(plane), Some(address)) = (plane, address) else {
            return refuse(INVALID_VALUE, "the size does not fit 64 bits");
        };
        let place = CopyAddress { address, ..base };
        Ok(Planes { rows: Rows { place, pitch }, pitch: plane })
    }

    fn of(address: u64, pitch: u64, plane: u64) -> Self {
        let memory = &state::driver().ok().map(|driver| &driver.machine.memory);
        let found = memory.and_then(|memory| memory.find(address));
        let (memory_type, host, device) = match found {
            Some(found) if !found.kind.is_host() => (2, 0, address),
            _ => (1, address, 0),
        };
        let height = plane.checked_div(pitch).unwrap_or(0) as usize;
        let pitch = pitch as usize;
        Self { memory_type, host, device, pitch, height, ..Self::default() }
    }
}

impl NodeParameters for Copy3d {
    fn work(&self) -> Outcome<Work> {
        let (to, from) = (self.destination.planes(self)?, self.source.planes(self)?);
        let memory = &state::driver()?.machine.memory;
        let extent = [self.width, self.height, self.depth].map(|extent| extent as u64);
        Ok(Work::Transfer(transfer::planes(memory, to, from, extent)?))
    }
}

impl Copy3d {
    /// As a program reads it from a node.
    pub fn of(copy: &Transfer3d) -> Outcome<Self> {
        let plane = &copy.plane;
        let Source::Memory { address, .. } = plane.row.source else {
            return refuse(INVALID_VALUE, "the node is a fill");
        };
        let width = plane.row.bytes;
        // A copy of one row was made without pitches.
        let pitch = |pitch: u64| if pitch == 0 { width } else { pitch };
        let (from, to) = (pitch(plane.source_pitch), pitch(plane.destination_pitch));
        let planes =
            |plane: u64, pitch: u64, rows: u64| if plane == 0 { pitch * rows } else { plane };
        Ok(Self {
            source: Side::of(address, from, planes(copy.source_plane, from, plane.rows)),
            destination: Side::of(
                plane.row.destination,
                to,
                planes(copy.destination_plane, to, plane.rows),
            ),
            width: width as usize,
            height: plane.rows as usize,
            depth: copy.planes as usize,
        })
    }
}

impl NodeParameters for Fill {
    fn work(&self) -> Outcome<Work> {
        if !matches!(self.element, 1 | 2 | 4) {
            return refuse(INVALID_VALUE, format!("elements of {} bytes", self.element));
        }
        let memory = &state::driver()?.machine.memory;
        let pattern = Pattern { value: self.value, width: self.element };
        let extent = [self.width as u64, self.height as u64];
        let (to, pitch) = (self.destination, self.pitch as u64);
        let fill = transfer::pattern_rows(memory, to, pitch, pattern, extent)?;
        Ok(Work::Transfer(fill.into()))
    }
}

impl Fill {
    /// As a program reads it from a node.
    pub fn of(fill: &Transfer3d) -> Outcome<Self> {
        let plane = &fill.plane;
        let Source::Pattern { value, width: element } = plane.row.source else {
            return refuse(INVALID_VALUE, "the node is a copy");
        };
        Ok(Self {
            destination: plane.row.destination,
            pitch: plane.destination_pitch as usize,
            value,
            element,
            width: (plane.row.bytes / u64::from(element)) as usize,
            height: plane.rows as usize,
        })
    }
}

impl NodeParameters for HostCall {
    fn work(&self) -> Outcome<Work> {
        match self.function {
            Some(function) => Ok(Work::Host(host_function(function, self.argument))),
            None => refuse(INVALID_VALUE, "a host function at address 0"),
        }
    }
}

impl NodeParameters for Batch {
    fn work(&self) -> Outcome<Work> {
        require_context(self.context)?;
        let gpu = state::driver()?.contexts.get_context(self.context)?.gpu;
        Ok(Work::Memory(batch_of(gpu, self.count, self.operations, self.flags)?))
    }
}

impl Batch {
    /// As a program reads it from a node.
    pub fn of(node: NodeId, operations: &[MemoryOperation]) -> Self {
        let structures: Vec<BatchOperation> = operations.iter().map(BatchOperation::of).collect();
        let bytes: Vec<u8> = structures.iter().flat_map(BatchOperation::bytes).collect();
        let (kept, _) = keep(node, &bytes, std::iter::empty());
        let count = operations.len() as c_uint;
        let context = state::current_handle();
        Self { context, count, operations: In::from_address(kept), flags: 0 }
    }
}

/// The numbers by which a program knows a node's host function, in its structure's order.
pub(super) fn put_host(to: Out<[u64; 2]>, work: &Work) -> Outcome {
    match work {
        Work::Host(host) => to.set(host.identity),
        other => refuse(INVALID_VALUE, format!("the node is of kind {:?}", other.kind())),
    }
}
