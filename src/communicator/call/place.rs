//! Registered memory of sends and receives: which transfers of a group go from there or to there
//! without a copy (R15). Each rank decides for its own memory alone.

use super::cache;
use super::request::{Call, GroupCall};
use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{Launcher, RegisteredPlace, RegisteredRange};
use crate::engine::RegionDescriptor;
use crate::error::Result;
use crate::gpu::Current;
use crate::id::Rank;
use crate::plan::{self, Collective, CollectiveRequest, Direction, PROVED_RANKS_MAX, PointToPoint};
use ringdove_kernels::launch::place;
use std::borrow::Cow;
use std::time::Duration;

/// How long a call waits to find that nothing runs: an event of an idle stream takes so long.
const PATIENCE: Duration = Duration::from_millis(5);

/// The group, with the places of its registered memory.
///
/// # Errors
/// [`Error::Cuda`](crate::Error::Cuda) where the context cannot be used.
pub(super) fn group<'a>(
    rank: &ConnectedRank,
    launcher: &mut Launcher,
    call: &'a GroupCall,
    capture: Option<u64>,
) -> Result<Cow<'a, GroupCall>> {
    let is_usable = rank.process.writes_registered_buffers() && !call.may_overlap;
    let caches = cache::is_used(rank) && capture.is_none();
    if !is_usable || !(launcher.routes.has_any() || caches) {
        return Ok(Cow::Borrowed(call));
    }
    let current = Current::bind(&rank.state.context)?;
    let limits = rank.process.limits(rank.process.geometry.pair_slot_bytes);
    let mut placed = Cow::Borrowed(call);
    for (number, (transfer, _)) in call.members().enumerate() {
        let concerns = match transfer.direction {
            Direction::Send => plan::goes_in_place(transfer.bytes, &limits),
            Direction::Receive => plan::is_granted(transfer.bytes, &limits),
        };
        if !concerns || Rank(transfer.peer) == rank.rank() {
            continue;
        }
        let Some(allocation) = current.allocation(transfer.address) else { continue };
        let PointToPoint { address, bytes, .. } = transfer;
        let wanted = RegisteredRange { address, bytes, allocation: allocation.id };
        let known = launcher.routes.find_any(wanted);
        let cached = |launcher: &mut Launcher| match caches && plan::is_granted(bytes, &limits) {
            true => cache::place(rank, launcher, &current, address, &allocation),
            false => None,
        };
        let Some(place) = known.or_else(|| cached(launcher)) else { continue };
        let word = word(rank, launcher, &transfer, place, capture.is_some());
        let word = word.unwrap_or_else(|error| {
            tracing::debug!(%error, rank = rank.rank().0, "a registered buffer is staged");
            None
        });
        if let Some(word) = word {
            placed.to_mut().place(number, word);
            rank.places.count(transfer.direction);
        }
    }
    Ok(placed)
}

/// A gather or a scatter as the sends and receives that it is, where these need no copy between
/// registered buffers. All ranks say the same: it follows from sizes.
pub(super) fn as_messages(rank: &ConnectedRank, call: &Call) -> Option<GroupCall> {
    let (own, ranks) = (rank.rank().0, rank.rank_count());
    let (root, to_root) = match call.shape.collective {
        Collective::Gather { root } => (root, true),
        Collective::Scatter { root } => (root, false),
        _ => return None,
    };
    let bytes = call.shape.bytes();
    let limits = rank.process.limits(rank.process.geometry.pair_slot_bytes);
    if !(2..=PROVED_RANKS_MAX).contains(&ranks) || !plan::is_granted(bytes, &limits) {
        return None;
    }
    let [input, output] = call.buffers;
    let mut transfers = Vec::new();
    let mut add = |peer, direction, address| {
        transfers.push(PointToPoint { peer, direction, address, bytes, registered: false });
    };
    let part = |buffer, rank: u32| buffer + u64::from(rank) * bytes;
    let (at_root, at_peer) = match to_root {
        true => (Direction::Receive, Direction::Send),
        false => (Direction::Send, Direction::Receive),
    };
    if own == root {
        let parts = if to_root { output } else { input };
        (0..ranks).for_each(|peer| add(peer, at_root, part(parts, peer)));
    }
    add(root, at_peer, if to_root { input } else { output });
    let data_types = vec![call.shape.data_type; transfers.len()];
    Some(GroupCall::new(transfers, data_types))
}

/// The number of the source that a collective's registered input is in, where the rank may put from
/// there into slots of its successor; `None` where it may not, or there is no room.
pub(super) fn input(
    rank: &ConnectedRank,
    launcher: &Launcher,
    request: &CollectiveRequest,
    registered: Option<[RegisteredPlace; 2]>,
    capture: Option<u64>,
) -> Option<u32> {
    let [RegisteredPlace { registration, .. }, _] = registered?;
    if !request.may_send_from_input() || !rank.process.writes_registered_buffers() {
        return None;
    }
    let range = launcher.routes.range(registration)?;
    let region = RegionDescriptor { base: range.address, length_bytes: range.bytes };
    let successor = Rank((rank.rank().0 + 1) % rank.rank_count());
    let source = rank.places.source(registration, region, successor, capture.is_some());
    source.unwrap_or_else(|error| {
        tracing::debug!(%error, rank = rank.rank().0, "a registered input is staged");
        None
    })
}

/// The place as kernels name it; `None` where the peer does not know it yet, or there is no room.
fn word(
    rank: &ConnectedRank,
    launcher: &Launcher,
    transfer: &PointToPoint,
    RegisteredPlace { registration, offset }: RegisteredPlace,
    captured: bool,
) -> Result<Option<u64>> {
    let peer = Rank(transfer.peer);
    Ok(match transfer.direction {
        Direction::Send => {
            let Some(range) = launcher.routes.range(registration) else { return Ok(None) };
            let region = RegionDescriptor { base: range.address, length_bytes: range.bytes };
            let source = rank.places.source(registration, region, peer, captured)?;
            source.map(|source| place::of_source(source, offset))
        }
        Direction::Receive => {
            let grant = rank.places.grant(peer, registration)?;
            grant.map(|(number, generation)| place::of_grant(number, generation, offset))
        }
    })
}

/// Opens memory of other processes into which others let this rank put, where the driver may wait
/// for the GPU: nothing of this process runs.
pub(super) fn open_waiting(rank: &ConnectedRank, launcher: &Launcher, capture: Option<u64>) {
    let idle = || {
        let alone = rank.process.local_count() == 1;
        capture.is_none() && alone && launcher.wait(PATIENCE)
    };
    if rank.places.has_waiting() && idle() {
        rank.places.open_waiting();
    }
}
