//! Address handles: where datagrams go.

use super::context::OpenDevice;
use super::domains::DomainObject;
use super::layout::{IbvAh, IbvAhAttr};
use super::objects::{errno_of, refuse_multicast, refused, zeroed};
use super::pointer::{Object, Source};
use hwsim_machine::adapter::Route;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Handles that stay in memory when they were destroyed.
const DESTROYED_MAX: usize = 1024;

/// An address handle. The library fills in what programs read.
#[repr(C)]
pub(super) struct AddressHandle {
    c: UnsafeCell<IbvAh>,
    pub route: Route,
    pub domain: u64,
    destroyed: AtomicBool,
    /// Stays open as long as one of its handles.
    device: Mutex<Option<Arc<OpenDevice>>>,
}

impl AddressHandle {
    /// The handle, unless it was destroyed.
    pub fn living(&self) -> Option<&Self> {
        // Relaxed: a program that posts while it destroys gets one or the other.
        (!self.destroyed.load(Ordering::Relaxed)).then_some(self)
    }
}

/// The handles that were destroyed last. A program that posts with one of them is told so: it would
/// send to wherever that memory says by now.
static DESTROYED: Mutex<VecDeque<u64>> = Mutex::new(VecDeque::new());

/// `create_ah`.
pub(super) extern "C" fn create_ah(
    pd: Object<DomainObject>,
    attributes: Source<IbvAhAttr>,
) -> Object<AddressHandle> {
    let (Some(pd), Some(wanted)) = (pd.non_null(), attributes.non_null()) else {
        return refused(libc::EINVAL);
    };
    let (device, domain, route) = (&pd.get().device, pd.get().domain, route_from_c(&wanted));
    if wanted.port != 1 {
        return refused(libc::EINVAL);
    }
    if route.is_multicast() {
        return refused(refuse_multicast("an address handle for a group"));
    }
    if let Err(error) = device.device.port_of(&route) {
        return refused(errno_of(&error));
    }
    let c = UnsafeCell::new(zeroed());
    let (destroyed, device) = (AtomicBool::new(false), Mutex::new(Some(Arc::clone(device))));
    Object::give(Box::new(AddressHandle { c, route, domain, destroyed, device }))
}

/// `destroy_ah`.
pub(super) extern "C" fn destroy_ah(handle: Object<AddressHandle>) -> c_int {
    if handle.get().destroyed.swap(true, Ordering::Relaxed) {
        return libc::EINVAL;
    }
    drop(handle.get().device.lock().unwrap_or_else(PoisonError::into_inner).take());
    let mut destroyed = DESTROYED.lock().unwrap_or_else(PoisonError::into_inner);
    if destroyed.len() == DESTROYED_MAX
        && let Some(oldest) = destroyed.pop_front()
    {
        drop(Object::<AddressHandle>::from_address(oldest).take());
    }
    destroyed.push_back(handle.address());
    0
}

/// A route as C has it.
pub(super) fn route_from_c(attributes: &IbvAhAttr) -> Route {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&attributes.gid[0].to_ne_bytes());
    gid[8..].copy_from_slice(&attributes.gid[1].to_ne_bytes());
    Route {
        gid: (attributes.is_global != 0).then_some(gid),
        own_gid: attributes.own_gid,
        lid: attributes.lid,
    }
}

/// The same back.
pub(super) fn route_to_c(route: &Route, port: u8) -> IbvAhAttr {
    let gid = route.gid.unwrap_or_default();
    let half = |from: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&gid[from..from + 8]);
        u64::from_ne_bytes(word)
    };
    IbvAhAttr {
        gid: [half(0), half(8)],
        own_gid: route.own_gid,
        lid: route.lid,
        is_global: route.gid.is_some().into(),
        port,
        ..zeroed()
    }
}
