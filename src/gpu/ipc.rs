//! Device memory of other processes on this node.

use super::Current;
use crate::error::{Error, Result};
use crate::shared::{Extent, PeerRange};
use cudarc::driver::{CudaContext, sys};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The driver's function that opens another process's memory, as errors name it.
pub(crate) const OPEN_CALL: &str = "cuIpcOpenMemHandle";

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
    /// What the driver has mapped, by its own word.
    extent: Extent,
}

/// What is open in this process. A context can open an allocation only once.
type Open = HashMap<(usize, [u8; HANDLE_BYTES]), Weak<Import>>;
static OPEN: Mutex<Option<Open>> = Mutex::new(None);

impl Import {
    /// The address, in `context`, of memory of another process that `range` names a peer and a
    /// length for. It stays valid for as long as the import lives.
    ///
    /// # Errors
    /// [`Error::PeerValue`] where the driver knows no such memory, or has mapped less than the
    /// peer says; [`Error::Cuda`] where the driver cannot map memory.
    pub fn locate(
        context: &Arc<CudaContext>,
        export: &Export,
        range: &PeerRange<'_>,
    ) -> Result<(Arc<Self>, u64)> {
        Self::find(context, export, range)?.map_err(|error| match error {
            Error::Cuda { ref name, .. } if is_false_handle(&error) => {
                let expected = "a memory handle of another process of this node";
                Error::peer_value(range.rank, range.what, expected, name)
            }
            other => other,
        })
    }

    /// As [`locate`](Self::locate), with the driver's refusal to open the memory as a value: a
    /// handle of another namespace, or of a GPU that this one does not reach, looks like a false
    /// one.
    ///
    /// # Errors
    /// As [`locate`](Self::locate), but for that.
    pub fn find(
        context: &Arc<CudaContext>,
        export: &Export,
        range: &PeerRange<'_>,
    ) -> Result<Result<(Arc<Self>, u64)>> {
        let import = match Self::open(context, &export.handle) {
            Err(error) if is_false_handle(&error) || is_unreached(&error) => return Ok(Err(error)),
            other => other?,
        };
        let address = range.at_offset(import.extent, export.offset)?;
        Ok(Ok((import, address)))
    }

    /// Opens an allocation in `context`, or finds it open.
    fn open(context: &Arc<CudaContext>, handle: &[u8; HANDLE_BYTES]) -> Result<Arc<Self>> {
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
        let answer = unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) };
        current.check(OPEN_CALL, answer)?;
        let extent = extent_of(&current, address).inspect_err(|_| {
            // SAFETY: opened just now, and nobody has the address.
            unsafe { sys::cuIpcCloseMemHandle(address) };
        })?;
        let import = Arc::new(Self { context: context.clone(), extent });
        open.insert(key, Arc::downgrade(&import));
        Ok(import)
    }
}

/// How much the driver has mapped from `address` on. The exporter's word for it is not taken.
fn extent_of(current: &Current, address: u64) -> Result<Extent> {
    let range = current.allocation(address).and_then(|allocation| {
        let end = allocation.start.checked_add(allocation.bytes)?;
        Some(Extent { base: address, length_bytes: end.checked_sub(address)? })
    });
    range.ok_or_else(|| Error::System {
        what: "querying the size of another process's memory".into(),
        cause: format!("it does not know {address:#x}, which it has mapped just now"),
    })
}

/// Is the driver's answer about the handle itself? A peer chose its bytes.
fn is_false_handle(error: &Error) -> bool {
    use sys::CUresult as Answer;
    let about_handle = [
        Answer::CUDA_ERROR_INVALID_VALUE,
        Answer::CUDA_ERROR_INVALID_HANDLE,
        Answer::CUDA_ERROR_INVALID_CONTEXT,
        Answer::CUDA_ERROR_MAP_FAILED,
    ];
    is_answer(error, OPEN_CALL, &about_handle)
}

/// Is the driver's answer that the context cannot open this memory, whatever the handle?
fn is_unreached(error: &Error) -> bool {
    use sys::CUresult as Answer;
    let about_reach = [
        Answer::CUDA_ERROR_NOT_SUPPORTED,
        Answer::CUDA_ERROR_NOT_PERMITTED,
        Answer::CUDA_ERROR_INVALID_DEVICE,
        Answer::CUDA_ERROR_TOO_MANY_PEERS,
    ];
    is_without_peer_access(error) || is_answer(error, OPEN_CALL, &about_reach)
}

/// Is the driver's answer that the GPU has no access to that of the memory?
pub(crate) fn is_without_peer_access(error: &Error) -> bool {
    let unsupported = sys::CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    is_answer(error, OPEN_CALL, &[unsupported])
}

/// Is the driver's answer that it shares this memory with no other process?
pub(crate) fn is_not_shared(error: &Error) -> bool {
    use sys::CUresult as Answer;
    let about_sharing = [
        Answer::CUDA_ERROR_NOT_SUPPORTED,
        Answer::CUDA_ERROR_NOT_PERMITTED,
        Answer::CUDA_ERROR_INVALID_VALUE,
    ];
    is_answer(error, "cuIpcGetMemHandle", &about_sharing)
}

fn is_answer(error: &Error, asked: &str, answers: &[sys::CUresult]) -> bool {
    matches!(error, Error::Cuda { call, code, .. }
        if *call == asked && answers.iter().any(|answer| *answer as u32 == *code))
}

impl Drop for Import {
    fn drop(&mut self) {
        // Nobody opens it meanwhile and gets an address that is about to go.
        let _open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if Current::bind(&self.context).is_ok() {
            // SAFETY: opened by `open` and closed only here; owners drop it after all engines
            // that know the address have ended.
            unsafe { sys::cuIpcCloseMemHandle(self.extent.base) };
        }
    }
}
