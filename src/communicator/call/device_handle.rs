//! What users' kernels are given: the ports of their lanes, and routes between their windows.

use super::connect;
use crate::communicator::connect::ConnectedRank;
use crate::error::{Error, Result};
use crate::gpu::DeviceMemory;
use crate::id::{Rank, Registration};
use crate::plan::{Lane, LaneEnd, LaneKind, PortResolver, Side};
use ringdove_kernels::user::{DeviceHandle, LanePorts, NO_PORT, WindowEntry};

/// When the kernels that are given a handle ring the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communicator) enum Rings {
    /// Whenever their author likes.
    Anytime,
    /// For peers alone whose windows stores do not reach.
    WhereNoStoresReach,
}

/// Writes a [`DeviceHandle`] and its tables to the device; gives the memory, which begins with the
/// handle.
///
/// # Errors
/// Those of [`Communicator::device_handle`](crate::Communicator::device_handle).
pub(in crate::communicator) fn device_handle(
    rank: &ConnectedRank,
    windows: &[Registration],
    rings: Rings,
) -> Result<DeviceMemory> {
    rank.check()?;
    let process = &rank.process;
    let lane_count = process.geometry.user_lanes;
    if lane_count == 0 {
        let expected = "RINGDOVE_USER_LANES (Settings::user_lanes) of 1 at least, on all ranks";
        return Err(Error::argument("device handle", expected, 0));
    }
    // Windows of experts lie in host memory there.
    let is_of_experts = rings == Rings::WhereNoStoresReach;
    if !windows.is_empty() && !is_of_experts && process.needs_host_windows() {
        let expected = "ranks that reach each other's GPU memory; use slots elsewhere";
        let seen = "pairs whose messages go through host memory";
        return Err(Error::argument("windows of a device handle", expected, seen));
    }
    let mut launcher = rank.launcher();
    let mut routes = Vec::new();
    for (from, to) in windows.iter().flat_map(|from| windows.iter().map(move |to| (from, to))) {
        routes.push(connect::routes(rank, &mut launcher, from.0, to.0)?);
    }
    let mut reached = Vec::new();
    for window in windows {
        reached.extend(reached_parts(rank, window.0)?);
    }
    let ranges = windows.iter().filter_map(|window| launcher.routes.range(window.0));
    let windows: Vec<_> =
        ranges.map(|range| WindowEntry { address: range.address, bytes: range.bytes }).collect();
    let ports: Vec<_> = (0..rank.rank_count())
        .flat_map(|peer| (0..lane_count as u16).map(move |index| ports(rank, Rank(peer), index)))
        .collect();

    let parts: [&[u8]; 4] = [
        bytemuck::cast_slice(&ports),
        bytemuck::cast_slice(&windows),
        bytemuck::cast_slice(&reached),
        bytemuck::cast_slice(&routes),
    ];
    let bytes = size_of::<DeviceHandle>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let memory = DeviceMemory::zeroed(&rank.state.context, bytes)?;
    let mut offset = size_of::<DeviceHandle>();
    let addresses = parts.map(|part| {
        let address = memory.address() + offset as u64;
        offset += part.len();
        address
    });
    let handle = DeviceHandle {
        communicator: rank.state.memory.communicator(),
        ports: addresses[0],
        windows: addresses[1],
        routes: addresses[3],
        lane_count,
        window_count: windows.len() as u32,
        reached: addresses[2],
    };
    let tables = parts.concat();
    memory.write(0, &[bytemuck::bytes_of(&handle), &tables[..]].concat())?;
    // An engine that expects nobody rests, and leaves its processor to others.
    if rings == Rings::Anytime || reached.contains(&0) {
        launcher.expect_user_kernels();
        rank.engine().announce(launcher.announced());
    }
    Ok(memory)
}

/// Every rank's part of registration `number`, which is open, as stores of this rank's kernels
/// reach it; 0 where they do not.
fn reached_parts(rank: &ConnectedRank, number: usize) -> Result<Vec<u64>> {
    let (geometry, own) = (&rank.process.geometry, rank.rank().0);
    let addresses = rank.registered_buffer(number)?.addresses;
    let is_reached = |peer| peer == own || geometry.stores && !geometry.are_apart(own, peer);
    Ok((0..).zip(addresses).map(|(peer, address)| address * u64::from(is_reached(peer))).collect())
}

/// The ports of the lanes to and from `peer`.
fn ports(rank: &ConnectedRank, peer: Rank, index: u16) -> LanePorts {
    let port = |from: Rank, to: Rank, side| {
        let lane = Lane { from: from.0, to: to.0, index, kind: LaneKind::User };
        rank.port(LaneEnd { lane, side }).unwrap_or(NO_PORT)
    };
    LanePorts {
        send: port(rank.rank(), peer, Side::Send),
        receive: port(peer, rank.rank(), Side::Receive),
    }
}
