//! What the ranks of one communicator share inside a process: their memory, what they have agreed
//! on, verified plans, the alarm that wakes all of them, and their links to ranks elsewhere.

use super::agreement::{Board, Signature, Value, compare, signature};
use super::gossip::{self, Place};
use super::layout::Geometry;
use super::memory::RankMemory;
use super::sharing::StreamClaims;
use super::windows::Windows;
use crate::bootstrap::{ControlPlane, Term};
use crate::engine::Alarm;
use crate::error::{Error, Ranks, Result};
use crate::id::Rank;
use crate::plan::{CollectiveRequest, Verified};
use crate::settings::Settings;
use cudarc::driver::{CudaContext, sys};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Locks, also after a panic of another thread: what the locks here protect stays consistent,
/// since every change of it is one assignment or one push.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ranks whose place is empty, for a message; `None` if there are none.
pub(super) fn missing<T>(places: &[Option<T>]) -> Option<String> {
    let places = (0..).zip(places).filter(|(_, place)| place.is_none());
    let ranks: Vec<_> = places.map(|(rank, _)| Rank(rank)).collect();
    (!ranks.is_empty()).then(|| Ranks(&ranks).to_string())
}

/// One rank, as the others see it.
#[derive(Debug)]
pub(crate) struct Seat {
    pub rank: Rank,
    pub context: Arc<CudaContext>,
    pub memory: RankMemory,
    failure: OnceLock<Error>,
}

impl Seat {
    /// A rank with its memory, before it joins.
    pub fn new(rank: Rank, context: Arc<CudaContext>, memory: RankMemory) -> Self {
        Self { rank, context, memory, failure: OnceLock::new() }
    }

    /// The error that condemned the communicator, if any.
    pub fn check(&self) -> Result<()> {
        self.failure.get().cloned().map_or(Ok(()), Err)
    }

