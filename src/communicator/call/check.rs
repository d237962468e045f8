//! Are the arguments of a call usable? What is refused here, no other rank knows of.

use super::operation::BufferRule;
use super::request::{Call, GroupCall, INPUT, OUTPUT};
use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{Launcher, Nodes, RegisteredPlace};
use crate::error::{Error, Result};
use crate::gpu::{Allocation, Current};
use crate::plan::Direction;
use cudarc::driver::{CudaContext, CudaStream, DeviceSlice};
use ringdove_kernels::element::DataType;

/// The buffers of a call that has been checked.
pub(super) struct Checked {
    /// Input and output: bytes, and the allocation that holds them; `None` for a buffer that this
    /// rank does not hold or that has no bytes.
    buffers: [Option<(u64, Allocation)>; 2],
}

/// Checks a collective call.
///
/// # Errors
/// [`Error::Argument`]; the error that ended the communicator before, if any.
pub(super) fn collective(
    rank: &ConnectedRank,
    call: &Call,
    stream: &CudaStream,
) -> Result<Checked> {
    rank.check()?;
    home("stream", stream, &rank.state.context)?;
    check_root(rank, call)?;
    let current = Current::bind(&rank.state.context)?;
    let bytes = [
        buffer_bytes(rank, call, call.operation.input)?,
        buffer_bytes(rank, call, call.operation.output)?,
    ];
    let check = |buffer: usize, what: &str| {
        let range = (call.buffers[buffer], bytes[buffer].unwrap_or(0));
        let held = bytes[buffer].is_some();
        let known = match held {
            true => element_range(&current, what, range, call.shape.data_type)?,
            false => None,
        };
        Ok::<_, Error>(known.map(|allocation| (range.1, allocation)))
    };
    let input = check(INPUT, "send buffer")?;
    let output = match call.buffers[INPUT] == call.buffers[OUTPUT] && bytes[INPUT] == bytes[OUTPUT]
    {
        true => input,
        false => check(OUTPUT, "receive buffer")?,
    };
    check_overlap(rank, call, bytes)?;
    Ok(Checked { buffers: [input, output] })
}

fn check_root(rank: &ConnectedRank, call: &Call) -> Result<()> {
    match call.shape.root {
        Some(root) if call.operation.has_root && root >= rank.rank_count() => {
            let expected = format!("a rank less than {}", rank.rank_count());
            Err(Error::argument("root", expected, root))
        }
        _ => Ok(()),
    }
}

/// Bytes of a buffer, if `rank` holds it.
fn buffer_bytes(rank: &ConnectedRank, call: &Call, rule: BufferRule) -> Result<Option<u64>> {
    let ranks = rank.rank_count();
    let elements = rule.elements(call.shape.count as u64, ranks).unwrap_or(u64::MAX);
    let bytes = bytes(elements, call.shape.data_type)?;
    Ok(rule.is_held_by(rank.rank().0, call.shape.root).then_some(bytes))
}

/// Input and output are in place by the operation's rule, or disjoint.
fn check_overlap(rank: &ConnectedRank, call: &Call, bytes: [Option<u64>; 2]) -> Result<()> {
    let [Some(sent), Some(received)] = bytes else { return Ok(()) };
    let [send, receive] = call.buffers;
    let apart = match send <= receive {
        true => receive - send >= sent,
        false => send - receive >= received,
    };
    let empty = sent == 0 || received == 0;
    if apart || empty || call.is_in_place(rank.rank().0) {
        return Ok(());
    }
    Err(Error::argument(
        "send and receive buffers",
        call.operation.in_place.expected(),
        format!("{sent} bytes at {send:#x} and {received} bytes at {receive:#x}"),
    ))
}

