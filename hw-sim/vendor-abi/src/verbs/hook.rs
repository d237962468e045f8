//! System calls of the libraries above that no provider function stands for: `libibverbs` makes
//! completion channels by writing a command to the device's file, and `librdmacm` does all of its
//! work so. These files are no devices here, so the libraries' own references to the functions are
//! led to ones that know the commands. No other library and no program is touched.
//!
//! A program may load `librdmacm` at any time. That library asks for the list of devices before it
//! opens its file, and `libibverbs` then opens a folder: at this moment it is looked for.

use super::channel;
use super::manager::{self, Written};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

const PT_DYNAMIC: u32 = 2;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
/// References to functions, and to the addresses of functions.
const RELOCATIONS: [u32; 2] = [7, 6];

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

#[repr(C)]
struct Symbol {
    name: u32,
    other: [u8; 12],
    size: u64,
}

/// What references of an object are led to, by name.
type Functions = [(&'static CStr, usize)];

/// An object, and what becomes of its references.
struct Wanted<'a> {
    /// It holds this address, or has a name that begins so.
    holds: Option<u64>,
    begins: &'static str,
    functions: &'a Functions,
}

/// Leads references of `libibverbs`, which holds `address`, to ours; and those of `librdmacm`, if
/// it is loaded.
pub(super) fn install(address: u64) {
    let functions =
        [(c"write", write as *const () as usize), (c"opendir", opendir as *const () as usize)];
    redirect_in(&Wanted { holds: Some(address), begins: "", functions: &functions });
    install_in_manager();
}

/// The same for `librdmacm`.
fn install_in_manager() {
    let functions = [
        (c"open", open as *const () as usize),
        (c"open64", open as *const () as usize),
        (c"fstat", fstat as *const () as usize),
        (c"fstat64", fstat as *const () as usize),
        (c"__fxstat", fxstat as *const () as usize),
        (c"__fxstat64", fxstat as *const () as usize),
        (c"write", write_to_manager as *const () as usize),
        (c"close", close as *const () as usize),
    ];
    redirect_in(&Wanted { holds: None, begins: "librdmacm", functions: &functions });
}

fn redirect_in(wanted: &Wanted) {
    // SAFETY: the callback gets this pointer back during the call only.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw const *wanted).cast_mut().cast()) };
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    wanted: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid description, and the pointer that `redirect_in` gave it.
    let (info, wanted) = unsafe { (&*info, &*wanted.cast::<Wanted>()) };
    // SAFETY: the description holds this many program headers.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let holds = |address: u64, header: &libc::Elf64_Phdr| {
        let start = info.dlpi_addr + header.p_vaddr;
        header.p_type == libc::PT_LOAD && (start..start + header.p_memsz).contains(&address)
    };
    let is_it = match wanted.holds {
        Some(address) => headers.iter().any(|header| holds(address, header)),
        None if info.dlpi_name.is_null() => false,
        None => {
            // SAFETY: the loader's own name of the object, which ends with NUL.
            let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
            name.starts_with(wanted.begins.as_bytes())
        }
    };
    if is_it && let Some(dynamic) = headers.iter().find(|header| header.p_type == PT_DYNAMIC) {
        patch(info.dlpi_addr, info.dlpi_addr + dynamic.p_vaddr, wanted.functions);
    }
    // Others may have such a name, too.
    c_int::from(is_it && wanted.holds.is_some())
}

/// Walks the object's relocations.
fn patch(base: u64, dynamic: u64, functions: &Functions) {
    let mut values = std::collections::HashMap::new();
    let mut at = dynamic as *const Dynamic;
    loop {
        // SAFETY: the loader's own table, which ends with tag 0.
        let entry = unsafe { at.read() };
        if entry.tag == 0 {
            break;
        }
        values.insert(entry.tag, entry.value);
        at = at.wrapping_add(1);
    }
    let value = |tag| values.get(&tag).copied().unwrap_or(0);
    let (symbols, names) = (value(DT_SYMTAB), value(DT_STRTAB));
    for (table, bytes) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
        let count = value(bytes) as usize / size_of::<Relocation>();
        for index in 0..count {
            let relocation = (value(table) as *const Relocation).wrapping_add(index);
            // SAFETY: inside the table that the dynamic section names, which stays mapped; the
            // symbol and its name lie in the tables that it names, too.
            let (offset, kind, name) = unsafe {
                let Relocation { offset, info, .. } = relocation.read();
                let symbol = (symbols as *const Symbol).wrapping_add((info >> 32) as usize).read();
                let name = CStr::from_ptr((names + u64::from(symbol.name)) as *const _);
                (offset, info as u32, name)
            };
            let ours = functions.iter().find(|(ours, _)| *ours == name);
            if RELOCATIONS.contains(&kind)
                && let Some((_, function)) = ours
            {
                redirect(base + offset, *function);
            }
        }
    }
}

