//! XRC domains, and queue pairs that are opened a second time.

use super::context::{OpenDevice, open_device};
use super::layout::{IbvContext, IbvQpOpenAttr, IbvXrcd, IbvXrcdInitAttr};
use super::objects::{errno_of, refused};
use super::pointer::{Object, Source, Target};
use super::queue_pair::{self, PairObject};
use hwsim_machine::adapter::{DomainRequest, Network, QueuePair, Transport, XrcDomain};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// `IBV_XRCD_INIT_ATTR_FD` and `_OFLAGS`: both are needed.
const INIT_BOTH: u32 = 0b11;
/// `IBV_QP_OPEN_ATTR_NUM`, `_XRCD` and `_TYPE`, which are needed, and `_CONTEXT`.
const OPEN_NEEDED: u32 = 0b1011;
const OPEN_KNOWN: u32 = 0b1111;

/// A queue pair that receives, and the handles of programs on it.
type Receiver = (Weak<QueuePair>, Weak<()>);

/// An XRC domain of a device, whatever the number of handles on it.
#[derive(Default)]
pub(super) struct Shared {
    pub domain: Arc<XrcDomain>,
    /// Its queue pairs, by their numbers.
    pairs: Mutex<HashMap<u32, Receiver>>,
}

impl Shared {
    /// Makes a new queue pair known to those who open it by its number.
    pub fn enter(&self, pair: &Arc<QueuePair>, handle: &Arc<()>) {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        pairs.retain(|_, (pair, _)| pair.strong_count() > 0);
        pairs.insert(pair.number(), (Arc::downgrade(pair), Arc::downgrade(handle)));
    }
}

/// A handle on an XRC domain.
#[repr(C)]
pub(super) struct XrcDomainObject {
    c: UnsafeCell<IbvXrcd>,
    pub shared: Arc<Shared>,
    pub device: Arc<OpenDevice>,
}

impl XrcDomainObject {
    /// The context that it belongs to.
    pub fn context(&self) -> Target<IbvContext> {
        // SAFETY: the field does not change after the domain was made.
        unsafe { (*self.c.get()).context }
    }
}

/// The domain that a file names, on an adapter of a process.
type FileKey = (usize, u32, u64, u64);

/// Domains with a file, for whoever opens the same one.
static OF_FILES: Mutex<Option<HashMap<FileKey, Weak<Shared>>>> = Mutex::new(None);

/// `open_xrcd`.
pub(super) extern "C" fn open_xrcd(
    context: Target<IbvContext>,
    attributes: Source<IbvXrcdInitAttr>,
) -> Object<XrcDomainObject> {
    let Some(wanted) = attributes.non_null() else { return refused(libc::EINVAL) };
    if wanted.comp_mask != INIT_BOTH {
        return refused(if wanted.comp_mask > INIT_BOTH { libc::EOPNOTSUPP } else { libc::EINVAL });
    }
    let device = open_device(context);
    let creates = wanted.flags & libc::O_CREAT != 0;
    let shared = if wanted.fd < 0 {
        // Nobody else can name it.
        if !creates {
            return refused(libc::EINVAL);
        }
        Arc::default()
    } else {
        match of_file(device, wanted.fd, creates, wanted.flags & libc::O_EXCL != 0) {
            Ok(shared) => shared,
            Err(errno) => return refused(errno),
        }
    };
    let c = UnsafeCell::new(IbvXrcd { context });
    Object::give(Box::new(XrcDomainObject { c, shared, device: Arc::clone(device) }))
}

/// The domain that a file names, for whoever has opened it, in this process or another one.
fn of_file(
    device: &Arc<OpenDevice>,
    fd: c_int,
    creates: bool,
    exclusive: bool,
) -> Result<Arc<Shared>, c_int> {
    // SAFETY: the program's own descriptor; it is duplicated, which tells one that is not open.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let file = file.try_clone_to_owned().map_err(|_| libc::EBADF)?;
    let status = file.try_clone().map(File::from).and_then(|file| file.metadata());
    let status = status.map_err(|error| error.raw_os_error().unwrap_or(libc::EBADF))?;
    let network: *const Network = Arc::as_ptr(&device.network);
    let endpoint = device.device.endpoint;
    let key = (network as usize, endpoint.adapter, status.dev(), status.ino());
    let mut all = OF_FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_with(HashMap::new);
    all.retain(|_, shared| shared.strong_count() > 0);
    if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
        return if creates && exclusive { Err(libc::EINVAL) } else { Ok(known) };
    }
    let request = DomainRequest { endpoint, file, creates, exclusive };
    let opened = device.network.open_xrc_domain(request);
    let domain = opened.map_err(|error| errno_of(&error))?;
    let shared = Arc::new(Shared { domain, pairs: Mutex::default() });
    all.insert(key, Arc::downgrade(&shared));
    Ok(shared)
}

/// `close_xrcd`: the last handle goes when nothing stands on the domain any more.
pub(super) extern "C" fn close_xrcd(domain: Object<XrcDomainObject>) -> c_int {
    let shared = &domain.get().shared;
    let is_last = Arc::strong_count(shared) == 1;
    if is_last && shared.domain.is_used() {
        return libc::EBUSY;
    }
    if is_last {
        shared.domain.close();
    }
    drop(domain.take());
    0
}

/// `open_qp`: one more handle on a queue pair that receives.
pub(super) extern "C" fn open_qp(
    context: Target<IbvContext>,
    attributes: Source<IbvQpOpenAttr>,
) -> Object<PairObject> {
    let Some(wanted) = attributes.non_null() else { return refused(libc::EINVAL) };
    if wanted.comp_mask & !OPEN_KNOWN != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    if wanted.comp_mask & OPEN_NEEDED != OPEN_NEEDED
        || wanted.kind != Transport::XrcReceive as u32
        || wanted.xrcd.is_null()
    {
        return refused(libc::EINVAL);
    }
    let (shared, device) = (&wanted.xrcd.get().shared, open_device(context));
    let pairs = shared.pairs.lock().unwrap_or_else(PoisonError::into_inner);
    let found = pairs.get(&wanted.number);
    let found = found.and_then(|(pair, handle)| Some((pair.upgrade()?, handle.upgrade()?)));
    drop(pairs);
    let of_another_process = || {
        let found = device.network.open_xrc_receiver(&device.device, &shared.domain, wanted.number);
        found.map(|pair| (pair, Arc::default()))
    };
    let pair = match found.map_or_else(of_another_process, Ok) {
        Ok(pair) => pair,
        Err(error) => return refused(errno_of(&error)),
    };
    let own = if wanted.comp_mask & 0b100 != 0 { wanted.qp_context } else { 0 };
    queue_pair::open_again(context, device, pair, own)
}
