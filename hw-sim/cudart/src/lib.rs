//! A CUDA runtime on the public driver interface: what `libcudart.so.12` and `.13` have in common.
//!
//! It knows nothing of virtual hardware: it opens `libcuda.so.1` like any other client. Each call
//! is a thin translation; what is kept here is what the driver does not know: the fat binaries and
//! symbols that programs register, each thread's device, and its last error.

mod call;
mod copy;
mod copy_3d;
mod device;
mod driver;
mod error;
mod event;
mod graph;
mod graph_copy;
mod graph_nodes;
mod launch;
mod library;
mod memory;
mod misc;
mod pool;
mod properties;
mod registry;
mod state;
mod stream;
mod symbol;
mod unsupported;

use std::sync::atomic::{AtomicU32, Ordering};

/// Which version's interface the library has: some names changed their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// `libcudart.so.12`
    V12,
    /// `libcudart.so.13`
    V13,
}

static INTERFACE: AtomicU32 = AtomicU32::new(12);

/// Says which interface this process has loaded. For the two libraries.
pub fn set_interface(interface: Interface) {
    let major = match interface {
        Interface::V12 => 12,
        Interface::V13 => 13,
    };
    // Relaxed: stored by the loader before any thread can call.
    INTERFACE.store(major, Ordering::Relaxed);
}

/// The interface of this library.
pub(crate) fn interface() -> Interface {
    match INTERFACE.load(Ordering::Relaxed) {
        13 => Interface::V13,
        _ => Interface::V12,
    }
}
