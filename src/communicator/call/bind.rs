//! The arguments of a call: addresses and routes, as the kernel takes them.

use super::request::{Call, GroupCall, OUTPUT};
use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{Launcher, PlanShape, RegisteredPlace};
use crate::error::Result;
use cudarc::driver::CudaStream;
use ringdove_kernels::element::DataType;
use ringdove_kernels::launch::CallArguments;
use ringdove_kernels::op::BUFFERS_MAX;
use std::ops::Range;

/// The number of scratch memory among a launch's buffers.
const SCRATCH: usize = 2;

/// The arguments of a collective. `source` is the number of the source that the input is in, if
/// slots are filled from there (R15).
pub(super) fn collective(
    call: &Call,
    registered: Option<[RegisteredPlace; 2]>,
    routes: [u32; 2],
    source: Option<u32>,
    scratch: &Range<u64>,
) -> CallArguments {
    let data_type = call.shape.data_type;
    let mut arguments = CallArguments { data_type: data_type as u32, ..CallArguments::default() };
    if let Some(reduction) = call.shape.reduction() {
        arguments.scalar = reduction.scalar_bits(data_type);
        arguments.reduce_op = reduction.op as u32;
    }
    arguments.source = source.unwrap_or_default();
    arguments.buffers[..call.buffers.len()].copy_from_slice(&call.buffers);
    arguments.buffers[SCRATCH] = scratch.start;
    for (buffer, place) in registered.iter().flatten().enumerate() {
        arguments.region_offsets[buffer] = place.offset;
        arguments.route_bases[buffer * BUFFERS_MAX + OUTPUT] = routes[buffer];
    }
    arguments
}

/// Adds the table of all ranks' addresses of input and output, where the plan asks for it: all
/// inputs, then all outputs, as encoded plans number them.
///
/// # Errors
/// As [`ConnectedRank::registered_buffer`] and [`PlanMemory::table_of_peers`].
///
/// [`PlanMemory::table_of_peers`]: crate::communicator::state::PlanMemory::table_of_peers
pub(super) fn peers(
    rank: &ConnectedRank,
    launcher: &mut Launcher,
    arguments: &mut CallArguments,
    (registered, shape): (Option<[RegisteredPlace; 2]>, &PlanShape),
    (stream, capture): (&CudaStream, Option<u64>),
) -> Result<()> {
    let Some(places) = registered.filter(|_| shape.reaches_peers) else { return Ok(()) };
    let find = || {
        let mut table = Vec::new();
        for RegisteredPlace { registration, offset } in places {
            let addresses = rank.registered_buffer(registration)?.addresses;
            table.extend(addresses.iter().map(|address| address + offset));
        }
        Ok(table)
    };
    arguments.addresses = launcher.plans.table_of_peers(places, find, stream, capture)?;
    arguments.address_count = 2 * rank.rank_count();
    Ok(())
}

/// The arguments of a group, which moves bytes and reduces nothing. The table of its addresses is
/// uploaded, on `stream`, where the last launch of its plan had others.
///
/// # Errors
/// As [`PlanMemory::table`](crate::communicator::state::PlanMemory::table).
pub(super) fn group(
    launcher: &mut Launcher,
    call: &GroupCall,
    stream: &CudaStream,
    capture: Option<u64>,
) -> Result<CallArguments> {
    let plans = &mut launcher.plans;
    Ok(CallArguments {
        data_type: DataType::U8 as u32,
        addresses: plans.table(&call.transfers, &call.table, stream, capture)?,
        address_count: call.table.len() as u32,
        ..CallArguments::default()
    })
}
