//! Are the arguments of a call usable? What is refused here, no other rank knows of.

use super::request::{Call, GroupCall, INPUT, OUTPUT, Shape};
use crate::communicator::connect::ConnectedRank;
use crate::communicator::state::{Launcher, RegisteredPlace, RegisteredRange};
use crate::error::{Error, Result};
use crate::gpu::{Allocation, Capture, Current};
use crate::plan::{self, Direction};
use cudarc::driver::{CudaContext, CudaStream, DeviceSlice};
use ringdove_kernels::element::DataType;

/// The buffers of a call that has been checked.
pub(super) struct Checked {
    /// Input and output: bytes, and the allocation that holds them; `None` for a buffer that this
    /// rank does not have or that has no bytes.
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
    let sizes = sizes(rank, call)?;
    let current = Current::bind(&rank.state.context)?;
    let data_type = call.shape.data_type;
    let check = |what, address, bytes: u64| {
        let allocation = element_range(&current, what, address, bytes, data_type)?;
        Ok::<_, Error>(allocation.map(|allocation| (bytes, allocation)))
    };
    let [send, receive] = call.buffers;
    let input = check("send buffer", send, sizes[INPUT])?;
    let output = match (send, sizes[INPUT]) == (receive, sizes[OUTPUT]) {
        true => input,
        false => check("receive buffer", receive, sizes[OUTPUT])?,
    };
    check_overlap(rank, call, sizes)?;
    Ok(Checked { buffers: [input, output] })
}

/// Bytes of this rank's input and output.
fn sizes(rank: &ConnectedRank, call: &Call) -> Result<[u64; 2]> {
    let (own, ranks) = (rank.rank().0, rank.rank_count());
    let Shape { collective, count, data_type, .. } = call.shape;
    if let Some(root) = collective.root().filter(|&root| root >= ranks) {
        return Err(Error::argument("root", format!("a rank less than {ranks}"), root));
    }
    // Of the larger buffer, which may be another rank's.
    bytes(count as u64, data_type)?;
    let parts = call.shape.request(ranks).parts();
    bytes((count as u64).saturating_mul(parts), data_type)?;
    let request = call.shape.request(ranks);
    Ok([request.input_bytes(own), request.output_bytes(own)])
}

/// Input and output are in place by the collective's rule, or disjoint.
fn check_overlap(rank: &ConnectedRank, call: &Call, [sent, received]: [u64; 2]) -> Result<()> {
    let [send, receive] = call.buffers;
    let apart = match send <= receive {
        true => receive - send >= sent,
        false => send - receive >= received,
    };
    let request = call.request(rank.rank().0, rank.rank_count(), false);
    let empty = sent == 0 || received == 0;
    if apart || empty || request.in_place {
        return Ok(());
    }
    let (input, output) = request.in_place_offsets(rank.rank().0);
    let expected = match (input, output) {
        (0, 0) => "equal memory, or no overlap".to_owned(),
        (0, _) => format!("the output {output} bytes into the input, or no overlap"),
        _ => format!("the input {input} bytes into the output, or no overlap"),
    };
    let seen = format!("{sent} bytes at {send:#x} and {received} bytes at {receive:#x}");
    Err(Error::argument("send and receive buffers", expected, seen))
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
    let usable =
        rank.process.writes_registered_buffers() && call.shape.collective.has_direct_plans();
    let ([input, Some(output)], true) = (checked.buffers, usable) else { return Ok(None) };
    let find = |address, (bytes, allocation): (u64, Allocation)| {
        launcher.routes.find(RegisteredRange { address, bytes, allocation: allocation.id }).map_err(
            |stale| {
                rank.fail(Error::StaleRegistration {
                    rank: rank.rank(),
                    registration: stale.registration,
                    address,
                    registered: stale.registered,
                    seen: allocation.id,
                })
            },
        )
    };
    let output = find(call.buffers[OUTPUT], output)?;
    // Where nothing is sent from the input, the other ranks need not know where it is.
    let input = match (call.shape.collective.sends_input(), input) {
        (false, _) => output,
        (true, None) => None,
        (true, Some(input)) => find(call.buffers[INPUT], input)?,
    };
    Ok(input.zip(output).map(|(input, output)| [input, output]))
}

/// Refuses to capture the first call on registered buffers where memory of other processes has to
/// be opened: that waits for the GPU, which no capture survives. All ranks refuse alike.
///
/// # Errors
/// [`Error::Argument`].
pub(super) fn captured(
    rank: &ConnectedRank,
    registered: Option<[RegisteredPlace; 2]>,
) -> Result<()> {
    match registered {
        Some(places) if rank.is_unopened(places[OUTPUT].registration) => Err(Error::argument(
            "captured call",
            "buffers that are not registered, or that a call outside of captures has used: the \
             first one opens the memory of other processes, which waits for the GPU",
            format_args!("registration {} before its first use", places[OUTPUT].registration),
        )),
        _ => Ok(()),
    }
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
        element_range(&current, what, transfer.address, transfer.bytes, data_type)?;
    }
    if call.may_overlap {
        return Ok(());
    }
    // The plan knows no addresses.
    let transfers: Vec<_> = call.members().map(|(transfer, _)| transfer).collect();
    plan::check_overlap(rank.rank().0, &transfers)
        .map_err(|error| Error::argument("group", "transfers that match", error))
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

/// A stream of the context on which the rank runs, and on which work runs or is captured. To be
/// called before anything is enqueued, also by cudarc.
pub(in crate::communicator) fn stream(
    rank: &ConnectedRank,
    call: &'static str,
    stream: &CudaStream,
) -> Result<()> {
    home("stream", stream, &rank.state.context)?;
    capture(rank, call, stream).map(drop)
}

/// The number of the capture that the stream is in, if it is in one.
///
/// # Errors
/// [`Error::Capturing`] for a capture that takes no more work: the call would fail after the other
/// ranks have been told of it.
pub(in crate::communicator) fn capture(
    rank: &ConnectedRank,
    call: &'static str,
    stream: &CudaStream,
) -> Result<Option<u64>> {
    match Current::bind(&rank.state.context)?.capture(stream)? {
        Capture::None => Ok(None),
        Capture::Active(number) => Ok(Some(number)),
        Capture::Impossible => Err(Error::Capturing { rank: rank.rank(), call }),
    }
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
fn home(what: &str, stream: &CudaStream, home: &CudaContext) -> Result<()> {
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
    address: u64,
    bytes: u64,
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
    range(current, what, address, bytes).map(Some)
}

/// A range of memory that the driver knows. Without this check a wrong address would end the whole
/// context, or silently hit memory of somebody else.
pub(in crate::communicator) fn range(
    current: &Current,
    what: &str,
    address: u64,
    bytes: u64,
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
