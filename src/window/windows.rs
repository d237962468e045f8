//! Transfers between windows, on streams and from the host.

use super::memory::{DeviceWindow, HostWindow};
use super::pending::Pending;
use crate::communicator::{Communicator, WindowEnd, WindowStep};
use crate::error::{Error, Result};
use crate::gpu::{Capture, Current, Kernels, Registered, keeping_errors};
use crate::id::{Rank, Registration};
use cudarc::driver::CudaStream;
use ringdove_kernels::ptx;
use ringdove_kernels::window::{WINDOW_MOVE, WINDOW_SIGNAL, WINDOW_WAIT, WindowCall};
use std::fmt;
use std::sync::Arc;

/// Threads of a block that copies.
const THREADS: u32 = 256;
/// Bytes for which a copy takes another block, and the most blocks of one.
const BLOCK_BYTES: u64 = 16 << 10;
const BLOCKS_MAX: u64 = 32;
/// Memory through which data of others passes between nodes.
const RELAY_BYTES: u64 = 256 << 10;

/// Entries, by their places in [`ptx::WINDOW_ENTRIES`].
const COPY: usize = 0;
const CALL: usize = 1;

/// The name of a registered buffer, on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    registration: Registration,
    bytes: u64,
}

impl Window {
    /// The window of a buffer that [`Communicator::register`] has registered.
    pub fn of<T: 'static>(buffer: &Registered<T>) -> Self {
        let bytes = (buffer.len() * size_of::<T>()) as u64;
        Self { registration: buffer.registration(), bytes }
    }

    /// `bytes` bytes of `rank`'s part, from `offset` on. What is outside is refused where it is
    /// used.
    pub fn part(self, rank: u32, offset: u64, bytes: u64) -> Part {
        Part { window: self, rank, offset, bytes }
    }

    /// All of `rank`'s part.
    pub fn all_of(self, rank: u32) -> Part {
        self.part(rank, 0, self.bytes)
    }

    /// Bytes, the same on every rank.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// For [`Communicator::device_handle`].
    pub fn registration(self) -> Registration {
        self.registration
    }
}

/// A piece of a window, on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    window: Window,
    rank: u32,
    offset: u64,
    bytes: u64,
}

impl Part {
    fn end(&self) -> WindowEnd {
        let Self { window, rank, offset, .. } = *self;
        WindowEnd { registration: window.registration, rank, offset }
    }
}

/// Is a signal raised behind a transfer?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signal {
    /// No.
    #[default]
    None,
    /// At the other rank: behind a write where the data went, behind a read where it came from, and
    /// behind a copy between others where the data went.
    Raise,
}

/// One rank's way to all windows of its communicator; see the [module](super).
///
/// Dropping it waits a bounded time for its launches
/// ([`Settings::drop_timeout`](crate::Settings::drop_timeout)).
pub struct Windows<'c> {
    communicator: &'c Communicator,
    lane: u32,
    kernels: Kernels<WindowCall>,
    /// Of transfers that the host starts.
    stream: Arc<CudaStream>,
    /// Only where there are other nodes.
    relay: Option<Window>,
}

impl<'c> Windows<'c> {
    /// Loads the kernels of transfers. They use the [user lane](crate::Settings::user_lanes) with
    /// this number, and nobody else does; all ranks name the same.
    ///
    /// Allocates: call it before work is launched that waits for other ranks.
    ///
    /// # Errors
    /// [`Error::Argument`] where there is no such lane, or where ranks do not reach each other's
    /// memory; [`Error::Cuda`] where the driver refuses kernels, stream or memory.
    pub fn open(communicator: &'c Communicator, lane: u32) -> Result<Self> {
        communicator.expect_windows(lane)?;
        let context = communicator.context();
        let kernels = Kernels::load(context, ptx::WINDOW, &ptx::WINDOW_ENTRIES)?;
        let stream = keeping_errors(context, || context.new_stream());
        let stream = stream.map_err(Error::from_driver("cuStreamCreate"))?;
        let others = (0..communicator.rank_count()).any(|rank| communicator.is_far(rank));
        let relay = match others {
            true => {
                let registration = communicator.relay_memory(RELAY_BYTES as usize)?;
                Some(Window { registration, bytes: RELAY_BYTES })
            }
            false => None,
        };
        Ok(Self { communicator, lane, kernels, stream, relay })
    }

    /// Makes `bytes` bytes of memory of this rank's GPU its part of the next window, full of zeros;
    /// as [`Self::host`]. Other than memory of streams, processes of a node can share it.
    ///
    /// # Errors
    /// As [`Self::host`].
    pub fn device(&self, bytes: u64) -> Result<DeviceWindow> {
        let (registration, memory) = self.communicator.register_device(bytes)?;
        Ok(DeviceWindow { window: Window { registration, bytes }, memory })
    }

