//! Protection domains, thread domains, and parent domains, which join one of each.
//!
//! A virtual adapter locks what threads share in any case, and takes no memory from a program: a
//! thread domain changes nothing, and the functions that a parent domain names for allocations are
//! never called.

use super::context::{OpenDevice, new_domain, open_device};
use super::layout::{IbvContext, IbvParentDomainInitAttr, IbvPd, IbvTd, IbvTdInitAttr};
use super::objects::refused;
use super::pointer::{Object, Source, Target};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `_PD_CONTEXT`.
const PARENT_KNOWN: u32 = 0b11;

/// A protection domain, or a parent domain in its place.
#[repr(C)]
pub(super) struct DomainObject {
    c: UnsafeCell<IbvPd>,
    pub domain: u64,
    pub device: Arc<OpenDevice>,
    /// Parent domains that stand on it.
    parents: AtomicU32,
    /// What a parent domain stands on.
    below: Option<(Object<DomainObject>, Object<ThreadDomain>)>,
}

impl DomainObject {
    /// The context that it belongs to.
    pub fn context(&self) -> Target<IbvContext> {
        // SAFETY: the field does not change after the domain was made.
        unsafe { (*self.c.get()).context }
    }

    fn make(
        device: &Arc<OpenDevice>,
        context: Target<IbvContext>,
        domain: u64,
        below: Option<(Object<Self>, Object<ThreadDomain>)>,
    ) -> Object<Self> {
        Object::give(Box::new(Self {
            c: UnsafeCell::new(IbvPd { context, handle: domain as u32 }),
            domain,
            device: Arc::clone(device),
            parents: AtomicU32::new(0),
            below,
        }))
    }
}

/// A thread domain.
#[repr(C)]
pub(super) struct ThreadDomain {
    c: UnsafeCell<IbvTd>,
    parents: AtomicU32,
}

/// `alloc_pd`.
pub(super) extern "C" fn alloc_pd(context: Target<IbvContext>) -> Object<DomainObject> {
    DomainObject::make(open_device(context), context, new_domain(), None)
}

/// `alloc_parent_domain`.
pub(super) extern "C" fn alloc_parent_domain(
    context: Target<IbvContext>,
    attributes: Source<IbvParentDomainInitAttr>,
) -> Object<DomainObject> {
    let Some(wanted) = attributes.non_null() else { return refused(libc::EINVAL) };
    let Some(pd) = wanted.pd.non_null() else { return refused(libc::EINVAL) };
    if wanted.comp_mask & !PARENT_KNOWN != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    let domain = pd.get();
    if domain.below.is_some() {
        // A parent domain has a protection domain below it, not another parent.
        return refused(libc::EINVAL);
    }
    // Relaxed, here and below: programs order the making and the end of objects.
    domain.parents.fetch_add(1, Ordering::Relaxed);
    if let Some(td) = wanted.td.non_null() {
        td.get().parents.fetch_add(1, Ordering::Relaxed);
    }
    DomainObject::make(open_device(context), context, domain.domain, Some((pd, wanted.td)))
}

/// `dealloc_pd`, of both kinds.
pub(super) extern "C" fn dealloc_pd(pd: Object<DomainObject>) -> c_int {
    let domain = pd.get();
    match domain.below {
        Some((below, td)) => {
            below.get().parents.fetch_sub(1, Ordering::Relaxed);
            if let Some(td) = td.non_null() {
                td.get().parents.fetch_sub(1, Ordering::Relaxed);
            }
        }
        None => {
            let used = domain.parents.load(Ordering::Relaxed) > 0;
            if used || domain.device.network.uses_domain(domain.domain) {
                return libc::EBUSY;
            }
        }
    }
    drop(pd.take());
    0
}

/// `alloc_td`.
pub(super) extern "C" fn alloc_td(
    context: Target<IbvContext>,
    attributes: Source<IbvTdInitAttr>,
) -> Object<ThreadDomain> {
    if attributes.non_null().is_none_or(|wanted| wanted.comp_mask != 0) {
        return refused(libc::EINVAL);
    }
    let c = UnsafeCell::new(IbvTd { context });
    Object::give(Box::new(ThreadDomain { c, parents: AtomicU32::new(0) }))
}

/// `dealloc_td`.
pub(super) extern "C" fn dealloc_td(td: Object<ThreadDomain>) -> c_int {
    if td.get().parents.load(Ordering::Relaxed) > 0 {
        return libc::EBUSY;
    }
    drop(td.take());
    0
}
