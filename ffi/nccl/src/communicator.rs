//! Communicators behind handles: how they come to be, and how they end.

use crate::abi::Status;
use crate::memory::Named;
use crate::reduction::Table;
use crate::result::{Failure, Result, text};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUdevice_attribute::{
    CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
    CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
};
use ringdove::gpu::StreamBridge;
use ringdove::topology::nvml::Management;
use ringdove::topology::pci::PciAddress;
use ringdove::{Communicator as Ranks, Settings, UniqueId};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// `ncclComm_t`. It is a number and no address: one that was freed never names another.
pub type Handle = *mut c_void;

/// Handles are multiples of this, as addresses of allocations are.
const STEP: usize = 16;

/// The communicators that exist.
static LIVE: Mutex<Live> = Mutex::new(Live { next: STEP, all: BTreeMap::new() });

struct Live {
    next: usize,
    all: BTreeMap<usize, Arc<Communicator>>,
}

/// One rank of a communicator.
pub struct Communicator {
    pub rank: u32,
    pub rank_count: u32,
    context: Arc<CudaContext>,
    phase: Mutex<Phase>,
    changed: Condvar,
    pub reductions: Mutex<Table>,
    /// Memory that the program has named.
    pub named: Mutex<Named>,
    /// The message of the error that ended it.
    fatal: OnceLock<CString>,
}

/// How far a communicator is.
enum Phase {
    Joining,
    Ready(Arc<Ready>),
    Failed(Failure),
    /// It was destroyed or aborted.
    Ended,
}

/// A communicator whose ranks have joined.
pub struct Ready {
    pub ranks: Ranks,
    pub bridge: StreamBridge,
    /// Held while a call is enqueued, so that calls of several threads do not mix. Whoever waits
    /// for the GPU, or aborts, does without it.
    pub turn: Mutex<()>,
}

