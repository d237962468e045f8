//! From what an adapter reports to typed errors (R12).

use super::adapter::Adapter;
use super::library::text;
use super::queue::{Numbers, QueuePair};
use crate::error::{AdapterFaultKind, TransportCause};
use ibverbs_sys as sys;

/// A failed completion as a cause.
pub(super) fn completion(
    adapter: &Adapter,
    queue: &QueuePair,
    status: sys::ibv_wc_status::Type,
    vendor_code: u32,
) -> TransportCause {
    // SAFETY: the function returns constant strings.
    let name = unsafe { text((adapter.context().functions.wc_status_str)(status)) };
    let kind = AdapterFaultKind::Completion {
        status: name,
        code: status,
        vendor_code,
        advice: advice(status),
    };
    cause(adapter, queue.numbers(), kind)
}

/// A call that the adapter refused.
pub(super) fn call(
    adapter: &Adapter,
    numbers: Numbers,
    call: &'static str,
    code: i32,
) -> TransportCause {
    let text = std::io::Error::from_raw_os_error(code).to_string();
    cause(adapter, numbers, AdapterFaultKind::Call { call, code, text })
}

/// An event of the adapter.
pub(super) fn event(
    adapter: &Adapter,
    numbers: Numbers,
    event: sys::ibv_event_type,
) -> TransportCause {
    // SAFETY: the function returns constant strings.
    let name = unsafe { text((adapter.context().functions.event_type_str)(event)) };
    let advice = match event {
        sys::IBV_EVENT_CQ_ERR => "its completion queue overran; this is a bug of the library",
        sys::IBV_EVENT_QP_ACCESS_ERR => {
            "the peer accessed memory without permission; look for its error"
        }
        sys::IBV_EVENT_QP_REQ_ERR => "the peer sent an invalid request; look for its error",
        sys::IBV_EVENT_DEVICE_FATAL => "the adapter needs a reset; see the kernel's log",
        _ => "see the kernel's log",
    };
    cause(adapter, numbers, AdapterFaultKind::Event { event: name, code: event, advice })
}

fn cause(adapter: &Adapter, numbers: Numbers, kind: AdapterFaultKind) -> TransportCause {
    TransportCause::Adapter(Box::new(adapter.fault(numbers, kind)))
}

/// True for the status of work that ended only because other work of its queue pair had failed.
pub(super) fn is_flush(status: sys::ibv_wc_status::Type) -> bool {
    status == sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR
}

/// What usually is behind a status.
fn advice(status: sys::ibv_wc_status::Type) -> &'static str {
    use sys::ibv_wc_status as wc;
    match status {
        wc::IBV_WC_RETRY_EXC_ERR => {
            "the peer did not answer: it has ended, its port is down, or the network drops \
             packets (on RoCE, check flow control, MTU and GIDs)"
        }
        wc::IBV_WC_RNR_RETRY_EXC_ERR => "the peer does not receive messages; it may be stalled",
        wc::IBV_WC_REM_ACCESS_ERR => {
            "the peer's adapter refused: the memory is not registered there (any more)"
        }
        wc::IBV_WC_LOC_PROT_ERR => {
            "this side's memory is not registered (any more), or the GPU refused the read"
        }
        wc::IBV_WC_REM_OP_ERR | wc::IBV_WC_REM_INV_REQ_ERR => {
            "the peer's adapter could not carry it out; look for an error there"
        }
        wc::IBV_WC_WR_FLUSH_ERR => {
            "the queue pair was in the error state; look for an earlier error on either side"
        }
        wc::IBV_WC_LOC_LEN_ERR | wc::IBV_WC_LOC_QP_OP_ERR => "this is a fault of the library",
        _ => "see the kernel's log",
    }
}
