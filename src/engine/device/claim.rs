//! A free channel, of the first engine that has one.

use super::channel::Channel;
use super::function::{Function, Need};
use crate::error::{Error, Result};
use std::path::PathBuf;

/// An engine that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its bus id.
    pub name: String,
    /// The file that is its BAR.
    pub resource: PathBuf,
}

/// Takes a channel of the first of `candidates` that has one free. It is the caller's until the
/// channel is dropped, or the process ends.
///
/// # Errors
/// [`Error::NotFound`] says of each engine how many channels it has, where all are taken;
/// [`Error::UnfitEngine`] or [`Error::System`] of the first engine that cannot be used, since using
/// a farther one instead would only hide that.
pub fn claim(candidates: &[Candidate], need: &Need) -> Result<Channel> {
    let mut taken = Vec::new();
    for Candidate { name, resource } in candidates {
        let function = Function::open(name, resource)?;
        function.require(need)?;
        let count = function.identity().channel_count;
        for index in 0..count {
            if let Some(lock) = function.lock(index)? {
                if !taken.is_empty() {
                    tracing::info!(engine = %name, full = taken.join(", "), "not the first choice");
                }
                return Channel::new(function, index, lock);
            }
        }
        taken.push(format!("{name}: all {count} channels are taken"));
    }
    Err(Error::NotFound {
        wanted: "free channel of a device engine".into(),
        looked_for: if taken.is_empty() { "no engine".into() } else { taken.join("; ") },
        advice: "end another job, use fewer communicators, or set RINGDOVE_ENGINE=proxy".into(),
    })
}
