//! A launched kernel: which of its blocks have started, and what is left.

use crate::client::{Client, Origin};
use crate::footprint::Footprint;
use crate::gpu::{Occupancy, Room};
use crate::memory::{Cursor, View};
use crate::vigil::Vigil;
use hwsim_ptx::{Block, Launch};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A kernel on its way.
pub struct KernelRun {
    /// Input of the interpreter.
    pub(crate) launch: Arc<Launch>,
    /// Memory as the kernel sees it.
    pub(crate) view: View,
    /// Whose kernel it is.
    pub(crate) client: Arc<dyn Client>,
    /// As the client says.
    pub(crate) origin: Origin,
    /// Resources of a multiprocessor that a block takes.
    pub(crate) footprint: Footprint,
    /// Clusters on each axis; without clusters, blocks.
    clusters: [u32; 3],
    /// Clusters that have started, or never will.
    next_cluster: AtomicU64,
    /// Its context has failed: no block runs on.
    doomed: AtomicBool,
}

impl KernelRun {
    pub(crate) fn new(
        launch: Launch,
        view: View,
        client: Arc<dyn Client>,
        footprint: Footprint,
    ) -> Self {
        let (launch, origin) = (Arc::new(launch), client.origin());
        let (next_cluster, doomed) = (AtomicU64::new(0), AtomicBool::new(false));
        let clusters = launch.clusters();
        Self { launch, view, client, origin, footprint, clusters, next_cluster, doomed }
    }

    /// Blocks of the grid.
    pub(crate) fn block_count(&self) -> u64 {
        self.launch.grid.iter().map(|&extent| u64::from(extent)).product()
    }

    fn cluster_count(&self) -> u64 {
        self.clusters.iter().map(|&extent| u64::from(extent)).product()
    }

    /// Coordinates of a cluster.
    fn cluster_index(&self, linear: u64) -> [u32; 3] {
        let [x, y, _] = self.clusters.map(u64::from);
        [(linear % x) as u32, (linear / x % y) as u32, (linear / (x * y)) as u32]
    }

    /// Takes a cluster that has not started, for whoever has room for it.
    fn claim(&self) -> Option<[u32; 3]> {
        let clusters = self.cluster_count();
        // Nothing is published by it: what blocks work on was there before the first one.
        let (order, next) = (Ordering::Relaxed, |next| (next < clusters).then_some(next + 1));
        let claimed = self.next_cluster.fetch_update(order, order, next).ok();
        claimed.map(|cluster| self.cluster_index(cluster))
    }

    /// Have all blocks started?
    fn is_used_up(&self) -> bool {
        self.next_cluster.load(Ordering::Relaxed) >= self.cluster_count()
    }

    /// Is the kernel to end without finishing?
    pub(crate) fn is_doomed(&self) -> bool {
        self.doomed.load(Ordering::Relaxed)
    }
}

/// A block that holds room on a multiprocessor, with those of its cluster.
pub(crate) struct Resident {
    pub block: Block,
    pub room: Room,
    /// It waited when it ran last, or was woken.
    pub waiting: bool,
    /// How it waits.
    pub vigil: Vigil,
    /// What it remembers of memory: between its turns, too, or most would begin with the same
    /// questions to the table.
    pub cursor: Cursor,
    /// Its GPU is slow, and the pause before its next turn is over.
    pub paused: bool,
}

impl Resident {
    /// A block has ended: makes the next one of its kernel of it, in the same room, if there is
    /// one.
    pub fn follow(&mut self, run: &KernelRun) -> bool {
        if run.is_doomed() {
            return false;
        }
        let Some(index) = run.claim() else { return false };
        self.block.restart(index);
        (self.waiting, self.vigil) = (false, Vigil::default());
        true
    }
}

/// A kernel in the scheduler.
pub(crate) struct Active {
    pub run: Arc<KernelRun>,
    /// How many kernels had come when it came.
    pub arrival: u64,
    ready: VecDeque<Box<Resident>>,
    /// Blocks that waited and are to look again.
    waiting: VecDeque<Box<Resident>>,
    /// Blocks in the hands of workers.
    out: usize,
    /// Blocks that the scheduler wakes when something that they wait for is written.
    asleep: usize,
    turn: u32,
    /// No multiprocessor had room when a block was to start last.
    no_room: bool,
}

impl Active {
    pub fn new(run: Arc<KernelRun>, arrival: u64) -> Self {
        let (ready, waiting) = (VecDeque::new(), VecDeque::new());
        let (out, asleep, turn, no_room) = (0, 0, 0, false);
        Self { run, arrival, ready, waiting, out, asleep, turn, no_room }
    }

    /// Its GPU.
    pub fn gpu(&self) -> usize {
        self.run.origin.gpu
    }

    /// Does it have blocks on a GPU that have not started?
    pub fn waits_for_room(&self, gpu: usize) -> bool {
        self.gpu() == gpu && !self.run.is_used_up()
    }

