//! Workspaces of cooperative launches: what `grid.sync()` of CUDA's headers counts blocks in.
//!
//! The driver hands a kernel an address in `%envreg1` and `%envreg2`. Compiled code adds to the
//! second word of 32 bits there and waits until its highest bit changes; each barrier leaves the
//! count where it began, so that launches of one stream, which follow each other, share a
//! workspace.

use crate::error::Result;
use crate::graph::OwnMemory;
use crate::memory::GlobalMemory;
use crate::stream::Stream;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A context's workspaces, by stream. They go with the context.
#[derive(Default)]
pub(crate) struct Workspaces(Mutex<BTreeMap<usize, OwnMemory>>);

impl Workspaces {
    /// The workspace of a stream, made on its first cooperative launch. A stream that is made where
    /// an old one was takes over its workspace, which no kernel uses any more.
    pub fn of(
        &self,
        memory: &Arc<GlobalMemory>,
        (gpu, context): (usize, u64),
        stream: &Arc<Stream>,
    ) -> Result<u64> {
        let mut workspaces = self.0.lock().unwrap_or_else(|poison| poison.into_inner());
        let stream = Arc::as_ptr(stream) as usize;
        if let Some(known) = workspaces.get(&stream) {
            return Ok(known.address);
        }
        let workspace = OwnMemory::grid_workspace(memory, gpu, context)?;
        let address = workspace.address;
        workspaces.insert(stream, workspace);
        Ok(address)
    }
}