    /// Keeps the first error and stops the rank's kernels.
    fn condemn(&self, error: &Error) {
        // Only the first error counts: later ones are mostly its consequences.
        let _ = self.failure.set(error.clone());
        match self.memory.abort() {
            // Pairs with wait.cuh: the waits' load of the abort word, R10.
            Ok(word) => word.store(1, Ordering::Release),
            Err(error) => tracing::error!(%error, rank = self.rank.0, "no abort word"),
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct World {
    pub geometry: Geometry,
    seats: Mutex<Vec<Option<Arc<Seat>>>>,
    changed: Condvar,
    board: Mutex<Board>,
    pub windows: Windows,
    pub streams: StreamClaims,
    plans: Mutex<HashMap<CollectiveRequest, Arc<Verified>>>,
    raised: AtomicBool,
    /// Ranks of this process whose engines serve them.
    served: Mutex<usize>,
    served_changed: Condvar,
    /// Control planes of the ranks of this process, where others run elsewhere.
    links: Mutex<Vec<Arc<ControlPlane>>>,
    /// The ranks of this process, once that is known.
    local: OnceLock<Vec<Rank>>,
}

impl World {
    /// A world whose seats are all empty.
    pub fn new(geometry: Geometry) -> Self {
        let seats = (0..geometry.rank_count).map(|_| None).collect();
        Self {
            geometry,
            seats: Mutex::new(seats),
            changed: Condvar::new(),
            board: Mutex::new(Board::new(geometry.rank_count)),
            windows: Windows::default(),
            streams: StreamClaims::default(),
            plans: Mutex::default(),
            raised: AtomicBool::new(false),
            served: Mutex::default(),
            served_changed: Condvar::new(),
            links: Mutex::default(),
            local: OnceLock::new(),
        }
    }

    /// Joins a rank's control plane: its failures become this world's, and the other way round.
    pub fn link(self: &Arc<Self>, plane: Arc<ControlPlane>) {
        let world = Arc::downgrade(self);
        plane.on_failure(move |error| {
            if let Some(world) = world.upgrade() {
                world.raise(error.clone());
            }
        });
        let world = Arc::downgrade(self);
        plane.listen(move |from, bytes| {
            if let Some(world) = world.upgrade() {
                world.heard(from, bytes);
            }
        });
        lock(&self.links).push(plane);
    }

    /// A process below has told what its ranks call.
    fn heard(self: &Arc<Self>, from: Rank, bytes: &[u8]) {
        let Some(told) = gossip::read(bytes) else {
            let seen = format!("{} bytes that are none", bytes.len());
            return self.raise(Error::argument(
                "calls that a rank tells",
                format!("calls of {from}"),
                seen,
            ));
        };
        let hear = |board: &mut Board| {
            told.into_iter().try_for_each(|(event, signature)| board.heard(event, signature))
        };
        if let Err(error) = self.on_board(hear) {
            self.raise(error);
        }
    }

    /// Control planes of the ranks of this process, by rank; none if nobody runs elsewhere.
    pub fn links(&self) -> Vec<Arc<ControlPlane>> {
        let mut links = lock(&self.links).clone();
        links.sort_unstable_by_key(|plane| plane.rank());
        links
    }

    /// Says which ranks are of this process, and where it stands among others.
    pub fn settle(&self, local: Vec<Rank>, place: Place) {
        // All ranks of the process see the same cards, so the first one speaks for all.
        if self.local.set(local).is_ok() {
            lock(&self.board).settle(place);
        }
    }

    /// The ranks of this process; all, unless settled otherwise.
    pub fn is_local(&self, rank: Rank) -> bool {
        self.local.get().is_none_or(|local| local.contains(&rank))
    }

    /// Devices, other than `context`'s, on which ranks of this process run.
    pub fn other_devices(&self, context: &CudaContext) -> Vec<sys::CUdevice> {
        let seats = lock(&self.seats);
        let devices = seats.iter().flatten().map(|seat| seat.context.cu_device());
        let mut devices: Vec<_> = devices.filter(|&device| device != context.cu_device()).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// How many ranks of this process run on the GPU of `context`.
    pub fn ranks_on(&self, context: &CudaContext) -> usize {
        let seats = lock(&self.seats);
        seats.iter().flatten().filter(|seat| seat.context.cu_ctx() == context.cu_ctx()).count()
    }

    /// The seat of a rank of this process that has joined.
    pub fn seat(&self, rank: Rank) -> Result<Arc<Seat>> {
        let seats = lock(&self.seats);
        let seat = seats.get(rank.index()).and_then(Clone::clone);
        seat.ok_or_else(|| Error::argument("rank", "one of this process that has joined", rank.0))
    }

    /// Takes a seat.
    ///
    /// # Errors
    /// [`Error::Argument`] for a rank that is out of range or taken, [`Error::Disagreement`] where
    /// this rank's geometry is not the world's.
    pub fn join(&self, seat: Arc<Seat>, geometry: &Geometry) -> Result<()> {
        let mut seats = lock(&self.seats);
        let rank = seat.rank;
        let other = seats.iter().flatten().map(|seat| seat.rank).next().unwrap_or(Rank(0));
        compare(
            &"communicator",
            (rank, &geometry_signature(geometry)),
            (other, &geometry_signature(&self.geometry)),
        )?;
        let count = seats.len();
        match seats.get_mut(rank.index()) {
            None => Err(Error::argument("rank", format_args!("less than {count}"), rank.0)),
            Some(Some(_)) => Err(Error::argument("rank", "one that nobody has", rank.0)),
            Some(empty) => {
                *empty = Some(seat);
                self.changed.notify_all();
                Ok(())
            }
        }
    }

    /// All seats, once every rank has joined.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] names the ranks that are missing.
    pub fn assembled(&self, limit: Duration) -> Result<Vec<Arc<Seat>>> {
        let started = Instant::now();
        let seats = lock(&self.seats);
        let (seats, _) = self
            .changed
            .wait_timeout_while(seats, limit, |seats| seats.iter().any(Option::is_none))
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(missing) = missing(&seats) {
            return Err(Error::HostWaitExpired {
                what: "the ranks of a communicator".into(),
                expected: format!("{} ranks", seats.len()),
                seen: format!("no sign of {missing}"),
                waited: started.elapsed(),
            });
        }
        Ok(seats.iter().flatten().cloned().collect())
    }

    /// One more rank of this process is served by its engine.
    pub fn serve(&self) {
        *lock(&self.served) += 1;
        self.served_changed.notify_all();
    }

    /// Waits until all ranks are served, where all are of this process: an engine may refuse what
    /// comes for a rank that is not.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] says how many are not; the error of the rank that failed.
    pub fn all_served(&self, limit: Duration) -> Result<()> {
        let (started, count) = (Instant::now(), self.geometry.rank_count as usize);
        let waiting = |served: &mut usize| *served < count && !self.is_raised();
        let (served, _) = self
            .served_changed
            .wait_timeout_while(lock(&self.served), limit, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        let served = *served;
        for seat in lock(&self.seats).iter().flatten() {
            seat.check()?;
        }
        if served >= count {
            return Ok(());
        }
        Err(Error::HostWaitExpired {
            what: "the engines of a communicator's ranks".into(),
            expected: format!("{count} ranks served"),
            seen: format!("{served}"),
            waited: started.elapsed(),
        })
    }

    /// Does something on the board on which ranks compare their calls; what follows from it for
    /// other processes is told soon.
    pub fn on_board<T>(self: &Arc<Self>, act: impl FnOnce(&mut Board) -> T) -> T {
        let mut board = lock(&self.board);
        let result = act(&mut board);
        let has_news = board.take_news();
        drop(board);
        // The lowest rank of a process stands below one of another process.
        if has_news && let Some(plane) = self.links().first() {
            let world = Arc::downgrade(self);
            plane.tell_above(gossip::INTERVAL, move || {
                world.upgrade().map(|world| lock(&world.board).tell()).unwrap_or_default()
            });
        }
        result
    }

    /// The verified plan of `request`, built once for all ranks of this process.
    pub fn plan(
        &self,
        request: &CollectiveRequest,
        build: impl FnOnce() -> Result<Verified>,
    ) -> Result<Arc<Verified>> {
        // Held while the plan is built: the other ranks want the same one.
        let mut plans = lock(&self.plans);
        if let Some(plan) = plans.get(request) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(build()?);
        plans.insert(*request, plan.clone());
        Ok(plan)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Engines elsewhere may still return credits into this memory.
        let seats: Vec<_> = lock(&self.seats).drain(..).flatten().collect();
        for plane in lock(&self.links).drain(..) {
            plane.keep(seats.clone());
        }
    }
}

impl Alarm for World {
    fn raise(&self, mut error: Error) {
        if let Error::WaitExpired(wait) = &mut error {
            wait.behind = lock(&self.board).behind();
        }
        // Release: whoever sees the flag finds the error. Pairs with `is_raised`.
        if !self.raised.swap(true, Ordering::Release) {
            tracing::error!(%error, "communicator condemned");
            // One word is enough: it floods all ranks, and comes back to the others here.
            if let Some(plane) = lock(&self.links).first() {
                plane.end(&error);
            }
        }
        for seat in lock(&self.seats).iter().flatten() {
            seat.condemn(&error);
        }
        // Locked in between, or a rank that is about to wait would miss it.
        drop(lock(&self.served));
        self.served_changed.notify_all();
    }

    fn is_raised(&self) -> bool {
        // A late view costs one more step of the engine and nothing else.
        self.raised.load(Ordering::Relaxed)
    }
}

/// What must be equal on all ranks, for the control plane to compare.
pub(super) fn terms(geometry: &Geometry, settings: &Settings) -> Vec<Term> {
    let terms = geometry_signature(geometry).into_iter();
    let terms = terms.map(|(name, value)| (name.into_owned(), value.to_string()));
    terms.chain([("RINGDOVE_VERBS_ORDER".into(), settings.verbs_order.to_string())]).collect()
}

fn geometry_signature(geometry: &Geometry) -> Signature {
    signature([
        ("the number of ranks", Value::Number(geometry.rank_count.into())),
        ("RINGDOVE_ENGINE", Value::Word(geometry.engine.name().into())),
        ("RINGDOVE_BLOCKS", Value::Number(geometry.blocks.into())),
        ("RINGDOVE_SLOT_BYTES", Value::Number(geometry.slot_bytes.into())),
        ("RINGDOVE_SLOTS", Value::Number(geometry.slot_count.into())),
        ("RINGDOVE_LOW_LATENCY_BYTES", Value::Number(geometry.flagged_bytes.into())),
    ])
}
