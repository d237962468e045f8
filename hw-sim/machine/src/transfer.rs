//! Copies and fills as programs ask for them: which memory is meant, and when the call returns.

use crate::command::Command;
use crate::context::Context;
use crate::copy::{Bulk, INLINE_BYTES_MAX, Source, Transfer2d};
use crate::error::{Error, Result};
use crate::graph::Transfer3d;
use crate::memory::{Allocation, GlobalMemory};
use crate::stream::Stream;
use std::sync::Arc;

/// Kind of memory that a call names for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Memory that GPUs reach.
    Device,
    /// The program's memory.
    Host,
    /// Either; the address decides.
    Unified,
}

/// An address with what the call says about it.
#[derive(Clone, Copy, Debug)]
pub struct CopyAddress {
    /// The address.
    pub address: u64,
    /// The kind of memory that the call names.
    pub side: Side,
}

impl CopyAddress {
    /// Memory that GPUs reach.
    pub const fn device(address: u64) -> Self {
        Self { address, side: Side::Device }
    }

    /// The program's memory.
    pub const fn host(address: u64) -> Self {
        Self { address, side: Side::Host }
    }

    /// Either.
    pub const fn unified(address: u64) -> Self {
        Self { address, side: Side::Unified }
    }
}

/// When a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// When all is done.
    Done,
    /// At once; with pageable memory as soon as the program may use that memory again.
    Queued,
}

/// Does the machine know the bytes? True for what GPUs reach, false for pageable host memory.
fn is_known(memory: &GlobalMemory, place: CopyAddress, bytes: u64) -> Result<bool> {
    let CopyAddress { address, side } = place;
    if address == 0 || address.checked_add(bytes).is_none() {
        return Err(Error::InvalidValue(format!("{bytes} bytes at {address:#x}")));
    }
    match memory.find(address) {
        Some(found) if bytes <= found.end() - address && !found.kind.is_heap() => Ok(true),
        // Host memory of which only a part is registered counts as pageable.
        Some(found) if side == Side::Host && found.kind.is_host() => Ok(false),
        None if memory.is_reserved(address, bytes) => Ok(true),
        None if side != Side::Device && memory.arena_of(address).is_none() => Ok(false),
        _ => memory.check(address, bytes).map(|()| true),
    }
}

/// Copies in stream order. True if the call is to return only when the stream is idle.
pub fn copy(
    stream: &Arc<Stream>,
    destination: CopyAddress,
    source: CopyAddress,
    bytes: u64,
    returns: Return,
) -> Result<bool> {
    stream.context.check_told()?;
    if bytes == 0 {
        return Ok(false);
    }
    let memory = &stream.context.machine.memory;
    let destination_known = is_known(memory, destination, bytes)?;
    let source_known = is_known(memory, source, bytes)?;
    let ends = [destination.address, source.address];
    let source = Source::Memory { address: source.address, known: source_known };
    let bulk = Bulk { destination: destination.address, destination_known, source, bytes };
    let pageable = !destination_known || !source_known;
    if stream.is_captured() {
        if returns == Return::Done {
            stream.refuse_if_captured()?;
        }
        // Pageable memory is read and written when the graph runs, by the program's promise.
        stream.submit(Command::Bulk(bulk));
        return Ok(false);
    }
    let late_us = stream.context.machine.description.driver.lazy_dma_us;
    if late_us > 0
        && destination_known
        && !source_known
        && let Some(staged) = stage(&bulk)
    {
        let landing = stream.context.machine.clock.now() + u64::from(late_us) * 1000;
        stream.submit(Command::Until(landing));
        stream.submit(staged);
        return Ok(false);
    }
    if returns == Return::Queued
        && destination_known
        && !source_known
        && !stream.is_idle()
        && let Some(staged) = stage(&bulk)
    {
        stream.submit(staged);
        return Ok(false);
    }
    stream.submit(Command::Bulk(bulk));
    // A copy between two places of pinned memory is made while its caller waits, as an H100 (driver
    // 580.159) showed: the processor makes it, when the stream has come so far.
    let is_host = |&address: &u64| memory.find(address).is_some_and(|it| it.kind.is_host());
    Ok(returns == Return::Done || pageable || ends.iter().all(is_host))
}

/// The contexts with whose work a copy may be ordered.
#[derive(Clone, Copy)]
pub struct Ordered<'a> {
    /// Those that the call names, by their numbers.
    pub named: &'a [u64],
    /// Every context that lives; asked for only if another than the stream's matters.
    pub contexts: fn() -> Vec<Arc<Context>>,
}

