//! What programs register before `main`: fat binaries, and the kernels and variables in them, by
//! the addresses of their host stand-ins. Nothing is handed to the driver before it is used.

use crate::call::{In, Out, string};
use crate::driver::{self, Handle};
use crate::error::{INVALID_DEVICE_FUNCTION, INVALID_SYMBOL, INVALID_VALUE, Outcome};
use std::collections::{HashMap, HashSet};
use std::ffi::{CString, c_char, c_int, c_uint};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// One fat binary of the program.
pub(crate) struct FatBinary {
    /// Where the program keeps it.
    wrapper: u64,
    /// The driver's library, once something of it was used. An error stays.
    library: OnceLock<Outcome<Handle>>,
    /// Managed variables: what the program reads their addresses from, and their names.
    managed: Mutex<Vec<(Out<u64>, CString)>>,
}

/// A kernel, by its host function.
pub(crate) struct Kernel {
    binary: Arc<FatBinary>,
    name: CString,
    handle: OnceLock<Outcome<Handle>>,
}

/// A variable, by its host shadow.
pub(crate) struct Variable {
    binary: Arc<FatBinary>,
    name: CString,
}

/// All that is registered.
#[derive(Default)]
struct Registry {
    binaries: HashMap<u64, Arc<FatBinary>>,
    next: u64,
    kernels: HashMap<u64, Arc<Kernel>>,
    variables: HashMap<u64, Arc<Variable>>,
    /// Kernels that the program got as handles, and may pass where a host function is wanted.
    handles: HashSet<Handle>,
}

static REGISTRY: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);

// SAFETY: the places of managed variables are the program's own, written once, before it uses them.
unsafe impl Send for FatBinary {}
// SAFETY: as above; the list is behind a lock.
unsafe impl Sync for FatBinary {}

fn read() -> RwLockReadGuard<'static, Registry> {
    REGISTRY.read().unwrap_or_else(|poison| poison.into_inner())
}

fn write() -> RwLockWriteGuard<'static, Registry> {
    REGISTRY.write().unwrap_or_else(|poison| poison.into_inner())
}

impl FatBinary {
    /// The driver's library of it, loaded on first use.
    pub fn library(&self) -> Outcome<Handle> {
        *self.library.get_or_init(|| {
            /// `CU_LIBRARY_BINARY_IS_PRESERVED`: it is part of the program.
            const PRESERVED: c_int = 1;
            let (option, value, mut library) = (PRESERVED, 1u64, 0);
            let (options, values) = (In::of(&option), In::of(&value));
            driver::cuLibraryLoadData(
                Out::to(&mut library),
                self.wrapper,
                0,
                0,
                0,
                options,
                values,
                1,
            )?;
            Ok(library)
        })
    }

    /// Loads it and tells the program where its managed variables are.
    fn place_managed(&self) -> Outcome {
        let mut managed = self.managed.lock().unwrap_or_else(|poison| poison.into_inner());
        for (place, name) in std::mem::take(&mut *managed) {
            let (mut address, library) = (0, self.library()?);
            let name = In::from_address(name.as_ptr() as u64);
            driver::cuLibraryGetManaged(Out::to(&mut address), Out::null(), library, name)?;
            place.set_if(address);
        }
        Ok(())
    }
}

impl Kernel {
    /// The driver's handle: good in every context.
    pub fn handle(&self) -> Outcome<Handle> {
        *self.handle.get_or_init(|| {
            let mut kernel = 0;
            let name = In::from_address(self.name.as_ptr() as u64);
            driver::cuLibraryGetKernel(Out::to(&mut kernel), self.binary.library()?, name)?;
            Ok(kernel)
        })
    }
}

impl Variable {
    /// Its address in the current context, and its size.
    pub fn place(&self) -> Outcome<(u64, usize)> {
        let (mut address, mut bytes) = (0, 0);
        let name = In::from_address(self.name.as_ptr() as u64);
        let (to, size) = (Out::to(&mut address), Out::to(&mut bytes));
        driver::cuLibraryGetGlobal(to, size, self.binary.library()?, name)?;
        Ok((address, bytes))
    }
}

/// The kernel of a host function, or one that was passed as a handle.
pub(crate) fn kernel(function: u64) -> Outcome<Handle> {
    let registry = read();
    if let Some(kernel) = registry.kernels.get(&function) {
        let kernel = Arc::clone(kernel);
        drop(registry);
        return kernel.handle();
    }
    if registry.handles.contains(&function) { Ok(function) } else { Err(INVALID_DEVICE_FUNCTION) }
}

/// Remembers a kernel that the program gets as a handle.
pub(crate) fn note_handle(kernel: Handle) {
    write().handles.insert(kernel);
}

/// The driver's function of a kernel in the current context.
pub(crate) fn function(host: u64) -> Outcome<Handle> {
    let mut function = 0;
    driver::cuKernelGetFunction(Out::to(&mut function), kernel(host)?)?;
    Ok(function)
}

