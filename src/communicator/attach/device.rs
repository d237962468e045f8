//! A device engine's form: numbers in its channel's tables and in those of the peers.

use super::{PortDescription, RankEngine, RouteDescription, peer_of};
use crate::communicator::doorbell::STEP_TIMEOUT;
use crate::communicator::layout::Layout;
use crate::communicator::world::{Seat, World};
use crate::engine::Watch;
use crate::engine::device::{Channel, ChannelAddress, DeviceAttachment, DeviceParts, Registers};
use crate::error::Result;
use crate::id::{LaneId, Rank, RouteId};
use crate::settings::Settings;
use ringdove_kernels::bar;
use std::sync::Arc;

/// The number of the window that is a rank's staging memory; registrations follow it.
const STAGING: u64 = 0;

/// The number of the window that is registration `number`.
pub(super) fn window_of(number: usize) -> u64 {
    STAGING + 1 + number as u64
}

/// Fills the tables of the rank's channel, and lets it run.
pub(super) fn attach(
    world: &Arc<World>,
    seat: &Seat,
    peers: &[ChannelAddress],
    settings: &Settings,
) -> Result<RankEngine> {
    if settings.trace.is_some() {
        tracing::warn!(
            "RINGDOVE_TRACE is of the proxy: a device engine shows nobody its transfers"
        );
    }
    let memory = &seat.memory;
    let channel = memory.channel().expect("claimed with the rank's memory").clone();
    for (rank, address) in (0..).map(Rank).zip(peers).filter(|(rank, _)| *rank != seat.rank) {
        channel.enter_peer(rank, address)?;
    }
    channel.enter_window(STAGING, memory.endpoint().staging, memory.layout.staging_bytes)?;
    let layouts: Vec<_> =
        (0..).zip(peers).map(|(rank, _)| Layout::new(&world.geometry, Rank(rank))).collect();
    for (number, place) in (0..).zip(&memory.layout.ports) {
        let port = PortDescription::of(number, place, &layouts[peer_of(place)]);
        enter_port(&channel, seat, &port)?;
    }
    channel.run(
        &Registers {
            ring_log2: settings.ring_log2,
            tail_address: memory.tail_address(),
            abort_address: memory.abort_address(),
            rank: seat.rank,
        },
        STEP_TIMEOUT,
    )?;
    let attachment = DeviceAttachment::new(DeviceParts {
        rank: seat.rank,
        channel,
        watch: Some(Watch::new(seat.rank, memory.record()?)?),
        abort: memory.abort()?,
        alarm: world.clone(),
    })?;
    Ok(RankEngine::Device(attachment))
}

fn enter_port(channel: &Channel, seat: &Seat, port: &PortDescription) -> Result<()> {
    let (own, layout) = (seat.memory.endpoint(), &seat.memory.layout);
    if let Some(offset) = port.signal {
        channel.enter_signal(port.number.into(), own.signals + offset, port.peer)?;
    }
    channel.enter_lane(
        LaneId(port.number),
        bar::Lane {
            peer: port.peer.0.into(),
            arrival_signal: port.arrival.as_ref().map_or(bar::NONE, |far| far.port.into()),
            completion_address: port.completion.map_or(0, |offset| own.signals + offset),
            valid: 1,
        },
    )?;
    let Some(RouteDescription { carries_data, offset, bytes }) = port.route else { return Ok(()) };
    let (source_base, source_length) = match carries_data {
        true => (own.staging, layout.staging_bytes),
        false => (0, 0),
    };
    channel.enter_route(
        RouteId(port.number as u16),
        bar::Route {
            lane: port.number.into(),
            source_base,
            source_length,
            window: STAGING,
            window_offset: offset,
            destination_length: bytes,
            reserved: 0,
            valid: 1,
        },
    )
}
