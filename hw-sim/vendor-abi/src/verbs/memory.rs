//! Memory regions and memory windows.

use super::context::OpenDevice;
use super::domains::DomainObject;
use super::layout::{IbvMw, IbvMwBind, IbvMwBindInfo, VerbsMr};
use super::objects::{errno_of, refused};
use super::pointer::{Object, Source, Target, set_errno};
use super::post;
use super::queue_pair::{PairObject, post_built};
use hwsim_machine::adapter::work::{SendRequest, Verb};
use hwsim_machine::adapter::{
    Access, BindRequest, RegionChange, RegionRequest, VerbsError, WindowKind,
};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `IBV_MR_TYPE_DMABUF_MR`.
const DMA_BUF: u32 = 3;
/// `enum ibv_rereg_mr_flags`.
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 2;
const CHANGE_ACCESS: c_int = 4;
/// `IBV_REREG_MR_ERR_CMD`: the device refused, and `errno` says why.
const REFUSED_BY_DEVICE: c_int = -4;
/// The bits of a window's key that change with its bindings.
const TAG: u32 = 0xff;

/// A memory region.
#[repr(C)]
pub(super) struct RegionObject {
    c: UnsafeCell<VerbsMr>,
    device: Arc<OpenDevice>,
    key: u32,
}

/// A memory window.
#[repr(C)]
pub(super) struct WindowObject {
    c: UnsafeCell<IbvMw>,
    device: Arc<OpenDevice>,
    pub kind: WindowKind,
    /// The key of the latest binding that was asked for; its upper bits never change.
    pub key: AtomicU32,
}

fn region(
    pd: Object<DomainObject>,
    kind: u32,
    request: &RegionRequest,
    key: Result<u32, VerbsError>,
) -> Object<RegionObject> {
    let device = Arc::clone(&pd.get().device);
    match key {
        Ok(key) => {
            let c = UnsafeCell::new(VerbsMr {
                context: Target::from_address(0),
                pd: pd.address() as usize,
                address: 0,
                length: request.length as usize,
                handle: key,
                lkey: key,
                rkey: key,
                end: 0,
                kind,
                access: request.access.0 as c_int,
            });
            Object::give(Box::new(RegionObject { c, device, key }))
        }
        Err(error) => refused(errno_of(&error)),
    }
}

/// `reg_mr`.
pub(super) extern "C" fn reg_mr(
    pd: Object<DomainObject>,
    address: u64,
    length: usize,
    io_address: u64,
    access: c_int,
) -> Object<RegionObject> {
    let DomainObject { domain, device, .. } = pd.get();
    let request = RegionRequest {
        domain: *domain,
        io_address,
        length: length as u64,
        access: Access(access as u32),
    };
    if device.device.refuses_registration() {
        return refused(libc::ENOMEM);
    }
    let key = device.network.register(&request, address);
    region(pd, 0, &request, key)
}

/// `reg_dmabuf_mr`.
pub(super) extern "C" fn reg_dmabuf_mr(
    pd: Object<DomainObject>,
    offset: u64,
    length: usize,
    io_address: u64,
    fd: c_int,
    access: c_int,
) -> Object<RegionObject> {
    let DomainObject { domain, device, .. } = pd.get();
    if fd < 0 {
        return refused(libc::EBADF);
    }
    if device.device.refuses_registration() {
        return refused(libc::ENOMEM);
    }
    // SAFETY: the program's descriptor, borrowed for the call.
    let Ok(buffer) = (unsafe { BorrowedFd::borrow_raw(fd) }).try_clone_to_owned() else {
        return refused(libc::EBADF);
    };
    let request = RegionRequest {
        domain: *domain,
        io_address,
        length: length as u64,
        access: Access(access as u32),
    };
    let key = register_dma_buf(device, &request, buffer, offset);
    region(pd, DMA_BUF, &request, key)
}

fn register_dma_buf(
    device: &OpenDevice,
    request: &RegionRequest,
    buffer: OwnedFd,
    offset: u64,
) -> Result<u32, VerbsError> {
    device.network.register_dma_buf(request, buffer, offset)
}

/// `dereg_mr`.
pub(super) extern "C" fn dereg_mr(region: Object<RegionObject>) -> c_int {
    let RegionObject { device, key, .. } = region.get();
    if let Err(error) = device.network.deregister(*key) {
        return errno_of(&error);
    }
    drop(region.take());
    0
}

