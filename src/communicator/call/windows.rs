//! One-sided transfers: from memory of one rank to memory of another, which takes no part. No other
//! rank agrees on them, and no plan is made: a launch copies, or asks the rank's engine.

use crate::communicator::connect::{ConnectedRank, PartOf};
use crate::communicator::state::Launcher;
use crate::error::{Error, Result};
use crate::id::{Rank, Registration};
use crate::plan::{Lane, LaneEnd, LaneKind, PortResolver, Side};
use ringdove_kernels::descriptor::OFFSET_MAX;

/// Up to here a rank's own threads copy where they reach both ends; beyond, its engine does where
/// it can, and leaves the threads to computation. Chosen, not measured: no GPU has run this yet.
const STORED_BYTES_MAX: u64 = 1 << 20;

/// A place in a rank's part of a registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowEnd {
    pub registration: Registration,
    pub rank: u32,
    /// Bytes from the part's start.
    pub offset: u64,
}

/// How a transfer is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowStep {
    /// Threads of this rank's GPU copy from one address to another.
    Copy { source: u64, destination: u64 },
    /// The engine moves the data along a route of the lane with this send port.
    Move { route: u32, port: u32 },
    /// In two steps, through memory of this rank.
    Relay,
}

/// How `bytes` go from the one end to the other; routes that are new are added, which waits until
/// every rank has registered both.
///
/// # Errors
/// [`Error::Argument`] for ranks, registrations and ranges that there are not, and where neither
/// threads nor the engine of this rank reach both ends; as `ConnectedRank::registered_buffer`.
pub(in crate::communicator) fn step(
    rank: &ConnectedRank,
    lane: u16,
    [from, to]: [&WindowEnd; 2],
    bytes: u64,
) -> Result<WindowStep> {
    rank.check()?;
    let mut launcher = rank.launcher();
    launcher.check_free("a one-sided transfer")?;
    let source = part(rank, &launcher, from)?;
    let destination = part(rank, &launcher, to)?;
    for (end, part) in [(from, &source), (to, &destination)] {
        if end.offset.checked_add(bytes).is_none_or(|end| end > part.bytes) {
            let expected = format!("a range within its {} bytes", part.bytes);
            let seen = format!("{bytes} bytes from {}", end.offset);
            return Err(Error::argument("part of a window", expected, seen));
        }
    }
    let reaches = |part: &PartOf| reaches(rank, part);
    let (by_threads, by_engine) = (
        reaches(&source) && reaches(&destination),
        rank.engine_moves(&source, &destination) && from.offset.max(to.offset) <= OFFSET_MAX,
    );
    if by_threads && (bytes <= STORED_BYTES_MAX || !by_engine) {
        let (source, destination) = (source.address + from.offset, destination.address + to.offset);
        return Ok(WindowStep::Copy { source, destination });
    }
    let own = rank.rank().0;
    if !by_engine && from.rank != own && to.rank != own {
        return Ok(WindowStep::Relay);
    }
    let peer = if to.rank == own { from.rank } else { to.rank };
    let port = window_port(rank, lane, peer, Side::Send)?;
    let route = rank.window_route(&mut launcher, port, [&source, &destination])?;
    Ok(WindowStep::Move { route, port })
}

/// The port of the lane with this number to `peer`, or from it.
///
/// # Errors
/// [`Error::Argument`] for a peer that there is not, and for the rank itself.
pub(in crate::communicator) fn window_port(
    rank: &ConnectedRank,
    index: u16,
    peer: u32,
    side: Side,
) -> Result<u32> {
    let own = rank.rank().0;
    if peer >= rank.rank_count() || peer == own {
        let expected = format!("one of the {} other ranks", rank.rank_count() - 1);
        return Err(Error::argument("peer of a window", expected, Rank(peer)));
    }
    let (from, to) = match side {
        Side::Send => (own, peer),
        Side::Receive => (peer, own),
    };
    let lane = Lane { from, to, index, kind: LaneKind::User };
    rank.port(LaneEnd { lane, side }).ok_or_else(|| {
        let expected = "a user lane (RINGDOVE_USER_LANES, Settings::user_lanes)";
        Error::argument("lane of windows", expected, index)
    })
}

/// Do loads and stores of this rank's threads reach the part?
fn reaches(rank: &ConnectedRank, part: &PartOf) -> bool {
    part.rank == rank.rank().0 || rank.process.geometry.stores && !rank.is_far(part.rank)
}

fn part(rank: &ConnectedRank, launcher: &Launcher, end: &WindowEnd) -> Result<PartOf> {
    let (number, count) = (end.registration.0, rank.rank_count());
    if end.rank >= count {
        let expected = format!("a rank below {count}");
        return Err(Error::argument("rank of a window's part", expected, Rank(end.rank)));
    }
    let range = launcher.routes.range(number).ok_or_else(|| {
        let expected = "one of this communicator, in use";
        Error::argument("registration of a window", expected, number)
    })?;
    let address = match end.rank == rank.rank().0 {
        true => range.address,
        false => rank.registered_buffer(number)?.addresses[end.rank as usize],
    };
    Ok(PartOf { registration: number, rank: end.rank, address, bytes: range.bytes })
}
