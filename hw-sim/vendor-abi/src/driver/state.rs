//! State of the driver: the machine, the handles, and each thread's contexts.

use super::code::{
    CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_DEVICE, NO_DEVICE, NOT_INITIALIZED, Outcome,
    refuse,
};
use super::handles::{Handle, HandleKind, Handles};
use super::image::Image;
use super::linker::Linker;
use super::virtual_memory::PhysicalHandle;
use super::{call, gate, report, trace, visible};
use hwsim_machine::description::Description;
use hwsim_machine::engine::Engines;
use hwsim_machine::graph::{Executable, Graph, NodeId, UserObject};
use hwsim_machine::memory::{ROUND_VARIABLE, Rights};
use hwsim_machine::{Context, Event, Function, Machine, Module, Stream};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// All that is one for the process.
pub(crate) struct Driver {
    pub machine: Arc<Machine>,
    /// The GPUs that this process sees; a device's number is a place in it.
    pub visible: Vec<usize>,
    pub contexts: Handles<Context>,
    pub streams: Handles<Stream>,
    pub events: Handles<Event>,
    pub modules: Handles<Module>,
    pub linkers: Handles<Linker>,
    pub functions: Handles<Function>,
    pub libraries: Handles<Library>,
    pub kernels: Handles<LibraryKernel>,
    pub pools: Handles<Pool>,
    pub physicals: Handles<PhysicalHandle>,
    pub graphs: Handles<Graph>,
    pub nodes: Handles<GraphNode>,
    /// Node handles by the nodes' numbers: asking twice gives the same handle.
    pub node_handles: Mutex<HashMap<NodeId, Handle>>,
    pub executables: Handles<Executable>,
    pub user_objects: Handles<UserObject>,
    /// Function handles by module and name: asking twice gives the same handle.
    pub function_names: Mutex<HashMap<(Handle, String), Handle>>,
    pub primaries: Vec<Mutex<Primary>>,
    /// The pool of each device that asynchronous allocations use, and its default one.
    pub default_pools: Vec<Handle>,
    pub current_pools: Vec<AtomicU64>,
    /// The device engines, once a program has given its GPUs a part of one.
    pub engines: OnceLock<Arc<Engines>>,
}

/// A device's primary context.
#[derive(Default)]
pub(crate) struct Primary {
    pub handle: Option<Handle>,
    pub users: u32,
    pub flags: u32,
}

/// A memory pool. Pools share the GPU's memory; what is their own is attributes.
pub(crate) struct Pool {
    pub device: usize,
    pub release_threshold: AtomicU64,
    pub reuse: [AtomicU32; 3],
    /// The GPUs that were given access.
    pub rights: Arc<Rights>,
}

/// A library: a module that is loaded in each context that uses it.
pub(crate) struct Library {
    pub image: Image,
    pub modules: Mutex<HashMap<u64, (Handle, Arc<Module>)>>,
    pub kernels: Mutex<HashMap<String, Handle>>,
    /// The module that was placed first: it has the managed variables of all.
    pub first: OnceLock<Arc<Module>>,
}

/// A kernel of a library, not bound to a context.
pub(crate) struct LibraryKernel {
    pub library: Arc<Library>,
    pub name: String,
}

/// A node of a graph.
pub(crate) struct GraphNode {
    pub graph: Arc<Graph>,
    pub number: NodeId,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
static START: Mutex<()> = Mutex::new(());
static FORKED: AtomicBool = AtomicBool::new(false);

impl Pool {
    /// A pool of a GPU's memory.
    pub fn new(machine: &Machine, device: usize) -> Arc<Self> {
        let reuse = [AtomicU32::new(1), AtomicU32::new(1), AtomicU32::new(1)];
        let rights = match machine.description.driver.pools {
            true => Rights::default(),
            false => Rights::beside_peer_access(),
        };
        let release_threshold = AtomicU64::new(0);
        Arc::new(Self { device, release_threshold, reuse, rights: Arc::new(rights) })
    }
}

/// The memory of the machine's GPUs, once `cuInit` has built it.
pub(crate) fn gpu_memory() -> Option<&'static hwsim_machine::memory::GlobalMemory> {
    DRIVER.get().map(|driver| &*driver.machine.memory)
}

/// `cuInit`: builds the machine that the environment names.
pub(crate) fn initialise() -> Outcome {
    trace::start();
    report::start();
    if FORKED.load(Ordering::Relaxed) {
        return refuse(
            NOT_INITIALIZED,
            "the driver was initialised before this process was forked",
        );
    }
    let _once = START.lock().unwrap_or_else(|poison| poison.into_inner());
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let description = match Description::from_environment() {
        Ok(mut description) => {
            gate::start(&mut description);
            description
        }
        Err(error) => {
            eprintln!("hwsim: {error}");
            return refuse(NO_DEVICE, error.to_string());
        }
    };
    let machine = Machine::new(description).inspect_err(|error| eprintln!("hwsim: {error}"))?;
    if std::env::var(ROUND_VARIABLE).is_ok_and(|value| value == "1") {
        machine.memory.round_allocations();
    }
    // SAFETY: the handler only stores to an atomic, which is allowed after fork.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    let count = machine.description.gpus.len();
    let pools = Handles::new(HandleKind::Pool);
    let default_pools: Vec<Handle> =
        (0..count).map(|gpu| pools.add(Pool::new(&machine, gpu))).collect();
    let wanted = std::env::var(visible::VARIABLE).ok();
    let driver = Driver {
        visible: visible::visible(wanted.as_deref(), &machine.description.gpus),
        machine,
        contexts: Handles::new(HandleKind::Context),
        streams: Handles::new(HandleKind::Stream),
        events: Handles::new(HandleKind::Event),
        modules: Handles::new(HandleKind::Module),
        linkers: Handles::new(HandleKind::Linker),
        functions: Handles::new(HandleKind::Function),
        libraries: Handles::new(HandleKind::Library),
        kernels: Handles::new(HandleKind::Kernel),
        function_names: Mutex::default(),
        primaries: (0..count).map(|_| Mutex::default()).collect(),
        current_pools: default_pools.iter().map(|&pool| AtomicU64::new(pool)).collect(),
        default_pools,
        pools,
        physicals: Handles::new(HandleKind::PhysicalMemory),
        graphs: Handles::new(HandleKind::Graph),
        nodes: Handles::new(HandleKind::GraphNode),
        node_handles: Mutex::default(),
        executables: Handles::new(HandleKind::Executable),
        user_objects: Handles::new(HandleKind::UserObject),
        engines: OnceLock::new(),
    };
    assert!(DRIVER.set(driver).is_ok(), "only one thread builds the machine");
    Ok(())
}