/// As [`copy`], for calls that CUDA orders with both devices. If the two ends are device memory of
/// other contexts than the stream's, or the call has named such contexts, then the copy starts when
/// all work that was submitted to the contexts has ended, and later work of their streams waits for
/// the copy.
pub fn copy_ordered(
    stream: &Arc<Stream>,
    destination: CopyAddress,
    source: CopyAddress,
    bytes: u64,
    returns: Return,
    ordered: Ordered<'_>,
) -> Result<bool> {
    let memory = &stream.context.machine.memory;
    let owner = |end: CopyAddress| {
        let found = memory.find(end.address)?;
        found.kind.gpu().map(|_| found.context)
    };
    let own = stream.context.id;
    let mut contexts = ordered.named.to_vec();
    if let (Some(to), Some(from)) = (owner(destination), owner(source)) {
        contexts.extend([to, from]);
    }
    if contexts.iter().all(|context| *context == own) {
        return copy(stream, destination, source, bytes, returns);
    }
    let others: Vec<_> = (ordered.contexts)()
        .iter()
        .filter(|context| context.id == own || contexts.contains(&context.id))
        .flat_map(|context| context.streams())
        .filter(|other| other.id != stream.id && !other.is_captured())
        .collect();
    others.iter().for_each(|other| stream.follow(other));
    let waits = copy(stream, destination, source, bytes, returns)?;
    others.iter().for_each(|other| other.follow(stream));
    Ok(waits)
}

/// Refuses a copy within device memory whose call does not name the contexts of both ends, where
/// one end is memory of a pool that neither the stream's GPU nor `current`, that of the current
/// context, has a right to. A call that names them can be done without that right.
pub fn check_pool_rights(stream: &Stream, current: usize, ends: [u64; 2]) -> Result<()> {
    let (machine, gpu) = (&stream.context.machine, stream.context.gpu);
    if !machine.description.driver.pools {
        return Ok(());
    }
    let found = ends.map(|address| machine.memory.find(address));
    let [Some(destination), Some(source)] = found else { return Ok(()) };
    let (Some(to), Some(from)) = (destination.kind.gpu(), source.kind.gpu()) else {
        return Ok(());
    };
    let denied = |gpu: usize| {
        let denies = |owner: usize, end: &Allocation| {
            owner != gpu && end.rights.as_ref().is_some_and(|rights| !rights.hold(gpu))
        };
        let mut ends = [(to, &destination), (from, &source)].into_iter();
        ends.find(|(owner, end)| denies(*owner, end)).map(|(_, end)| end.base)
    };
    // Streams of another context than the current one: tests of cuda.core 1.0.1 copy so.
    match denied(gpu).filter(|_| denied(current).is_some()) {
        Some(base) => Err(Error::InvalidValue(format!(
            "GPU {gpu} has no right to the memory pool of the allocation at {base:#x}"
        ))),
        None => Ok(()),
    }
}

/// A small copy from pageable memory, its bytes taken now, so that the call need not wait.
fn stage(bulk: &Bulk) -> Option<Command> {
    let Source::Memory { address, .. } = bulk.source else { return None };
    if bulk.bytes > INLINE_BYTES_MAX {
        return None;
    }
    let mut bytes = vec![0u8; bulk.bytes as usize];
    // SAFETY: the caller of the driver API vouches for its own memory, as on real hardware; the
    // buffer is ours and as long.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    Some(Command::Staged { destination: bulk.destination, bytes })
}

/// One side of a copy of rows.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The first byte of the first row.
    pub place: CopyAddress,
    /// Bytes from one row to the next.
    pub pitch: u64,
}

impl Rows {
    /// Bytes from the first to one past the last.
    fn span(&self, width: u64, rows: u64) -> Result<u64> {
        if self.pitch < width && rows > 1 {
            let text = format!("rows of {width} bytes, {} apart", self.pitch);
            return Err(Error::InvalidValue(text));
        }
        let span = (rows - 1).checked_mul(self.pitch).and_then(|bytes| bytes.checked_add(width));
        span.ok_or_else(|| Error::InvalidValue("the size does not fit 64 bits".into()))
    }
}

/// Copies rows in stream order; true as for [`copy`].
pub fn copy_rows(
    stream: &Arc<Stream>,
    destination: Rows,
    source: Rows,
    width: u64,
    rows: u64,
    returns: Return,
) -> Result<bool> {
    stream.context.check_told()?;
    if width == 0 || rows == 0 {
        return Ok(false);
    }
    let memory = &stream.context.machine.memory;
    let transfer = rows_of(memory, destination, source, width, rows)?;
    let known = |transfer: &Transfer2d| {
        let source_known = matches!(transfer.row.source, Source::Memory { known: true, .. });
        transfer.row.destination_known && source_known
    };
    let waits = returns == Return::Done || !known(&transfer);
    if returns == Return::Done {
        stream.refuse_if_captured()?;
    }
    stream.submit(Command::Copy2d(transfer));
    Ok(waits && !stream.is_captured())
}