/// The host function of a driver's function, or the kernel's handle where the program got that.
pub(crate) fn host_of(wanted: Handle) -> Outcome<u64> {
    let function_of = |kernel: Handle| {
        let mut function = 0;
        driver::cuKernelGetFunction(Out::to(&mut function), kernel).map(|()| function)
    };
    let registry = read();
    // A kernel without a handle was never used.
    let known = registry.kernels.iter().filter_map(|(host, kernel)| {
        kernel.handle.get().and_then(|handle| handle.ok()).map(|handle| (*host, handle))
    });
    let known: Vec<(u64, Handle)> =
        known.chain(registry.handles.iter().map(|handle| (*handle, *handle))).collect();
    drop(registry);
    let found = known.into_iter().find(|(_, handle)| function_of(*handle) == Ok(wanted));
    found.map(|(host, _)| host).ok_or(INVALID_DEVICE_FUNCTION)
}

/// The variable of a host shadow.
pub(crate) fn variable(symbol: u64) -> Outcome<Arc<Variable>> {
    read().variables.get(&symbol).cloned().ok_or(INVALID_SYMBOL)
}

fn binary(handle: u64) -> Outcome<Arc<FatBinary>> {
    read().binaries.get(&handle).cloned().ok_or(INVALID_VALUE)
}

fn owned(name: In<c_char>) -> Outcome<CString> {
    string(name).map(CString::from)
}

/// The program's fat binary; the handle is a number, not an address.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
extern "C" fn __cudaRegisterFatBinary(wrapper: u64) -> u64 {
    let mut registry = write();
    registry.next += 1;
    let handle = registry.next;
    let (library, managed) = (OnceLock::new(), Mutex::default());
    registry.binaries.insert(handle, Arc::new(FatBinary { wrapper, library, managed }));
    handle
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
extern "C" fn __cudaRegisterFatBinaryEnd(_handle: u64) {}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
extern "C" fn __cudaUnregisterFatBinary(handle: u64) {
    let mut registry = write();
    let Some(gone) = registry.binaries.remove(&handle) else { return };
    registry.kernels.retain(|_, kernel| !Arc::ptr_eq(&kernel.binary, &gone));
    registry.variables.retain(|_, variable| !Arc::ptr_eq(&variable.binary, &gone));
    drop(registry);
    if let Some(Ok(library)) = gone.library.get() {
        // A driver that has shut down took it along.
        let _ = driver::cuLibraryUnload(*library);
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
#[allow(clippy::too_many_arguments, reason = "the list is the vendor's")]
extern "C" fn __cudaRegisterFunction(
    handle: u64,
    host: u64,
    _device: In<c_char>,
    name: In<c_char>,
    _thread_limit: c_int,
    _thread: u64,
    _block: u64,
    _block_extent: u64,
    _grid_extent: u64,
    _warp_size: u64,
) {
    if let (Ok(binary), Ok(name)) = (binary(handle), owned(name)) {
        let kernel = Kernel { binary, name, handle: OnceLock::new() };
        write().kernels.insert(host, Arc::new(kernel));
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
#[allow(clippy::too_many_arguments, reason = "the list is the vendor's")]
extern "C" fn __cudaRegisterVar(
    handle: u64,
    host: u64,
    _device: In<c_char>,
    name: In<c_char>,
    _extern: c_int,
    _bytes: usize,
    _constant: c_int,
    _global: c_int,
) {
    if let (Ok(binary), Ok(name)) = (binary(handle), owned(name)) {
        write().variables.insert(host, Arc::new(Variable { binary, name }));
    }
}

/// A managed variable: the program reads its address from `place`, once the module is initialised.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
#[allow(clippy::too_many_arguments, reason = "the list is the vendor's")]
extern "C" fn __cudaRegisterManagedVar(
    handle: u64,
    place: Out<u64>,
    _device: In<c_char>,
    name: In<c_char>,
    _extern: c_int,
    _bytes: usize,
    _constant: c_int,
    _global: c_int,
) {
    if let (Ok(binary), Ok(name)) = (binary(handle), owned(name)) {
        let mut managed = binary.managed.lock().unwrap_or_else(|poison| poison.into_inner());
        managed.push((place, name.clone()));
        drop(managed);
        write().variables.insert(place.address(), Arc::new(Variable { binary, name }));
    }
}

/// Before the program's first use of a managed variable. True is success.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the vendor's")]
extern "C" fn __cudaInitModule(handle: u64) -> u8 {
    let placed = crate::state::ready().and_then(|()| binary(handle)?.place_managed());
    u8::from(placed.inspect_err(|&code| crate::error::set_last(code)).is_ok())
}

/// The kernels of a library, as handles.
pub(crate) fn note_handles(kernels: Out<Handle>, count: c_uint) -> Outcome {
    for index in 0..count as usize {
        note_handle(kernels.at(index).get()?);
    }
    Ok(())
}