/// Exchanges one reference. The loader may have made its page read-only.
fn redirect(slot: u64, function: usize) {
    let page = slot / 4096 * 4096;
    // SAFETY: the slot holds the address of a function, which others may exchange meanwhile.
    let current = unsafe { AtomicUsize::from_ptr(slot as *mut usize) };
    if current.load(Ordering::SeqCst) == function {
        return;
    }
    // SAFETY: the page holds the slot; it is made writable, and what stands in the slot is the
    // address of a function with the same signature, before and after. It stays writable: other
    // slots on the page may have been so before.
    unsafe {
        if libc::mprotect(page as *mut _, 4096, libc::PROT_READ | libc::PROT_WRITE) == 0 {
            current.store(function, Ordering::SeqCst);
        }
    }
}

/// `write`, for `libibverbs` alone.
extern "C" fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    if count >= channel::COMMAND_BYTES
        && let Some(done) = channel::command(fd, bytes as u64)
    {
        return if done { count as isize } else { -1 };
    }
    // SAFETY: the arguments are the caller's own.
    unsafe { libc::write(fd, bytes, count) }
}

/// `opendir`, for `libibverbs` alone.
extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    install_in_manager();
    // SAFETY: the argument is the caller's own.
    unsafe { libc::opendir(path) }
}

/// `open`, for `librdmacm` alone.
extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller passes a text that ends with NUL.
    if !path.is_null() && unsafe { CStr::from_ptr(path) } == manager::FILE {
        let state = hold_cancellation();
        let fd = manager::open();
        permit_cancellation(state);
        return fd;
    }
    // SAFETY: the arguments are the caller's own.
    unsafe { libc::open(path, flags, mode) }
}

/// `fstat`, for `librdmacm` alone, which asks whether its file is a device.
extern "C" fn fstat(fd: c_int, status: *mut libc::stat) -> c_int {
    // SAFETY: the arguments are the caller's own.
    let code = unsafe { libc::fstat(fd, status) };
    if code == 0 && manager::has(fd) {
        // SAFETY: the system has filled it.
        unsafe { (*status).st_mode = libc::S_IFCHR | 0o600 };
    }
    code
}

/// `fstat`, as programs that were built with older C libraries call it.
extern "C" fn fxstat(_version: c_int, fd: c_int, status: *mut libc::stat) -> c_int {
    fstat(fd, status)
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Has nobody cancel this thread, in whose work there are calls at which that could happen. Gives
/// what was permitted before.
fn hold_cancellation() -> c_int {
    const DISABLE: c_int = 1;
    let mut old = 0;
    // SAFETY: changes a state of this thread alone, and writes the old one.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut old) };
    old
}

/// Permits again what was permitted.
fn permit_cancellation(old: c_int) {
    // SAFETY: as above; null is for callers that do not want the old state.
    unsafe { pthread_setcancelstate(old, std::ptr::null_mut()) };
}

unsafe extern "C-unwind" {
    /// `poll`, in which a thread may be cancelled.
    #[link_name = "poll"]
    fn poll_or_end(files: *mut libc::pollfd, count: libc::nfds_t, time: c_int) -> c_int;
}

/// `write`, for `librdmacm` alone. Programs cancel threads that wait for events here
/// (`pthread_cancel`), so nothing that would have to be dropped is alive while one waits.
extern "C-unwind" fn write_to_manager(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    let mut waited = false;
    loop {
        let state = hold_cancellation();
        let outcome = manager::command(fd, bytes as u64, count);
        permit_cancellation(state);
        match outcome {
            Written::Returns(written) => return written,
            // As on the kernel's file, whoever waits on a channel that another thread closes waits
            // for good. By now the number may be another file's.
            Written::NotOurs if waited => wait(-1),
            // SAFETY: the arguments are the caller's own.
            Written::NotOurs => return unsafe { libc::write(fd, bytes, count) },
            Written::Waits => {
                waited = true;
                if wait(fd) < 0 {
                    return -1;
                }
                continue;
            }
        };
    }
}

/// Waits until a file can be read; -1 is none.
fn wait(fd: c_int) -> c_int {
    let mut file = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one file, which is alive during the call.
    unsafe { poll_or_end(&raw mut file, 1, -1) }
}

/// `close`, for `librdmacm` alone.
extern "C" fn close(fd: c_int) -> c_int {
    let state = hold_cancellation();
    manager::close(fd);
    permit_cancellation(state);
    // SAFETY: the descriptor is the caller's own.
    unsafe { libc::close(fd) }
}
