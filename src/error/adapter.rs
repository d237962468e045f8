//! Errors of RDMA adapters.

use std::fmt;

/// A failure that an RDMA adapter reported, with all that identifies adapters, ports and peers
/// apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterFault {
    /// The adapter, for example `mlx5_0`.
    pub adapter: String,
    /// Its port, from 1.
    pub port: u8,
    /// The queue pair on this side; 0 if the failure concerns the whole adapter.
    pub queue_pair: u32,
    /// The queue pair on the peer's side; 0 if there is none.
    pub peer_queue_pair: u32,
    /// The kind of failure.
    pub kind: AdapterFaultKind,
    /// The port was reported down before the failure.
    pub port_down: bool,
}

/// How a failure came to be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterFaultKind {
    /// A work completion whose status is not success.
    Completion {
        /// The status' name in the verbs specification.
        status: String,
        /// The numeric `ibv_wc_status`.
        code: u32,
        /// The vendor's own code.
        vendor_code: u32,
        /// The usual cause.
        advice: &'static str,
    },
    /// An asynchronous event of the adapter.
    Event {
        /// Its name in the verbs specification.
        event: String,
        /// The numeric `ibv_event_type`.
        code: u32,
        /// The usual cause.
        advice: &'static str,
    },
    /// The adapter refused a call.
    Call {
        /// The function.
        call: &'static str,
        /// The `errno` that it returned.
        code: i32,
        /// Its text.
        text: String,
    },
}

impl fmt::Display for AdapterFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "adapter {} port {}", self.adapter, self.port)?;
        if self.queue_pair != 0 {
            write!(f, ", queue pair {:#x} (peer's {:#x})", self.queue_pair, self.peer_queue_pair)?;
        }
        match &self.kind {
            AdapterFaultKind::Completion { status, code, vendor_code, advice } => write!(
                f,
                ": the transfer ended with `{status}` (status {code}, vendor code \
                 {vendor_code:#x}); {advice}"
            )?,
            AdapterFaultKind::Event { event, code, advice } => {
                write!(f, ": the adapter reported `{event}` (event {code}); {advice}")?;
            }
            AdapterFaultKind::Call { call, code, text } => {
                write!(f, ": {call} failed with {text} ({code})")?;
            }
        }
        if self.port_down {
            write!(f, "; the port was reported down before")?;
        }
        Ok(())
    }
}
