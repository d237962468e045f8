//! Device memory of other processes on this node.

use super::Current;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, sys};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes of a handle.
pub(crate) const HANDLE_BYTES: usize = 64;

/// How another process of this node finds a piece of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    /// Names the allocation that holds it.
    pub handle: [u8; HANDLE_BYTES],
    /// Where in the allocation it begins. Bytes.
    pub offset: u64,
}

impl Export {
    /// Exports the allocation that holds `address`, which must stay allocated for as long as
    /// another process has it open.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver cannot share this memory, as is the case for memory of a
    /// stream-ordered pool.
    pub fn of(context: &CudaContext, address: u64) -> Result<Self> {
        let current = Current::bind(context)?;
        let Some(allocation) = current.allocation(address) else {
            return Err(Error::argument("shared memory", "device memory", format!("{address:#x}")));
        };
        let start = allocation.start;
        let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
        // SAFETY: `start` is an allocation that the driver knows, and `handle` outlives the call.
        let status = unsafe { sys::cuIpcGetMemHandle(&mut handle, start) };
        current.check("cuIpcGetMemHandle", status)?;
        Ok(Self { handle: handle.reserved.map(|byte| byte as u8), offset: address - start })
    }
}

/// An allocation of another process, mapped here until it is dropped.
#[derive(Debug)]
pub(crate) struct Import {
    context: Arc<CudaContext>,
    address: u64,
}

/// What is open in this process. A context can open an allocation only once.
type Open = HashMap<(usize, [u8; HANDLE_BYTES]), Weak<Import>>;
static OPEN: Mutex<Option<Open>> = Mutex::new(None);

impl Import {
    /// Opens an allocation in `context`, or finds it open.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the handle is of this process, of another node, or of memory that is
    /// gone.
    pub fn open(context: &Arc<CudaContext>, handle: &[u8; HANDLE_BYTES]) -> Result<Arc<Self>> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_default();
        open.retain(|_, import| import.strong_count() > 0);
        let key = (context.cu_ctx() as usize, *handle);
        if let Some(import) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(import);
        }
        let current = Current::bind(context)?;
        let handle = sys::CUipcMemHandle { reserved: handle.map(|byte| byte as _) };
        let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the driver checks the handle's bytes, and `address` outlives the call.
        current.check("cuIpcOpenMemHandle", unsafe {
            sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags)
        })?;
        let import = Arc::new(Self { context: context.clone(), address });
        open.insert(key, Arc::downgrade(&import));
        Ok(import)
    }

    /// Device address of its first byte, in the context that opened it.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        // Nobody opens it meanwhile and gets an address that is about to go.
        let _open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if Current::bind(&self.context).is_ok() {
            // SAFETY: opened by `open` and closed only here; owners drop it after all engines
            // that know the address have ended.
            unsafe { sys::cuIpcCloseMemHandle(self.address) };
        }
    }
}
