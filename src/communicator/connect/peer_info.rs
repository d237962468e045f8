//! What each rank sends the others when a communicator over several processes is made: which
//! process it runs in, and how its memory is reached.

use crate::bootstrap::agreement::ProcessTreePosition;
use crate::bootstrap::{ControlPlane, random_bytes};
use crate::communicator::state::{ExportedMemory, ProcessState, RankState};
use crate::engine::device::ChannelAddress;
use crate::error::{Error, Result};
use crate::gpu::{Export, is_not_shared};
use crate::id::Rank;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// Identifies one process among all, wherever they run.
pub(super) type ProcessName = [u8; 16];

/// What a rank sends the others. `Endpoint` is its memory, or its channel of a device engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PeerInfo<Endpoint> {
    process: ProcessName,
    /// Its parent in the control plane's tree.
    parent: Option<u32>,
    /// How it is reached.
    pub endpoint: Endpoint,
}

/// Signals and staging memory, where the driver shares them with other processes.
pub(super) type SharedMemory = Option<[ExportedMemory; 2]>;

/// The name of this process.
pub(super) fn process_name() -> Result<ProcessName> {
    static NAME: OnceLock<ProcessName> = OnceLock::new();
    if let Some(name) = NAME.get() {
        return Ok(*name);
    }
    let name = random_bytes()?;
    Ok(*NAME.get_or_init(|| name))
}

impl PeerInfo<SharedMemory> {
    /// Of a rank whose memory others open, where there are other processes on its node.
    pub fn of(state: &RankState, plane: &ControlPlane, is_alone: bool) -> Result<Self> {
        if is_alone {
            return Self::new(plane, None);
        }
        let export = |address| Export::of(&state.context, address).map(ExportedMemory::from);
        let endpoint = state.memory.endpoint();
        let exports = || Ok([export(endpoint.signals)?, export(endpoint.staging)?]);
        let memory = match exports() {
            Err(refused) if is_not_shared(&refused) => {
                tracing::debug!(rank = state.rank.0, %refused, "memory not shared");
                None
            }
            other => Some(other?),
        };
        Self::new(plane, memory)
    }
}

impl PeerInfo<ChannelAddress> {
    /// Of a rank whose engine is a device.
    pub fn of_channel(state: &RankState, plane: &ControlPlane) -> Result<Self> {
        let channel = state.memory.channel().expect("claimed with the rank's memory");
        Self::new(plane, channel.address())
    }
}

impl<Endpoint> PeerInfo<Endpoint> {
    fn new(plane: &ControlPlane, endpoint: Endpoint) -> Result<Self> {
        let parent = plane.parent().map(|rank| rank.0);
        Ok(Self { process: process_name()?, parent, endpoint })
    }
}

/// The ranks of this process. `infos` are those of all ranks.
///
/// # Errors
/// [`Error::PeerValue`] where a rank claims to be of this process and is not: addresses of this
/// process are taken from its own ranks alone.
pub(super) fn local_ranks<T>(process: &ProcessState, infos: &[PeerInfo<T>]) -> Result<Vec<Rank>> {
    let own = process_name()?;
    let local = (0..).map(Rank).zip(infos).filter(|(_, info)| info.process == own);
    let joined = |(rank, _): (Rank, &PeerInfo<T>)| match process.state(rank) {
        Ok(_) => Ok(rank),
        Err(_) => {
            let expected = "another process, since it has not joined in this one";
            Err(Error::peer_value(rank, "its process", expected, "the name of this process"))
        }
    };
    local.map(joined).collect()
}

/// The position of this process among those of the job. `infos` are those of all ranks.
pub(super) fn tree_position<T>(infos: &[PeerInfo<T>]) -> Result<ProcessTreePosition> {
    let ranks: Vec<_> = infos.iter().map(|info| (info.process, info.parent)).collect();
    Ok(ProcessTreePosition::of(&process_name()?, &ranks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::state::{Geometry, Nodes};
    use crate::settings::Settings;

    /// If this fails, a peer that claims this process's name has its addresses used as they are.
    #[test]
    fn a_rank_that_has_not_joined_here_is_not_of_this_process() {
        let geometry = Geometry::new(2, Nodes::One, &Settings::default()).unwrap();
        let process = ProcessState::new(geometry);
        let other = PeerInfo { process: ProcessName::default(), parent: None, endpoint: () };
        assert_eq!(local_ranks(&process, &[other.clone(), other.clone()]).unwrap(), []);
        let claimed = PeerInfo { process: process_name().unwrap(), ..other.clone() };
        let refused = local_ranks(&process, &[other, claimed]).unwrap_err();
        assert!(matches!(refused, Error::PeerValue { rank: Rank(1), .. }), "{refused}");
    }
}