    /// Its place in the order in which kernels start: the greatest priority has the least number.
    pub fn rank(&self) -> (i32, u64) {
        (self.run.origin.priority, self.arrival)
    }

    /// Are blocks of it in the hands of workers?
    pub fn is_out(&self) -> bool {
        self.out > 0
    }

    /// What it does, for people.
    pub fn describe(&self) -> String {
        let waiting = self.waiting.len() + self.asleep;
        let resident = self.ready.len() + waiting + self.out;
        let blocks = self.run.block_count();
        let each = u64::from(self.run.launch.cluster_blocks());
        let (resident, waiting) = (resident as u64 * each, waiting as u64 * each);
        let started = self.run.next_cluster.load(Ordering::Relaxed) * each;
        format!(
            "kernel {}, {} blocks, of which {} have not started and {resident} are resident, \
             {waiting} of them waiting",
            self.run.launch.kernel.name,
            blocks,
            blocks - started,
        )
    }

    /// A block to run. Blocks that have started come first, for their state is in the cache; but
    /// every eighth turn starts a new one, as those that run may be waiting for it without our
    /// noticing. Every other turn asks the waiting ones first: that is cheap, and they are who
    /// latency matters to. New blocks start only if they may.
    pub fn take(&mut self, occupancy: &mut Occupancy, may_start: bool) -> Option<Box<Resident>> {
        self.turn = self.turn.wrapping_add(1);
        let mut taken = None;
        if !may_start && !self.run.is_used_up() {
            self.no_room = true;
            taken = self.ready.pop_front().or_else(|| self.waiting.pop_front());
            self.out += usize::from(taken.is_some());
            return taken;
        }
        if self.turn.is_multiple_of(8) {
            taken = self.start_block(occupancy);
        } else if !self.turn.is_multiple_of(2) {
            taken = self.waiting.pop_front();
        }
        let taken = taken
            .or_else(|| self.ready.pop_front())
            .or_else(|| self.start_block(occupancy))
            .or_else(|| self.waiting.pop_front());
        self.out += usize::from(taken.is_some());
        taken
    }

    fn start_block(&mut self, occupancy: &mut Occupancy) -> Option<Box<Resident>> {
        if self.run.is_used_up() || self.run.is_doomed() {
            return None;
        }
        let blocks = self.run.launch.cluster_blocks();
        let place = occupancy.place_cluster(&self.run.footprint, blocks);
        self.no_room = place.is_none();
        let room = place?;
        let Some(index) = self.run.claim() else {
            // A worker was quicker.
            occupancy.release_cluster(&room, &self.run.footprint);
            return None;
        };
        let block = Block::on(Arc::clone(&self.run.launch), index, room.units());
        let (vigil, cursor) = Default::default();
        Some(Box::new(Resident { block, room, waiting: false, vigil, cursor, paused: false }))
    }

    /// A worker hands a block back.
    pub fn put_back(&mut self, resident: Box<Resident>, occupancy: &mut Occupancy) {
        self.out -= 1;
        if self.run.is_doomed() {
            occupancy.release_cluster(&resident.room, &self.run.footprint);
        } else if resident.waiting {
            self.waiting.push_back(resident);
        } else {
            self.ready.push_back(resident);
        }
    }

    /// A block that a worker holds falls asleep.
    pub fn falls_asleep(&mut self) {
        self.out -= 1;
        self.asleep += 1;
    }

    /// A block that slept goes on, unless the kernel is doomed.
    pub fn wake(&mut self, mut resident: Box<Resident>, occupancy: &mut Occupancy) {
        self.asleep -= 1;
        self.out += 1;
        resident.waiting = true;
        self.put_back(resident, occupancy);
    }

    /// A block finished or failed.
    pub fn block_ended(&mut self, room: &Room, occupancy: &mut Occupancy) {
        self.out -= 1;
        self.no_room = false;
        occupancy.release_cluster(room, &self.run.footprint);
    }

    /// Drops all blocks that no worker holds, and starts no more.
    pub fn doom(&mut self, occupancy: &mut Occupancy) {
        self.run.doomed.store(true, Ordering::Relaxed);
        self.run.next_cluster.store(self.run.cluster_count(), Ordering::Relaxed);
        for resident in self.ready.drain(..).chain(self.waiting.drain(..)) {
            occupancy.release_cluster(&resident.room, &self.run.footprint);
        }
    }

    /// Are all blocks done?
    pub fn is_finished(&self) -> bool {
        let gone = self.out + self.asleep == 0;
        let idle = self.ready.is_empty() && self.waiting.is_empty() && gone;
        idle && self.run.is_used_up()
    }

    /// Blocks that waited and are to look again.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Is there a block that can run and does not wait?
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty() || (!self.run.is_used_up() && !self.no_room)
    }
}
