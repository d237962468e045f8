//! A device engine's form: numbers in its channel's tables and in those of the peers.

use super::engine::RankEngine;
use crate::communicator::connect::description::{PortDescription, RouteDescription, STAGING};
use crate::communicator::state::{Layout, ProcessState, RankState, STEP_TIMEOUT};
use crate::engine::Watch;
use crate::engine::device::{Channel, ChannelAddress, DeviceAttachment, DeviceParts, Registers};
use crate::error::Result;
use crate::id::{LaneId, Rank, RouteId};
use crate::settings::Settings;
use ringdove_kernels::bar;
use std::sync::Arc;

/// Fills the tables of the rank's channel, and lets it run.
pub(super) fn attach(
    process: &Arc<ProcessState>,
    state: &RankState,
    peers: &[ChannelAddress],
    settings: &Settings,
) -> Result<RankEngine> {
    if settings.trace.is_some() {
        tracing::warn!(
            "RINGDOVE_TRACE is for the proxy: the transfers of a device engine cannot be traced"
        );
    }
    let memory = &state.memory;
    let channel = memory.channel().expect("claimed with the rank's memory").clone();
    for (rank, address) in (0..).map(Rank).zip(peers).filter(|(rank, _)| *rank != state.rank) {
        channel.enter_peer(rank, address)?;
    }
    channel.enter_window(STAGING, memory.endpoint().staging, memory.layout.staging_bytes())?;
    for place in memory.layout.ports() {
        let port = PortDescription::of(&place, &Layout::new(&process.geometry, place.peer()));
        enter_port(&channel, state, &port)?;
    }
    channel.run(
        &Registers {
            ring_log2: settings.ring_log2,
            tail_address: memory.tail_address(),
            abort_address: memory.abort_address(),
            rank: state.rank,
        },
        STEP_TIMEOUT,
    )?;
    let attachment = DeviceAttachment::new(DeviceParts {
        rank: state.rank,
        channel,
        watch: Some(Watch::new(state.rank, memory.record()?)?),
        abort: memory.abort()?,
        alarm: process.clone(),
    })?;
    Ok(RankEngine::Device(attachment))
}

fn enter_port(channel: &Channel, state: &RankState, port: &PortDescription) -> Result<()> {
    let (own, layout) = (state.memory.endpoint(), &state.memory.layout);
    if let Some(offset) = port.signal {
        channel.enter_signal(port.number.into(), own.signals + offset, port.peer)?;
    }
    channel.enter_lane(
        LaneId(port.number),
        bar::Lane {
            peer: port.peer.0.into(),
            arrival_signal: if port.raises { port.there.number.into() } else { bar::NONE },
            completion_address: port.completion.map_or(0, |offset| own.signals + offset),
            valid: 1,
        },
    )?;
    let Some(RouteDescription { carries_data, offset, bytes }) = port.route else { return Ok(()) };
    let (source_base, source_length) = match carries_data {
        true => (own.staging, layout.staging_bytes()),
        false => (0, 0),
    };
    channel.enter_route(
        RouteId(port.number),
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
