//! Protection domains, thread domains, and parent domains, which join one of each.
//!
//! A virtual adapter locks what threads share in any case: a thread domain changes nothing. Memory
//! for queues comes from the functions that a parent domain names ([`super::allocators`]).

use super::allocators::Allocators;
use super::context::{OpenDevice, new_domain, open_device};
use super::layout::{IbvContext, IbvParentDomainInitAttr, IbvPd, IbvTd, IbvTdInitAttr};
use super::objects::refused;
use super::pointer::{Object, Source, Target};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS` and `_PD_CONTEXT`.
const PARENT_ALLOCATORS: u32 = 1;
const PARENT_CONTEXT: u32 = 1 << 1;

/// A protection domain, or a parent domain in its place.
#[repr(C)]
pub(super) struct DomainObject {
    c: UnsafeCell<IbvPd>,
    pub domain: u64,
    pub device: Arc<OpenDevice>,
    /// Parent domains that stand on it; queues that stand on a parent domain.
    users: AtomicU32,
    /// What a parent domain stands on.
    below: Option<(Object<DomainObject>, Object<ThreadDomain>)>,
    /// What gives the memory of queues that are made in it.
    pub allocators: Option<Allocators>,
}

impl DomainObject {
    /// The context that it belongs to.
    pub fn context(&self) -> Target<IbvContext> {
        // SAFETY: the field does not change after the domain was made.
        unsafe { (*self.c.get()).context }
    }

    /// Is it a parent domain?
    pub fn is_parent(&self) -> bool {
        self.below.is_some()
    }

    /// Something stands on it from now on.
    pub fn enter(&self) {
        // Relaxed, here and below: programs order the making and the end of objects.
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// And now no more.
    pub fn leave(&self) {
        self.users.fetch_sub(1, Ordering::Relaxed);
    }

    fn make(
        device: &Arc<OpenDevice>,
        context: Target<IbvContext>,
        domain: u64,
        below: Option<(Object<Self>, Object<ThreadDomain>)>,
        allocators: Option<Allocators>,
    ) -> Object<Self> {
        Object::give(Box::new(Self {
            c: UnsafeCell::new(IbvPd { context, handle: domain as u32 }),
            domain,
            device: Arc::clone(device),
            users: AtomicU32::new(0),
            below,
            allocators,
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
    DomainObject::make(open_device(context), context, new_domain(), None, None)
}

/// `alloc_parent_domain`.
pub(super) extern "C" fn alloc_parent_domain(
    context: Target<IbvContext>,
    attributes: Source<IbvParentDomainInitAttr>,
) -> Object<DomainObject> {
    let Some(wanted) = attributes.non_null() else { return refused(libc::EINVAL) };
    let Some(pd) = wanted.pd.non_null() else { return refused(libc::EINVAL) };
    if wanted.comp_mask & !(PARENT_ALLOCATORS | PARENT_CONTEXT) != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    let domain = pd.get();
    if domain.is_parent() {
        // A parent domain has a protection domain below it, not another parent.
        return refused(libc::EINVAL);
    }
    let own = if wanted.comp_mask & PARENT_CONTEXT != 0 { wanted.pd_context } else { 0 };
    let allocators = (wanted.comp_mask & PARENT_ALLOCATORS != 0)
        .then(|| Allocators::new(wanted.allocate, wanted.free, own))
        .flatten();
    domain.enter();
    if let Some(td) = wanted.td.non_null() {
        td.get().parents.fetch_add(1, Ordering::Relaxed);
    }
    let below = Some((pd, wanted.td));
    DomainObject::make(open_device(context), context, domain.domain, below, allocators)
}

/// `dealloc_pd`, of both kinds.
pub(super) extern "C" fn dealloc_pd(pd: Object<DomainObject>) -> c_int {
    let domain = pd.get();
    let used = domain.users.load(Ordering::Relaxed) > 0;
    if used || !domain.is_parent() && domain.device.network.uses_domain(domain.domain) {
        return libc::EBUSY;
    }
    if let Some((below, td)) = domain.below {
        below.get().leave();
        if let Some(td) = td.non_null() {
            td.get().parents.fetch_sub(1, Ordering::Relaxed);
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