/// Where input and output lie in registered buffers, where both do and the call can use it.
///
/// # Errors
/// [`Error::StaleRegistration`], which ends the communicator.
pub(super) fn registered(
    rank: &ConnectedRank,
    launcher: &Launcher,
    call: &Call,
    checked: &Checked,
) -> Result<Option<[RegisteredPlace; 2]>> {
    // Between nodes everything is staged.
    let nodes = rank.process.geometry.nodes;
    let ([Some(input), Some(output)], Nodes::One, true) =
        (checked.buffers, nodes, call.operation.has_direct_plans)
    else {
        return Ok(None);
    };
    let find = |address, (bytes, allocation): (u64, Allocation)| {
        launcher.routes.find((address, bytes), allocation.id).map_err(|stale| {
            rank.fail(Error::StaleRegistration {
                rank: rank.rank(),
                registration: stale.registration,
                address,
                registered: stale.registered,
                seen: allocation.id,
            })
        })
    };
    let (input, output) = (find(call.buffers[INPUT], input)?, find(call.buffers[OUTPUT], output)?);
    Ok(input.zip(output).map(|(input, output)| [input, output]))
}

/// Checks the memory of a group of sends and receives.
///
/// # Errors
/// [`Error::Argument`].
pub(super) fn group(rank: &ConnectedRank, call: &GroupCall) -> Result<()> {
    let current = Current::bind(&rank.state.context)?;
    for (transfer, data_type) in call.members() {
        let what = match transfer.direction {
            Direction::Send => "send buffer",
            Direction::Receive => "receive buffer",
        };
        element_range(&current, what, (transfer.address, transfer.bytes), data_type)?;
    }
    Ok(())
}

/// `count` elements as bytes.
pub(in crate::communicator) fn bytes(count: u64, data_type: DataType) -> Result<u64> {
    let bytes = count.checked_mul(data_type.size_bytes() as u64);
    bytes.filter(|&bytes| bytes < 1 << 40).ok_or_else(|| {
        let expected = format!("less than 1 TiB of {data_type:?} elements");
        Error::argument("count", expected, count)
    })
}

/// `bytes` bytes as elements.
pub(in crate::communicator) fn elements(
    what: &str,
    bytes: usize,
    data_type: DataType,
) -> Result<usize> {
    let size = data_type.size_bytes();
    if !bytes.is_multiple_of(size) {
        let expected = format!("a multiple of {size} bytes, for {data_type:?}");
        return Err(Error::argument(what, expected, format!("{bytes} bytes")));
    }
    Ok(bytes / size)
}

/// A buffer of the context on which the rank runs.
pub(in crate::communicator) fn buffer<T>(
    rank: &ConnectedRank,
    what: &str,
    buffer: &impl DeviceSlice<T>,
) -> Result<()> {
    home(what, buffer.stream(), &rank.state.context)
}

/// A buffer or a stream of the context on which the rank runs.
pub(in crate::communicator) fn home(
    what: &str,
    stream: &CudaStream,
    home: &CudaContext,
) -> Result<()> {
    let context = stream.context();
    if context.cu_ctx() == home.cu_ctx() {
        return Ok(());
    }
    let expected = format!("one of device {}", home.ordinal());
    let seen = format!("one of another context, of device {}", context.ordinal());
    Err(Error::argument(what, expected, seen))
}

/// An element buffer: aligned, and inside one allocation that the driver knows, which is returned.
/// `None` for a buffer of no bytes.
fn element_range(
    current: &Current,
    what: &str,
    (address, bytes): (u64, u64),
    data_type: DataType,
) -> Result<Option<Allocation>> {
    let size = data_type.size_bytes() as u64;
    if !address.is_multiple_of(size) {
        let expected = format!("an address that is a multiple of {size}, for {data_type:?}");
        return Err(Error::argument(what, expected, format!("{address:#x}")));
    }
    if bytes == 0 {
        return Ok(None);
    }
    range(current, what, (address, bytes)).map(Some)
}

/// A range of memory that the driver knows. Without this check a wrong address would end the whole
/// context, or silently hit memory of somebody else.
pub(in crate::communicator) fn range(
    current: &Current,
    what: &str,
    (address, bytes): (u64, u64),
) -> Result<Allocation> {
    let Some(allocation) = current.allocation(address) else {
        let expected = "memory that the CUDA driver knows";
        return Err(Error::argument(what, expected, format!("{address:#x}")));
    };
    let left = allocation.bytes_from(address);
    if bytes > left {
        let expected = format!("at most {left} bytes, up to the end of its allocation");
        return Err(Error::argument(what, expected, format!("{bytes} bytes at {address:#x}")));
    }
    Ok(allocation)
}
