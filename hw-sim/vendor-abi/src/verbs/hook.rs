//! One system call of `libibverbs` that no provider function stands for: it makes completion
//! channels by writing a command to the device's file. That file is no device here, so the
//! library's own reference to `write` is led to a function that knows the command. No other library
//! and no program is touched.

use super::channel;
use std::ffi::{CStr, c_int, c_void};
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

/// Leads `write` of the loaded object that holds `address` to ours.
pub(super) fn install(address: u64) {
    let mut wanted = address;
    // SAFETY: the callback gets this pointer back during the call only.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut wanted).cast()) };
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    wanted: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid description, and the pointer that `install` gave it.
    let (info, wanted) = unsafe { (&*info, *wanted.cast::<u64>()) };
    // SAFETY: the description holds this many program headers.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let holds = |header: &libc::Elf64_Phdr| {
        let start = info.dlpi_addr + header.p_vaddr;
        header.p_type == libc::PT_LOAD && (start..start + header.p_memsz).contains(&wanted)
    };
    if !headers.iter().any(holds) {
        return 0;
    }
    if let Some(dynamic) = headers.iter().find(|header| header.p_type == PT_DYNAMIC) {
        patch(info.dlpi_addr, info.dlpi_addr + dynamic.p_vaddr);
    }
    1
}

/// Walks the object's relocations.
fn patch(base: u64, dynamic: u64) {
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
            if RELOCATIONS.contains(&kind) && name == c"write" {
                redirect(base + offset);
            }
        }
    }
}

/// Exchanges one reference. The loader may have made its page read-only.
fn redirect(slot: u64) {
    let page = slot / 4096 * 4096;
    // SAFETY: the page holds the slot; it is made writable, and what stands in the slot is the
    // address of a function with the same signature, before and after. It stays writable: other
    // slots on the page may have been so before.
    unsafe {
        if libc::mprotect(page as *mut _, 4096, libc::PROT_READ | libc::PROT_WRITE) == 0 {
            AtomicUsize::from_ptr(slot as *mut usize)
                .store(write as *const () as usize, Ordering::SeqCst);
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