fn rows_of(
    memory: &GlobalMemory,
    destination: Rows,
    source: Rows,
    width: u64,
    rows: u64,
) -> Result<Transfer2d> {
    let destination_known = is_known(memory, destination.place, destination.span(width, rows)?)?;
    let known = is_known(memory, source.place, source.span(width, rows)?)?;
    let row = Bulk {
        destination: destination.place.address,
        destination_known,
        source: Source::Memory { address: source.place.address, known },
        bytes: width,
    };
    let (source_pitch, destination_pitch) = (source.pitch, destination.pitch);
    Ok(Transfer2d { row, source_pitch, destination_pitch, rows })
}

/// One side of a copy of planes.
#[derive(Clone, Copy, Debug)]
pub struct Planes {
    /// The first plane.
    pub rows: Rows,
    /// Bytes from one plane to the next.
    pub pitch: u64,
}

/// A copy of planes of `[width, rows, planes]`, as a node of a graph: both ends are checked as far
/// as they are known.
pub fn planes(
    memory: &GlobalMemory,
    destination: Planes,
    source: Planes,
    [width, rows, planes]: [u64; 3],
) -> Result<Transfer3d> {
    if width == 0 || rows == 0 || planes == 0 {
        return Err(Error::InvalidValue("a copy of nothing".into()));
    }
    let plane = rows_of(memory, destination.rows, source.rows, width, rows)?;
    for side in [destination, source] {
        let offset = (planes - 1).checked_mul(side.pitch);
        let last = offset.and_then(|offset| side.rows.place.address.checked_add(offset));
        let Some(address) = last else {
            return Err(Error::InvalidValue("the size does not fit 64 bits".into()));
        };
        let place = CopyAddress { address, ..side.rows.place };
        is_known(memory, place, side.rows.span(width, rows)?)?;
    }
    let (source_plane, destination_plane) = (source.pitch, destination.pitch);
    Ok(Transfer3d { plane, source_plane, destination_plane, planes })
}

/// A value that memory is filled with.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// The element.
    pub value: u32,
    /// Its bytes: 1, 2 or 4.
    pub width: u32,
}

/// Fills `rows` rows of `count` elements in stream order.
pub fn fill(
    stream: &Arc<Stream>,
    destination: u64,
    pitch: u64,
    pattern: Pattern,
    count: u64,
    rows: u64,
) -> Result<()> {
    stream.context.check_told()?;
    if count == 0 || rows == 0 {
        return check_alignment(destination, pitch, pattern, rows);
    }
    let memory = &stream.context.machine.memory;
    let fill = pattern_rows(memory, destination, pitch, pattern, [count, rows])?;
    stream.submit(if rows == 1 { Command::Bulk(fill.row) } else { Command::Copy2d(fill) });
    Ok(())
}

fn check_alignment(destination: u64, pitch: u64, pattern: Pattern, rows: u64) -> Result<()> {
    let width = u64::from(pattern.width);
    if !destination.is_multiple_of(width) || (rows > 1 && !pitch.is_multiple_of(width)) {
        let text = format!("{destination:#x} or pitch {pitch} is not aligned to {width} bytes");
        return Err(Error::InvalidValue(text));
    }
    Ok(())
}

/// A fill of `[count, rows]` elements, neither of them 0.
pub fn pattern_rows(
    memory: &GlobalMemory,
    destination: u64,
    pitch: u64,
    pattern: Pattern,
    [count, rows]: [u64; 2],
) -> Result<Transfer2d> {
    check_alignment(destination, pitch, pattern, rows)?;
    if count == 0 || rows == 0 {
        return Err(Error::InvalidValue("a fill of nothing".into()));
    }
    let bytes = count.checked_mul(u64::from(pattern.width));
    let bytes = bytes.ok_or_else(|| Error::InvalidValue("the size does not fit 64 bits".into()))?;
    let place = Rows { place: CopyAddress::device(destination), pitch };
    is_known(memory, place.place, place.span(bytes, rows)?)?;
    let source = Source::Pattern { value: pattern.value, width: pattern.width };
    let row = Bulk { destination, destination_known: true, source, bytes };
    Ok(Transfer2d { row, source_pitch: 0, destination_pitch: pitch, rows })
}