/// What a rank needs to join.
#[derive(Clone, Copy)]
pub struct Join {
    pub id: UniqueId,
    pub rank: u32,
    pub rank_count: u32,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Communicator {
    /// One that is about to join, and its handle.
    pub fn joining(rank: u32, rank_count: u32, context: Arc<CudaContext>) -> (Handle, Arc<Self>) {
        let communicator = Arc::new(Self {
            rank,
            rank_count,
            context,
            phase: Mutex::new(Phase::Joining),
            changed: Condvar::new(),
            reductions: Mutex::default(),
            named: Mutex::default(),
            fatal: OnceLock::new(),
        });
        let mut live = lock(&LIVE);
        let number = live.next;
        live.next += STEP;
        live.all.insert(number, communicator.clone());
        (number as Handle, communicator)
    }

    /// The handle of a communicator whose ranks have joined.
    pub fn joined_by(ranks: Ranks, context: &Arc<CudaContext>) -> Result<Handle> {
        let (rank, rank_count) = (ranks.rank(), ranks.rank_count());
        let (handle, communicator) = Self::joining(rank, rank_count, context.clone());
        communicator.joined(Ok(ranks))?;
        Ok(handle)
    }

    /// The communicator of a handle.
    pub fn find(handle: Handle) -> Result<Arc<Self>> {
        lock(&LIVE).all.get(&(handle as usize)).cloned().ok_or_else(|| {
            let expected = "a communicator that was made and not yet destroyed";
            Failure::argument("comm", expected, format!("{handle:?}"))
        })
    }

    /// Waits until the ranks have joined, as part of [`Join`].
    pub fn join(&self, join: &Join, settings: &Settings) -> Result<()> {
        let &Join { ref id, rank, rank_count } = join;
        let ranks = Ranks::init_rank(&self.context, id, rank, rank_count, settings);
        self.joined(ranks.map_err(Failure::from))
    }

    /// Ends the phase of joining.
    pub fn joined(&self, ranks: Result<Ranks>) -> Result<()> {
        let ready = ranks.and_then(|ranks| {
            let bridge = StreamBridge::new(&self.context)?;
            Ok(Arc::new(Ready { ranks, bridge, turn: Mutex::default() }))
        });
        let failure = ready.as_ref().err().cloned();
        // Dropped outside of the lock: if it was aborted meanwhile, nobody wants the ranks.
        let unwanted = {
            let mut phase = lock(&self.phase);
            match (&*phase, ready) {
                (Phase::Joining, Ok(ready)) => {
                    *phase = Phase::Ready(ready);
                    None
                }
                (Phase::Joining, Err(failure)) => {
                    *phase = Phase::Failed(failure);
                    None
                }
                (_, ready) => ready.ok(),
            }
        };
        drop(unwanted);
        self.changed.notify_all();
        failure.map_or(Ok(()), Err)
    }

    /// The joined communicator.
    pub fn ready(&self) -> Result<Arc<Ready>> {
        match &*lock(&self.phase) {
            Phase::Ready(ready) => Ok(ready.clone()),
            Phase::Failed(failure) => Err(failure.clone()),
            Phase::Ended => Err(Failure::usage("the communicator was aborted")),
            Phase::Joining => Err(Failure::usage(
                "the communicator's ranks are still joining: wait until ncclCommGetAsyncError \
                 returns ncclSuccess",
            )),
        }
    }

    /// The state that `ncclCommGetAsyncError` reports.
    pub fn state(&self) -> Status {
        let failure = match &*lock(&self.phase) {
            Phase::Joining => return Status::InProgress,
            Phase::Failed(failure) => failure.clone(),
            Phase::Ended => Failure::usage("the communicator was aborted"),
            Phase::Ready(ready) => match ready.ranks.check() {
                Ok(()) => return Status::Success,
                Err(error) => error.into(),
            },
        };
        self.fatal.get_or_init(|| text(&failure.message));
        failure.status
    }

    /// The message of the error that ended it, if any.
    pub fn message(&self) -> Option<*const c_char> {
        self.state();
        self.fatal.get().map(|text| text.as_ptr())
    }

    /// Number of its device.
    pub fn device(&self) -> usize {
        self.context.ordinal()
    }

    /// The number that the management library gives its device, which counts those too that are
    /// hidden from CUDA.
    pub fn nvml_device(&self) -> Result<c_int> {
        let part = |part| {
            self.context
                .attribute(part)
                .map_err(|error| Failure::cuda("cuDeviceGetAttribute", error.0))
        };
        let pci = PciAddress {
            domain: part(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)? as u32,
            bus: part(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)? as u8,
            device: part(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)? as u8,
            function: 0,
        };
        let failed = |message| Failure { status: Status::SystemError, message };
        let management = Management::read().map_err(|cause| failed(format!("NVML: {cause}")))?;
        match management.number(pci) {
            Some(number) => Ok(number as c_int),
            None => Err(failed(format!("NVML knows no GPU at {pci}"))),
        }
    }

    /// Waits until all that was enqueued has ended. What the rank's engine still owes others, the
    /// news that their messages were read, is not waited for: ranks that have left need none, and
    /// dropping the communicator gives the others time.
    pub fn finalize(&self) -> Result<()> {
        let ready = self.ready()?;
        ready.bridge.synchronize()?;
        ready.ranks.check().map_err(Failure::from)
    }

    /// Ends the communicator on all ranks; its own handle stays.
    pub fn abort(&self, why: &str) {
        if let Phase::Ready(ready) = &*lock(&self.phase) {
            ready.ranks.abort(why);
        }
    }
}

/// Forgets a handle. An error that ended the communicator is no error of this: that is how a
/// program leaves one that has failed.
pub fn destroy(handle: Handle) -> Result<()> {
    let communicator = Communicator::find(handle)?;
    let mut phase = lock(&communicator.phase);
    while matches!(*phase, Phase::Joining) {
        phase = communicator.changed.wait(phase).unwrap_or_else(PoisonError::into_inner);
    }
    drop(phase);
    if let Err(failure) = communicator.finalize() {
        tracing::info!(rank = communicator.rank, message = failure.message, "left after an error");
    }
    forget(handle, &communicator);
    Ok(())
}

/// Forgets the handle. Work that has not ended is ended, on all ranks. Programs also leave a
/// communicator in this way whose work has ended, while other ranks still use it: it is not theirs
/// to end. Does not wait for ranks that join.
pub fn abort(handle: Handle) -> Result<()> {
    let communicator = Communicator::find(handle)?;
    let is_idle = communicator.ready().is_ok_and(|ready| ready.bridge.is_idle());
    if !is_idle {
        communicator.abort("ncclCommAbort");
    }
    forget(handle, &communicator);
    Ok(())
}

fn forget(handle: Handle, communicator: &Communicator) {
    lock(&LIVE).all.remove(&(handle as usize));
    // Dropped outside of the locks: other communicators are in use meanwhile.
    let ended = mem::replace(&mut *lock(&communicator.phase), Phase::Ended);
    drop(ended);
}
