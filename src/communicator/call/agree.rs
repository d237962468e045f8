//! Do all ranks make the same call?

use super::request::{Call, GroupCall, Shape};
use crate::bootstrap::agreement::{NamedValue, Pair, Value, signature};
use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{Launcher, RegisteredPlace};
use crate::error::Result;
use crate::flight::Digest;
use crate::id::Rank;
use crate::plan::{CollectiveRequest, Direction};
use ringdove_kernels::element::ReduceOp;

/// Compares a collective call with those of the other ranks.
///
/// # Errors
/// [`Error::Disagreement`](crate::Error::Disagreement), which ends the communicator.
pub(super) fn collective(
    rank: &ConnectedRank,
    launcher: &mut Launcher,
    call: &Call,
    registered: Option<[RegisteredPlace; 2]>,
) -> Result<()> {
    let number = launcher.next_collective();
    let request = call.request(rank.rank().0, rank.rank_count(), registered.is_some());
    let signature = collective_signature(&call.shape, &request, registered);
    record(rank, number, &call.shape);
    let agreed =
        rank.process.compare_calls(|calls| calls.collective(rank.rank(), number, &signature));
    agreed.map_err(|error| rank.fail(error))
}

/// Records the call, before it is compared: where it differs, both sides show.
fn record(rank: &ConnectedRank, number: u64, shape: &Shape) {
    let Shape { collective, count, data_type, .. } = *shape;
    let reduction = shape.reduction().map_or(0, |reduction| 1 + reduction.op as u64);
    let root = collective.root().map_or(0, |root| 1 + u64::from(root));
    let name = collective.name();
    let word = name.bytes().fold(0u64, |word, byte| word.rotate_left(8) ^ u64::from(byte));
    let digest = Digest::of([word, count as u64, data_type as u64, reduction, root]);
    rank.flight.collective(number, name, count as u64, digest);
}

/// The values of a call that must be equal on all ranks. Their number and order is the same for all
/// collectives.
fn collective_signature(
    shape: &Shape,
    request: &CollectiveRequest,
    registered: Option<[RegisteredPlace; 2]>,
) -> [NamedValue; 11] {
    let nowhere = RegisteredPlace { registration: 0, offset: 0 };
    let [input, output] = registered.unwrap_or([nowhere; 2]);
    let yes_or_no = |value| Value::word(if value { "yes" } else { "no" });
    let reduction = shape.reduction().map_or("none", |reduction| reduce_op_name(reduction.op));
    let root = shape.collective.root();
    signature([
        ("operation", Value::word(shape.collective.name())),
        ("count", Value::Number(shape.count as u64)),
        ("data type", Value::word(shape.data_type.name())),
        ("reduction", Value::word(reduction)),
        ("root", root.map_or(Value::word("none"), |root| Value::Number(root.into()))),
        // With a root, the root alone may be in place.
        ("in place", yes_or_no(request.in_place && root.is_none())),
        ("registered buffers", yes_or_no(request.registered)),
        ("registration of the input", Value::Number(input.registration as u64)),
        ("offset in the input's registration", Value::Number(input.offset)),
        ("registration of the output", Value::Number(output.registration as u64)),
        ("offset in the output's registration", Value::Number(output.offset)),
    ])
}

/// Compares the messages of a group with what their other sides name.
///
/// # Errors
/// As [`collective`].
pub(super) fn group(rank: &ConnectedRank, call: &GroupCall) -> Result<()> {
    let own = rank.rank();
    let to_others = || call.members().filter(|(transfer, _)| Rank(transfer.peer) != own);
    if let Some((first, _)) = to_others().next() {
        rank.flight.messages(to_others().count() as u64, Rank(first.peer));
    }
    let compared = rank.process.compare_calls(|calls| {
        to_others().try_for_each(|(transfer, data_type)| {
            let peer = Rank(transfer.peer);
            let pair = match transfer.direction {
                Direction::Send => Pair { from: own, to: peer },
                Direction::Receive => Pair { from: peer, to: own },
            };
            let size = data_type.size_bytes() as u64;
            let signature = signature([
                ("count", Value::Number(transfer.bytes / size)),
                ("data type", Value::word(data_type.name())),
            ]);
            calls.transfer(own, pair, &signature)
        })
    });
    compared.map_err(|error| rank.fail(error))
}

fn reduce_op_name(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "sum",
        ReduceOp::Prod => "prod",
        ReduceOp::Max => "max",
        ReduceOp::Min => "min",
        ReduceOp::Avg => "avg",
        ReduceOp::PreMulSum => "pre-mul sum",
    }
}
