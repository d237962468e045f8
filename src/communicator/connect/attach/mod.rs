//! What a rank's engine gets: its ring, its lanes and its routes. They are described once, in
//! numbers and offsets; each engine gets them in its own form: the proxy with addresses in the
//! peers' memory, a device engine with numbers of the peers' tables.

mod device;
mod engine;
mod proxy;

pub(in crate::communicator) use engine::RankEngine;
pub(super) use proxy::InterNodeLanes;

use super::reach::Reached;
use crate::communicator::state::{ProcessState, RankState};
use crate::engine::device::ChannelAddress;
use crate::error::Result;
use crate::settings::Settings;
use std::sync::Arc;

/// How a rank's engine reaches the other ranks.
pub(super) enum Others {
    /// By addresses, and over verbs those for which lanes are named.
    Addressed(Reached, Option<Box<InterNodeLanes>>),
    /// Engine to engine, by each rank's channel.
    Channels(Vec<ChannelAddress>),
}

/// Gives a rank to its engine, with all lanes to its peers and static routes.
pub(super) fn attach(
    process: &Arc<ProcessState>,
    state: &RankState,
    others: Others,
    settings: &Settings,
) -> Result<RankEngine> {
    match others {
        Others::Addressed(reached, inter_node) => {
            proxy::attach(process, state, reached, inter_node, settings)
        }
        Others::Channels(peers) => device::attach(process, state, &peers, settings),
    }
}