    /// Makes `bytes` bytes of pinned memory of this rank's host its part of the next window, full
    /// of zeros. Every rank makes a part of the same size, in the same order among its
    /// registrations: here, with [`Self::device`], or with [`Communicator::register`].
    ///
    /// # Errors
    /// [`Error::Argument`] for no bytes; [`Error::System`] and [`Error::Cuda`] where there is no
    /// such memory; [`Error::Disagreement`] where another rank's part has another size.
    pub fn host(&self, bytes: u64) -> Result<HostWindow> {
        let (registration, memory) = self.communicator.register_host(bytes)?;
        Ok(HostWindow { window: Window { registration, bytes }, memory })
    }

    /// Waits until every rank has made its part of the window, and opens the memory of other
    /// processes, for which it waits until the GPUs of this process are idle. The first transfer
    /// does this by itself; call it before work is launched that waits for other ranks.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`], [`Error::Bootstrap`] or [`Error::Disagreement`] where ranks have
    /// not made the same; [`Error::PeerValue`] where a rank's memory cannot be opened.
    pub fn prepare(&self, window: Window) -> Result<()> {
        self.communicator.open_registration(window.registration)
    }

    /// Writes from a part of this rank to one of another.
    ///
    /// # Errors
    /// [`Error::Argument`] where `from` is of another rank; else as [`Self::copy`].
    pub fn write(
        &self,
        from: &Part,
        to: &Part,
        signal: Signal,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.is_own("source of a write", from)?;
        self.copy(from, to, signal, stream)
    }

    /// Reads a part of another rank into one of this rank.
    ///
    /// # Errors
    /// [`Error::Argument`] where `to` is of another rank; else as [`Self::copy`].
    pub fn read(
        &self,
        from: &Part,
        to: &Part,
        signal: Signal,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.is_own("destination of a read", to)?;
        self.copy(from, to, signal, stream)
    }

    /// Copies between any two parts of the same size, which do not overlap. The first transfer
    /// between two windows waits for them as [`Self::prepare`] does.
    ///
    /// # Errors
    /// [`Error::Argument`] for parts of different sizes, outside of their windows, of windows that
    /// were taken back or ranks that there are not, for parts that overlap, for a signal to this
    /// rank itself, on a stream that is captured, and where no way leads; as [`Self::prepare`]; the
    /// error that ended the communicator.
    pub fn copy(
        &self,
        from: &Part,
        to: &Part,
        signal: Signal,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.check(from, to, stream)?;
        let own = self.communicator.rank();
        let peer = if to.rank == own { from.rank } else { to.rank };
        let port = match signal {
            Signal::None => None,
            Signal::Raise => Some(self.communicator.window_send_port(self.lane, peer)?),
        };
        let ends = [&from.end(), &to.end()];
        let step = self.communicator.window_step(self.lane, ends, from.bytes)?;
        if from.bytes == 0 {
            return port.map_or(Ok(()), |port| self.raise(port, stream));
        }
        if step != WindowStep::Relay {
            return self.make(step, [from.offset, to.offset], from.bytes, port, stream);
        }
        let Some(relay) = self.relay else {
            let expected = "ends of which this rank reaches one at least, or both";
            let seen = format!("from {} to {}", Rank(from.rank), Rank(to.rank));
            return Err(Error::argument("transfer between windows", expected, seen));
        };
        let mut done = 0;
        while done < from.bytes {
            let bytes = (from.bytes - done).min(relay.bytes);
            let here = relay.part(own, 0, bytes);
            let source = from.window.part(from.rank, from.offset + done, bytes);
            let destination = to.window.part(to.rank, to.offset + done, bytes);
            done += bytes;
            let port = port.filter(|_| done == from.bytes);
            for (from, to, port) in [(source, here, None), (here, destination, port)] {
                let ends = [&from.end(), &to.end()];
                let step = self.communicator.window_step(self.lane, ends, bytes)?;
                self.make(step, [from.offset, to.offset], bytes, port, stream)?;
            }
        }
        Ok(())
    }