/// The child of a fork has none of the machine's threads.
extern "C" fn after_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The driver, once `cuInit` was called.
pub(crate) fn driver() -> Outcome<&'static Driver> {
    match DRIVER.get() {
        Some(driver) if !FORKED.load(Ordering::Relaxed) => Ok(driver),
        _ => Err(NOT_INITIALIZED.into()),
    }
}

/// The driver and the GPU of a device's number, if there is such a device.
pub(crate) fn device(device: i32) -> Outcome<(&'static Driver, usize)> {
    let driver = driver()?;
    match usize::try_from(device).ok().and_then(|number| driver.visible.get(number)) {
        Some(&gpu) => Ok((driver, gpu)),
        None => refuse(INVALID_DEVICE, format!("device {device} of {}", driver.visible.len())),
    }
}

/// The number under which this process sees a GPU.
pub(crate) fn number_of(gpu: usize) -> Outcome<i32> {
    match driver()?.visible.iter().position(|&seen| seen == gpu) {
        Some(number) => Ok(number as i32),
        None => refuse(INVALID_DEVICE, format!("GPU {gpu} is hidden from this process")),
    }
}

thread_local! {
    /// The thread's stack of contexts; the last is current. 0 stands for none.
    static STACK: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
    /// The thread's own default streams, by context.
    static PER_THREAD: RefCell<HashMap<u64, Arc<Stream>>> = RefCell::new(HashMap::new());
}

/// Every context that lives.
pub(crate) fn contexts() -> Vec<Arc<Context>> {
    DRIVER.get().map(|driver| driver.contexts.all()).unwrap_or_default()
}

/// The handle of the current context, 0 for none.
pub(crate) fn current_handle() -> Handle {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Replaces the top of the stack; 0 takes it off.
pub(crate) fn set_current(handle: Handle) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}

/// Pushes a context.
pub(crate) fn push_current(handle: Handle) {
    STACK.with_borrow_mut(|stack| stack.push(handle));
}

/// Pops the current context.
pub(crate) fn pop_current() -> Option<Handle> {
    STACK.with_borrow_mut(Vec::pop)
}

/// The current context, whatever state it is in.
pub(crate) fn current_any() -> Outcome<(&'static Driver, Arc<Context>)> {
    let driver = driver()?;
    match current_handle() {
        0 => refuse(INVALID_CONTEXT, "no context is current to this thread"),
        handle => Ok((driver, driver.contexts.get_context(handle)?)),
    }
}

/// The current context, unless it is known to have failed.
pub(crate) fn current() -> Outcome<(&'static Driver, Arc<Context>)> {
    let (driver, context) = current_any()?;
    context.check_told()?;
    Ok((driver, context))
}

/// The context of a handle, the current one for 0.
pub(crate) fn context_or_current(handle: Handle) -> Outcome<Arc<Context>> {
    match handle {
        0 => Ok(current_any()?.1),
        handle => driver()?.contexts.get_context(handle),
    }
}

/// The stream of a handle, to queue work in: 0 and 1 the default stream, 2 the thread's own.
pub(crate) fn stream(handle: Handle) -> Outcome<Arc<Stream>> {
    let stream = stream_of(handle)?;
    stream.context.admit()?;
    if gate::is_on() {
        gate::follow(&stream.context);
        stream.refuse_if_implicit()?;
    }
    Ok(stream)
}

fn stream_of(handle: Handle) -> Outcome<Arc<Stream>> {
    match handle {
        0 if !call::null_is_per_thread() => Ok(Arc::clone(current()?.1.legacy_stream())),
        1 => Ok(Arc::clone(current()?.1.legacy_stream())),
        0 | 2 => {
            let context = current()?.1;
            Ok(PER_THREAD.with_borrow_mut(|streams| {
                let make = || context.create_stream(true, 0);
                Arc::clone(streams.entry(context.id).or_insert_with(make))
            }))
        }
        handle => driver()?.streams.get(handle),
    }
}

/// Ends a context and takes back every handle that belongs to it.
pub(crate) fn destroy_context(driver: &Driver, handle: Handle) -> Outcome {
    let Ok(context) = driver.contexts.remove(handle) else {
        return refuse(CONTEXT_IS_DESTROYED, format!("context {handle:#x} is gone"));
    };
    let id = context.id;
    context.destroy();
    if let Some(engines) = driver.engines.get() {
        engines.release_context(id);
    }
    driver.streams.remove_all(|stream| stream.context.id == id);
    driver.events.remove_all(|event| event.context.id == id);
    driver.functions.remove_all(|function| function.module.context.id == id);
    driver.modules.remove_all(|module| module.context.id == id);
    Ok(())
}
