//! Address handles: where datagrams go.

use super::context::OpenDevice;
use super::domains::DomainObject;
use super::layout::{IbvAh, IbvAhAttr};
use super::objects::{errno_of, refused, zeroed};
use super::pointer::{Object, Source};
use hwsim_machine::adapter::Route;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

/// An address handle. The library fills in what programs read.
#[repr(C)]
pub(super) struct AddressHandle {
    c: UnsafeCell<IbvAh>,
    pub route: Route,
    /// Stays open as long as one of its handles.
    _device: Arc<OpenDevice>,
}

/// `create_ah`.
pub(super) extern "C" fn create_ah(
    pd: Object<DomainObject>,
    attributes: Source<IbvAhAttr>,
) -> Object<AddressHandle> {
    let (Some(pd), Some(wanted)) = (pd.non_null(), attributes.non_null()) else {
        return refused(libc::EINVAL);
    };
    let (device, route) = (&pd.get().device, route_from_c(&wanted));
    if wanted.port != 1 {
        return refused(libc::EINVAL);
    }
    if let Err(error) = device.device.port_of(&route) {
        return refused(errno_of(&error));
    }
    let c = UnsafeCell::new(zeroed());
    Object::give(Box::new(AddressHandle { c, route, _device: Arc::clone(device) }))
}

/// `destroy_ah`.
pub(super) extern "C" fn destroy_ah(handle: Object<AddressHandle>) -> c_int {
    drop(handle.take());
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
