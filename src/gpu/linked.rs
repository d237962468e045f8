//! PTX of several sources, joined by the driver's linker: once in a process for each content.

use super::Current;
use super::executor::compute_capability;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, sys};
use std::collections::VecDeque;
use std::ffi::{CString, c_uint, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// Images that are kept: the oldest one goes first.
const KEPT_MAX: usize = 16;
/// Room for what the linker says of an error.
const LOG_BYTES: usize = 4096;

/// A source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// By which errors name it.
    pub name: String,
    /// PTX.
    pub text: Arc<str>,
}

/// Machine code for GPUs of one compute capability, as the linker made it.
struct Image {
    capability: (i32, i32),
    sources: Vec<Source>,
    code: Arc<[u8]>,
}

/// Under the lock while a link is under way: ranks that want the same image wait for it.
static IMAGES: Mutex<VecDeque<Image>> = Mutex::new(VecDeque::new());

/// The image of all `sources` together, for the GPU of `context`. The first source is the
/// library's; `what` names the others in errors.
///
/// # Errors
/// [`Error::Argument`] with the words of the linker, which name a source, for what cannot be
/// joined; [`Error::Cuda`] for anything else.
pub(crate) fn link(
    context: &Arc<CudaContext>,
    what: &str,
    sources: &[Source],
) -> Result<Arc<[u8]>> {
    let capability = compute_capability(context)?;
    let mut images = IMAGES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_known = |image: &&Image| image.capability == capability && image.sources == sources;
    if let Some(image) = images.iter().find(is_known) {
        return Ok(image.code.clone());
    }
    let current = Current::bind(context)?;
    let code: Arc<[u8]> = Linker::new(&current)?.link(&current, what, sources)?.into();
    if images.len() == KEPT_MAX {
        images.pop_front();
    }
    let sources = sources.to_vec();
    images.push_back(Image { capability, sources, code: code.clone() });
    Ok(code)
}

/// A link under way.
struct Linker {
    state: sys::CUlinkState,
    /// The driver writes here until the link is destroyed.
    log: Vec<u8>,
}

impl Linker {
    fn new(current: &Current) -> Result<Self> {
        use sys::CUjit_option::{
            CU_JIT_ERROR_LOG_BUFFER as LOG, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as SIZE,
        };
        let mut linker = Self { state: ptr::null_mut(), log: vec![0; LOG_BYTES] };
        let mut options = [LOG, SIZE];
        let mut values: [*mut c_void; 2] =
            [linker.log.as_mut_ptr().cast(), ptr::without_provenance_mut(LOG_BYTES)];
        // SAFETY: options and values outlive the call; the log lives as long as the link does, for
        // its bytes stay in place when the vector moves.
        current.check("cuLinkCreate", unsafe {
            sys::cuLinkCreate_v2(
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
                &mut linker.state,
            )
        })?;
        Ok(linker)
    }

    fn link(self, current: &Current, what: &str, sources: &[Source]) -> Result<Vec<u8>> {
        for source in sources {
            let text = CString::new(&*source.text).expect("checked where it came from");
            let name = CString::new(source.name.replace('\0', " ")).expect("holds no NUL");
            let bytes = text.as_bytes_with_nul();
            // SAFETY: text and name end with NUL and outlive the call, which copies them.
            let status = unsafe {
                sys::cuLinkAddData_v2(
                    self.state,
                    sys::CUjitInputType::CU_JIT_INPUT_PTX,
                    bytes.as_ptr().cast_mut().cast(),
                    bytes.len(),
                    name.as_ptr(),
                    0,
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            };
            let checked = current.check("cuLinkAddData", status);
            checked.map_err(|error| self.explained(error, what, &source.name))?;
        }
        let (mut image, mut bytes) = (ptr::null_mut::<c_void>(), 0usize);
        // SAFETY: both outlive the call.
        let status = unsafe { sys::cuLinkComplete(self.state, &mut image, &mut bytes) };
        let checked = current.check("cuLinkComplete", status);
        checked.map_err(|error| self.explained(error, what, "all together"))?;
        // SAFETY: the driver says where the image is and how long; it lives as long as the link.
        Ok(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), bytes) }.to_vec())
    }

    /// What the linker said, where it said something: of a fault of the sources.
    fn explained(&self, error: Error, what: &str, source: &str) -> Error {
        let end = self.log.iter().position(|&byte| byte == 0).unwrap_or(self.log.len());
        let words = String::from_utf8_lossy(&self.log[..end]);
        match words.trim() {
            "" => error,
            words => Error::argument(what, "PTX that can be linked", format!("{source}: {words}")),
        }
    }
}

impl Drop for Linker {
    fn drop(&mut self) {
        if !self.state.is_null() {
            // SAFETY: the link was created, and nobody uses it any more.
            unsafe { sys::cuLinkDestroy(self.state) };
        }
    }
}
