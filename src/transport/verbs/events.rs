//! Asynchronous events of an adapter.

use super::adapter::Adapter;
use ibverbs_sys as sys;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::os::fd::BorrowedFd;

/// An event that ends the service of a queue pair, or of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) code: sys::ibv_event_type,
    pub(super) subject: Subject,
}

// SAFETY: the pointer in it is only ever compared.
unsafe impl Send for Event {}

/// Whom an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Queue(*mut sys::ibv_qp),
    Adapter,
}

/// Makes reading events return at once where there is none.
///
/// # Errors
/// The system's answer.
pub(super) fn make_non_blocking(adapter: &Adapter) -> nix::Result<()> {
    // SAFETY: the context is open, and the file with it, until the adapter is dropped.
    let file = unsafe {
        let context = adapter.context().raw.as_ref();
        BorrowedFd::borrow_raw(context.async_fd)
    };
    let flags = OFlag::from_bits_truncate(fcntl(file, FcntlArg::F_GETFL)?);
    fcntl(file, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// The next event that is fatal to somebody. Notes of a port are kept at the adapter.
pub(super) fn next_fatal(adapter: &Adapter) -> Option<Event> {
    /// More events than this at once wait for the next look.
    const EVENTS_MAX: usize = 16;
    (0..EVENTS_MAX).map_while(|_| next(adapter)).find(|event| match event.code {
        sys::IBV_EVENT_PORT_ERR | sys::IBV_EVENT_PORT_ACTIVE => {
            adapter.set_port_down(event.code == sys::IBV_EVENT_PORT_ERR);
            false
        }
        code => matches!(
            code,
            sys::IBV_EVENT_CQ_ERR
                | sys::IBV_EVENT_QP_FATAL
                | sys::IBV_EVENT_QP_REQ_ERR
                | sys::IBV_EVENT_QP_ACCESS_ERR
                | sys::IBV_EVENT_DEVICE_FATAL
        ),
    })
}

fn next(adapter: &Adapter) -> Option<Event> {
    let context = adapter.context();
    let mut event = sys::ibv_async_event {
        element: sys::ibv_async_event__bindgen_ty_1 { port_num: 0 },
        event_type: 0,
    };
    // SAFETY: the context is open and the event outlives the calls. An event that was read is
    // acknowledged at once, so that destroying its subject does not wait for it. The subject is
    // not looked into: it may be gone.
    unsafe {
        if (context.functions.get_async_event)(context.raw.as_ptr(), &mut event) != 0 {
            return None;
        }
        (context.functions.ack_async_event)(&mut event);
    }
    let subject = match event.event_type {
        sys::IBV_EVENT_QP_FATAL | sys::IBV_EVENT_QP_REQ_ERR | sys::IBV_EVENT_QP_ACCESS_ERR => {
            // SAFETY: events of queue pairs carry a queue pair.
            Subject::Queue(unsafe { event.element.qp })
        }
        _ => Subject::Adapter,
    };
    Some(Event { code: event.event_type, subject })
}
