//! What is open and pinned. Handles are numbers that are never used again, so that a stale one is
//! an error and not somebody else's memory.

use crate::Outcome;
use crate::mapping::Mapping;
use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What `gdr_t` points at: the address alone counts.
pub struct Library {
    _size: u8,
}

#[derive(Default)]
struct Table {
    libraries: HashSet<usize>,
    pinned: HashMap<u64, (usize, Mapping)>,
    last: u64,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

fn read() -> RwLockReadGuard<'static, Table> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Table> {
    TABLE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the library once more.
pub fn open() -> *mut Library {
    let library = Box::into_raw(Box::new(Library { _size: 0 }));
    write().libraries.insert(library as usize);
    library
}

/// Closes it.
pub fn close(library: *mut Library) -> Outcome {
    let mut table = write();
    if !table.libraries.remove(&(library as usize)) {
        return Err(libc::EINVAL);
    }
    table.pinned.retain(|_, (owner, _)| *owner != library as usize);
    // SAFETY: `open` has made it, and it was known until now, so nobody has taken it back.
    drop(unsafe { Box::from_raw(library) });
    Ok(())
}

/// Is it open?
pub fn check(library: *mut Library) -> Outcome {
    read().libraries.contains(&(library as usize)).then_some(()).ok_or(libc::EINVAL)
}

/// Takes pinned memory in, under a number.
pub fn add(library: *mut Library, mapping: Mapping) -> u64 {
    let mut table = write();
    table.last += 1;
    let number = table.last;
    table.pinned.insert(number, (library as usize, mapping));
    number
}

/// Unpins memory.
pub fn remove(library: *mut Library, number: u64) -> Outcome {
    let mut table = write();
    match table.pinned.get(&number) {
        Some((owner, _)) if *owner == library as usize => {
            table.pinned.remove(&number);
            Ok(())
        }
        _ => Err(libc::EINVAL),
    }
}

/// Looks at pinned memory of a library.
pub fn look<T>(
    library: *mut Library,
    number: u64,
    body: impl FnOnce(&Mapping) -> Outcome<T>,
) -> Outcome<T> {
    match read().pinned.get(&number) {
        Some((owner, mapping)) if *owner == library as usize => body(mapping),
        _ => Err(libc::EINVAL),
    }
}

/// Changes it.
pub fn change<T>(
    library: *mut Library,
    number: u64,
    body: impl FnOnce(&mut Mapping) -> Outcome<T>,
) -> Outcome<T> {
    match write().pinned.get_mut(&number) {
        Some((owner, mapping)) if *owner == library as usize => body(mapping),
        _ => Err(libc::EINVAL),
    }
}

/// Uses a mapping, which stays as long as `body` runs.
pub fn use_mapping(number: u64, body: impl FnOnce(&Mapping) -> Outcome) -> Outcome {
    let table = read();
    let (_, mapping) = table.pinned.get(&number).ok_or(libc::EINVAL)?;
    body(mapping)
}
