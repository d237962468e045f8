//! What real drivers do to programs besides what their interface promises: locks that drain, few
//! hardware queues, bounded launch queues, stream capture. A [`Profile`] says which of it a machine
//! shows.

pub mod backlog;
pub mod capture;
pub mod connection;
mod keys;
pub mod lock;
pub mod profile;
pub mod slice;
pub mod watch;

pub use profile::Profile;