/// `rereg_mr`.
pub(super) extern "C" fn rereg_mr(
    region: Object<RegionObject>,
    flags: c_int,
    pd: Object<DomainObject>,
    address: u64,
    length: usize,
    access: c_int,
) -> c_int {
    let RegionObject { c, device, key } = region.get();
    let named = |flag: c_int| flags & flag != 0;
    if named(CHANGE_PD) && pd.is_null() {
        set_errno(libc::EINVAL);
        return REFUSED_BY_DEVICE;
    }
    let change = RegionChange {
        domain: named(CHANGE_PD).then(|| pd.get().domain),
        access: named(CHANGE_ACCESS).then_some(Access(access as u32)),
        memory: named(CHANGE_TRANSLATION).then_some((address, length as u64)),
    };
    if let Err(error) = device.network.reregister(*key, &change) {
        set_errno(errno_of(&error));
        return REFUSED_BY_DEVICE;
    }
    if named(CHANGE_ACCESS) {
        // SAFETY: the program may not use the region in other threads during the call.
        unsafe { (*c.get()).access = access };
    }
    0
}

/// `alloc_mw`.
pub(super) extern "C" fn alloc_mw(pd: Object<DomainObject>, kind: u32) -> Object<WindowObject> {
    let number = kind;
    let kind = match kind {
        1 => WindowKind::One,
        2 => WindowKind::Two,
        _ => return refused(libc::EINVAL),
    };
    let DomainObject { domain, device, .. } = pd.get();
    let key = device.network.make_window(*domain, kind);
    let c = IbvMw { context: pd.get().context(), pd, key, handle: key, kind: number };
    let (device, key) = (Arc::clone(device), AtomicU32::new(key));
    Object::give(Box::new(WindowObject { c: UnsafeCell::new(c), device, kind, key }))
}

/// `dealloc_mw`.
pub(super) extern "C" fn dealloc_mw(window: Object<WindowObject>) -> c_int {
    let WindowObject { device, key, .. } = window.get();
    // Relaxed: the upper bits never change.
    if let Err(error) = device.network.end_window(key.load(Ordering::Relaxed)) {
        return errno_of(&error);
    }
    drop(window.take());
    0
}

/// `bind_mw`, for windows of type 1: posts the request, and gives the window its next key.
pub(super) extern "C" fn bind_mw(
    qp: Object<PairObject>,
    window: Object<WindowObject>,
    binding: Source<IbvMwBind>,
) -> c_int {
    let IbvMwBind { id, flags, info } = binding.get();
    let object = window.get();
    // Relaxed: a program that binds one window in two threads at once asks for either key.
    let last = object.key.load(Ordering::Relaxed);
    let key = last & !TAG | last.wrapping_add(1) & TAG;
    let request = match bind_request(id, flags, window, (key, &info)) {
        Ok(request) if object.kind == WindowKind::One => request,
        Ok(_) => return libc::EINVAL,
        Err(errno) => return errno,
    };
    let posted = post_built(qp.get(), vec![request]);
    if posted == 0 {
        object.key.store(key, Ordering::Relaxed);
        let offset = std::mem::offset_of!(IbvMw, key) as u64;
        Target::from_address(window.address() + offset).set(key);
    }
    posted
}

/// A request to bind a window with this key, or the `errno` of a refusal.
pub(super) fn bind_request(
    id: u64,
    flags: u32,
    window: Object<WindowObject>,
    (key, info): (u32, &IbvMwBindInfo),
) -> Result<SendRequest, c_int> {
    let Some(window) = window.non_null() else { return Err(libc::EINVAL) };
    if info.region.is_null() && info.length != 0 {
        return Err(libc::EINVAL);
    }
    let object = window.get();
    // Relaxed: the upper bits never change.
    let own = object.key.load(Ordering::Relaxed) & !TAG;
    if key & !TAG != own {
        return Err(libc::EINVAL);
    }
    let verb = Verb::Bind(BindRequest {
        kind: object.kind,
        key,
        region: info.region.non_null().map_or(0, |region| region.get().key),
        address: info.address,
        length: info.length,
        access: Access(info.access),
    });
    Ok(post::request(id, verb, flags))
}
