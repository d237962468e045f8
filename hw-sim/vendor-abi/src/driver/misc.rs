//! Errors in words, symbols by name, the profiler.

use super::call::{In, Out, driver_calls, string};
use super::code::{Code, INVALID_VALUE, NOT_FOUND, Outcome, name, refuse, text};
use super::{address_of, later, state};
use crate::{unsupported, version};
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;
use std::sync::Mutex;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD: u64 = 2;

/// A symbol, answered or not, if the shown driver has it.
fn symbol(name: &str) -> Option<*const ()> {
    if later::since(name).is_some_and(|since| since > version::shown().cuda) {
        return None;
    }
    let stubs = || unsupported::driver::STUBS.iter().chain(unsupported::later::STUBS);
    let stub = || stubs().find(|(stub, _)| *stub == name);
    address_of(name).or_else(|| stub().map(|(_, address)| *address as *const ()))
}

/// The form of a name that a program built for `version` means.
fn resolve(name: &str, version: c_int, flags: u64) -> Option<*const ()> {
    let version = version.min(version::shown().cuda);
    let newest = match later::FORMS.iter().find(|(base, _)| *base == name) {
        Some((_, since)) => match since.iter().filter(|since| **since <= version).count() {
            0 | 1 => None,
            form => Some(format!("{name}_v{form}")),
        },
        None => Some(format!("{name}_v2")),
    };
    let forms = newest.into_iter().chain([name.to_owned()]);
    forms.into_iter().find_map(|form| {
        let twins = [format!("{form}_ptsz"), format!("{form}_ptds")];
        let twin =
            if flags & PER_THREAD == 0 { None } else { twins.iter().find_map(|t| symbol(t)) };
        twin.or_else(|| symbol(&form))
    })
}

fn proc_address(
    symbol: In<c_char>,
    function: Out<*const c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_int>,
) -> Outcome {
    let wanted = string(symbol)?;
    function.require()?;
    if flags & !3 != 0 {
        return refuse(INVALID_VALUE, format!("flags {flags:#x}"));
    }
    match resolve(wanted, version, flags) {
        Some(address) => {
            status.set_if(0);
            function.set(address.cast())
        }
        None => {
            status.set_if(1);
            function.set(null())?;
            refuse(NOT_FOUND, format!("no symbol {wanted}"))
        }
    }
}

fn uuid_text(id: &[u8; 16]) -> String {
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}

/// Says, once for each table, which was asked for, and what to do. NVIDIA's own runtime does not go
/// on without its tables, and gives its program an error that says nothing of them; other libraries
/// ask, too, and do without.
fn name_private_table(id: &str) {
    static NAMED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut named = NAMED.lock().unwrap_or_else(|poison| poison.into_inner());
    if named.insert(id.to_owned()) {
        eprintln!(
            "hwsim: cuGetExportTable: the private table {id} of NVIDIA's driver is not supported. \
             If the program fails now, it contains NVIDIA's CUDA runtime: relink it with `-cudart \
             shared`, so that it uses the runtime of `hwsim run`"
        );
    }
}

driver_calls! {
    fn cuGetErrorName(error: Code, out: Out<*const c_char>) {
        match name(error) {
            Some(name) => out.set(name.as_ptr()),
            None => {
                out.set(null())?;
                refuse(INVALID_VALUE, format!("result code {error}"))
            }
        }
    }

    fn cuGetErrorString(error: Code, out: Out<*const c_char>) {
        match text(error) {
            Some(text) => out.set(text.as_ptr()),
            None => {
                out.set(null())?;
                refuse(INVALID_VALUE, format!("result code {error}"))
            }
        }
    }

    fn cuGetProcAddress(
        symbol: In<c_char>, function: Out<*const c_void>, version: c_int, flags: u64,
    ) {
        proc_address(symbol, function, version, flags, Out::from_address(0))
    }

    fn cuGetProcAddress_v2(
        symbol: In<c_char>, function: Out<*const c_void>, version: c_int, flags: u64,
        status: Out<c_int>,
    ) {
        proc_address(symbol, function, version, flags, status)
    }

    fn cuGetExportTable(table: Out<*const c_void>, id: In<[u8; 16]>) {
        table.set(null())?;
        let id = uuid_text(&id.get()?);
        name_private_table(&id);
        refuse(NOT_FOUND, format!("private table {id}"))
    }

    fn cuProfilerStart() {
        state::current().map(drop)
    }

    fn cuProfilerStop() {
        state::current().map(drop)
    }

    fn cuFlushGPUDirectRDMAWrites(_target: c_int, _scope: c_int) {
        // Writes from other devices land in coherent memory.
        state::current().map(drop)
    }
}
