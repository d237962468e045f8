//! What real drivers do to programs besides what their interface promises: locks that drain, few
//! hardware queues, bounded launch queues, stream capture. A profile, [`crate::profile::Profile`],
//! says which of it a machine shows.

pub mod backlog;
pub mod capture;
pub mod connection;
pub mod lock;
pub mod slice;
pub mod watch;