    /// As [`Self::copy`], at once, on a stream of the library's own.
    ///
    /// # Errors
    /// As [`Self::copy`].
    pub fn start(&self, from: &Part, to: &Part, signal: Signal) -> Result<Pending<'c>> {
        self.copy(from, to, signal, &self.stream)?;
        self.pending("a transfer between windows")
    }

    /// Raises a signal at `peer`, behind all transfers of this rank before.
    ///
    /// # Errors
    /// [`Error::Argument`] for this rank itself, for a rank that there is not, and on a stream that
    /// is captured; the error that ended the communicator.
    pub fn signal(&self, peer: u32, stream: &Arc<CudaStream>) -> Result<()> {
        self.not_captured(stream)?;
        self.communicator.check()?;
        self.raise(self.communicator.window_send_port(self.lane, peer)?, stream)
    }

    /// Waits, in the stream, until `peer` has raised this rank's signal `count` more times.
    ///
    /// # Errors
    /// As [`Self::signal`].
    pub fn wait(&self, peer: u32, count: u32, stream: &Arc<CudaStream>) -> Result<()> {
        self.not_captured(stream)?;
        self.communicator.check()?;
        let port = self.communicator.window_receive_port(self.lane, peer)?;
        let call = WindowCall { kind: WINDOW_WAIT, value: count, port, ..WindowCall::default() };
        if count == 0 { Ok(()) } else { self.launch(CALL, (1, 1), call, stream) }
    }

    /// As [`Self::wait`], from the host.
    ///
    /// # Errors
    /// As [`Self::signal`].
    pub fn start_wait(&self, peer: u32, count: u32) -> Result<Pending<'c>> {
        self.wait(peer, count, &self.stream)?;
        self.pending("a wait for signals")
    }

    fn is_own(&self, what: &str, part: &Part) -> Result<()> {
        let own = self.communicator.rank();
        match part.rank == own {
            true => Ok(()),
            false => {
                Err(Error::argument(what, format!("a part of {}", Rank(own)), Rank(part.rank)))
            }
        }
    }

    fn check(&self, from: &Part, to: &Part, stream: &CudaStream) -> Result<()> {
        self.not_captured(stream)?;
        if from.bytes != to.bytes {
            let expected = format!("as many bytes as the source, {}", from.bytes);
            return Err(Error::argument("destination of a transfer", expected, to.bytes));
        }
        let apart = |one: &Part, other: &Part| {
            one.offset.checked_add(one.bytes).is_some_and(|end| end <= other.offset)
        };
        let same = from.window.registration == to.window.registration && from.rank == to.rank;
        if same && from.bytes > 0 && !apart(from, to) && !apart(to, from) {
            let seen = format!("{} bytes from {} and from {}", from.bytes, from.offset, to.offset);
            return Err(Error::argument("parts of a transfer", "no overlap", seen));
        }
        Ok(())
    }

    fn not_captured(&self, stream: &CudaStream) -> Result<()> {
        match Current::bind(self.communicator.context())?.capture(stream)? {
            Capture::None => Ok(()),
            Capture::Active(_) | Capture::Impossible => {
                let expected = "one that is not captured";
                Err(Error::argument("stream of a one-sided transfer", expected, "a capture"))
            }
        }
    }

    /// Launches what makes a transfer, and raises a signal behind it.
    fn make(
        &self,
        step: WindowStep,
        [from, to]: [u64; 2],
        bytes: u64,
        port: Option<u32>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        match step {
            WindowStep::Copy { source, destination } => {
                let call = WindowCall { source, destination, bytes, ..WindowCall::default() };
                let blocks = bytes.div_ceil(BLOCK_BYTES).min(BLOCKS_MAX) as u32;
                self.launch(COPY, (blocks, THREADS), call, stream)?;
                port.map_or(Ok(()), |port| self.raise(port, stream))
            }
            WindowStep::Move { route, port: lane } => {
                let call = WindowCall {
                    source: from,
                    destination: to,
                    bytes,
                    kind: WINDOW_MOVE,
                    value: route,
                    port: lane,
                    signal: port.is_some().into(),
                    ..WindowCall::default()
                };
                self.launch(CALL, (1, 1), call, stream)
            }
            WindowStep::Relay => {
                let expected = "an end on this rank";
                Err(Error::argument("transfer between windows", expected, "two of others"))
            }
        }
    }

    fn raise(&self, port: u32, stream: &Arc<CudaStream>) -> Result<()> {
        let call = WindowCall { kind: WINDOW_SIGNAL, port, ..WindowCall::default() };
        self.launch(CALL, (1, 1), call, stream)
    }

    fn launch(
        &self,
        entry: usize,
        shape: (u32, u32),
        call: WindowCall,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let communicator = self.communicator.device_communicator();
        self.communicator.launch_program(stream, |sequence| {
            let call = WindowCall { communicator, sequence, ..call };
            self.kernels.launch(entry, stream, shape, &call)
        })
    }

    fn pending(&self, what: &'static str) -> Result<Pending<'c>> {
        let event = keeping_errors(self.communicator.context(), || self.stream.record_event(None));
        let event = event.map_err(Error::from_driver("cuEventRecord"))?;
        Ok(Pending { communicator: self.communicator, event, what })
    }
}

impl fmt::Debug for Windows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Windows")
            .field("rank", &self.communicator.rank())
            .field("lane", &self.lane)
            .finish_non_exhaustive()
    }
}

impl Drop for Windows<'_> {
    fn drop(&mut self) {
        if !self.communicator.wait_for_launches(self.communicator.drop_timeout()) {
            tracing::warn!(rank = self.communicator.rank(), "transfers have not ended");
        }
    }
}
