//! Plans that were made once: verified, for all ranks of the process, and encoded, in a rank's
//! device memory. Both are looked up before a plan is built, and both are bounded.
//!
//! Launches that are captured into a graph may be repeated for as long as the communicator lives,
//! which is told of no graph's end: what they read is kept apart and stays.
//!
//! A plan holds no addresses. Those of a collective are arguments of its launch; those of a group,
//! and those of other ranks' registered buffers, stand in tables in device memory, which are
//! uploaded where they have changed.

use super::halves::{Halves, Turn, Uploaded};
use super::kept::Kept;
use super::routes::RegisteredPlace;
use super::sync::lock;
use crate::error::{Error, Result};
use crate::plan::{CollectiveRequest, ENCODED_BYTES_MAX, PointToPoint, Verified};
use cudarc::driver::{CudaContext, CudaStream};
use lru::LruCache;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

/// The most verified plans that a process keeps. A program that repeats more different calls than
/// this builds some of them again, which costs milliseconds.
const VERIFIED_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Device memory for encoded plans, and as much pinned memory. Half of it holds the largest plan.
fn plan_memory_bytes(rank_count: u32) -> usize {
    let least = if rank_count <= TREES_RANKS_MAX { TREES_BYTES } else { PLAN_BYTES_MIN };
    2 * (rank_count as usize * PLAN_BYTES_OF_RANK).clamp(least, ENCODED_BYTES_MAX as usize)
}

/// What the longest plan, a ring of nodes with four blocks, takes for each rank of the
/// communicator. Where that would be too much, no such plan is chosen.
const PLAN_BYTES_OF_RANK: usize = 8 << 10;

/// The least for a plan, so that many small ones are kept.
const PLAN_BYTES_MIN: usize = 2 << 20;

/// The same where there may be trees, of which selection makes no longer plans, and on four nodes
/// of eight ranks at most.
const TREES_BYTES: usize = 3 << 20;
const TREES_RANKS_MAX: u32 = 32;

/// The same for tables of addresses: half of it holds that of the largest plan.
const TABLE_MEMORY_BYTES: usize = 256 << 10;

/// What a plan in device memory was made for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PlanKey<'a> {
    /// A collective.
    Collective(&'a CollectiveRequest),
    /// A group of sends and receives, whose addresses are places in the table of a launch.
    Group(&'a [PointToPoint]),
}

/// A plan in device memory.
#[derive(Clone, Debug)]
pub(crate) struct Resident {
    /// Device address.
    pub address: u64,
    pub shape: PlanShape,
}

/// What a launch has to have for a plan.
#[derive(Clone, Debug)]
pub(crate) struct PlanShape {
    /// Name of the algorithm.
    pub name: &'static str,
    /// Blocks, at least.
    pub blocks: u32,
    /// Threads of each block, at least.
    pub threads: u32,
    /// The ports that it uses, each once, in the order of their numbers.
    pub ports: Arc<[PortUse]>,
    /// An engine takes part. Else all its lanes are lanes of stores.
    pub wants_engine: bool,
    /// Bytes of scratch memory.
    pub scratch_bytes: u64,
    /// Its threads reach registered buffers of other ranks, by a table of their addresses.
    pub reaches_peers: bool,
}

/// A port, and the block of a plan that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PortUse {
    pub port: u32,
    pub block: u32,
}

impl PlanShape {
    /// Can one launch run both plans? Its blocks do not wait for one another between them, so what
    /// both use must belong to one block.
    pub fn goes_with(&self, other: &Self) -> bool {
        let mut others = other.ports.iter().peekable();
        self.ports.iter().all(|own| {
            while others.next_if(|other| other.port < own.port).is_some() {}
            others.peek().is_none_or(|other| other.port != own.port || other.block == own.block)
        })
    }
}

/// An encoded plan, before it is on the device.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The bytes of `ringdove_kernels::op`.
    pub bytes: Vec<u8>,
    pub shape: PlanShape,
}

/// A plan that was looked up.
#[derive(Debug)]
pub(crate) struct Prepared<'a> {
    key: PlanKey<'a>,
    plan: Found,
}

#[derive(Debug)]
enum Found {
    Resident(Resident),
    Encoded(Encoded),
    /// A plan of captured launches, which is uploaded in each capture.
    Kept(Resident),
}

/// Verified plans of the collectives of one communicator, those used last.
#[derive(Debug)]
pub(crate) struct PlanCache {
    plans: Mutex<LruCache<CollectiveRequest, Arc<Verified>>>,
}

impl Default for PlanCache {
    fn default() -> Self {
        Self { plans: Mutex::new(LruCache::new(VERIFIED_MAX)) }
    }
}

impl PlanCache {
    /// The verified plan of `request`; `build` makes it where it is not there.
    ///
    /// # Errors
    /// Those of `build`.
    pub fn plan(
        &self,
        request: &CollectiveRequest,
        build: impl FnOnce() -> Result<Verified>,
    ) -> Result<Arc<Verified>> {
        // Held while the plan is built: the other ranks want the same one.
        let mut plans = lock(&self.plans);
        plans.try_get_or_insert(*request, || build().map(Arc::new)).cloned()
    }
}

/// Plans in the device memory of one rank.
#[derive(Debug)]
pub(crate) struct PlanMemory {
    plans: Halves,
    tables: Halves,
    collectives: HashMap<CollectiveRequest, Entry>,
    groups: HashMap<Vec<PointToPoint>, Entry>,
    /// Tables of all ranks' addresses of an input and an output.
    peers: HashMap<[RegisteredPlace; 2], Uploaded>,
    /// Plans and tables of captured launches, and where the plans are.
    kept: Kept,
    kept_collectives: HashMap<CollectiveRequest, Resident>,
    kept_groups: HashMap<Vec<PointToPoint>, Resident>,
    kept_peers: HashMap<[RegisteredPlace; 2], u64>,
}

/// A plan, and where it was uploaded.
#[derive(Debug)]
struct Entry {
    plan: Resident,
    uploaded: Uploaded,
    /// The addresses of the last launch, and where their table is.
    table: Option<(Vec<u64>, Uploaded)>,
}

impl PlanMemory {
    /// Room, in `context`, for plans of so many ranks.
    pub fn new(context: &Arc<CudaContext>, rank_count: u32) -> Result<Self> {
        Ok(Self {
            plans: Halves::new(context, plan_memory_bytes(rank_count))?,
            tables: Halves::new(context, TABLE_MEMORY_BYTES)?,
            collectives: HashMap::new(),
            groups: HashMap::new(),
            peers: HashMap::new(),
            kept: Kept::new(context)?,
            kept_collectives: HashMap::new(),
            kept_groups: HashMap::new(),
            kept_peers: HashMap::new(),
        })
    }

    /// Bytes that this takes on the device.
    pub fn device_bytes(&self) -> usize {
        self.plans.bytes() + self.tables.bytes() + self.kept.bytes()
    }

    /// Looks up the plan of `key`; `encode` makes it where it is not on the device.
    ///
    /// # Errors
    /// Those of `encode`; [`Error::Argument`] for a plan that does not fit.
    pub fn prepare<'a>(
        &self,
        key: PlanKey<'a>,
        capture: Option<u64>,
        encode: impl FnOnce() -> Result<Encoded>,
    ) -> Result<Prepared<'a>> {
        if capture.is_some() {
            let kept = match key {
                PlanKey::Collective(request) => self.kept_collectives.get(request),
                PlanKey::Group(transfers) => self.kept_groups.get(transfers),
            };
            return Ok(Prepared {
                key,
                plan: match kept {
                    Some(kept) => Found::Kept(kept.clone()),
                    None => Found::Encoded(encode()?),
                },
            });
        }
        let entry = match key {
            PlanKey::Collective(request) => self.collectives.get(request),
            PlanKey::Group(transfers) => self.groups.get(transfers),
        };
        if let Some(entry) = entry {
            return Ok(Prepared { key, plan: Found::Resident(entry.plan.clone()) });
        }
        let encoded = encode()?;
        let (size, most) = (encoded.bytes.len(), self.plans.bytes_max());
        if size > most {
            let expected = format!("one whose plan has at most {most} bytes");
            return Err(Error::argument("size of the call", expected, size));
        }
        Ok(Prepared { key, plan: Found::Encoded(encoded) })
    }

    /// What is prepared in one turn is still true in it.
    pub fn turn(&self) -> Turn {
        self.plans.turn()
    }

    /// True if other plans have to give way before this one can be brought to the device. Those
    /// that are about to be launched are launched before.
    pub fn displaces(&self, prepared: &Prepared<'_>, capture: Option<u64>) -> bool {
        match &prepared.plan {
            Found::Encoded(encoded) if capture.is_none() => !self.plans.has_room(&encoded.bytes),
            _ => false,
        }
    }

    /// Brings a plan to the device, on `stream`, if it is not there. No other plan may have been
    /// brought there since it was prepared.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver refuses.
    pub fn resident(
        &mut self,
        prepared: Prepared<'_>,
        stream: &CudaStream,
        capture: Option<u64>,
    ) -> Result<Resident> {
        if let Some(capture) = capture {
            return self.keep(prepared, stream, capture);
        }
        let Prepared { key, plan } = prepared;
        let encoded = match plan {
            Found::Resident(plan) | Found::Kept(plan) => return Ok(plan),
            Found::Encoded(encoded) => encoded,
        };
        let before = self.plans.turn();
        let uploaded = self.plans.enqueue(&encoded.bytes, stream)?;
        if uploaded.turn != before {
            let stays = |entry: &Entry| entry.uploaded.turn.stays_in(uploaded.turn);
            self.collectives.retain(|_, entry| stays(entry));
            self.groups.retain(|_, entry| stays(entry));
        }
        let plan = Resident { address: uploaded.address, shape: encoded.shape };
        let entry = Entry { plan: plan.clone(), uploaded, table: None };
        match key {
            PlanKey::Collective(request) => self.collectives.insert(*request, entry),
            PlanKey::Group(transfers) => self.groups.insert(transfers.to_vec(), entry),
        };
        Ok(plan)
    }

    /// Brings the plan of a captured launch to memory that is never used for another one.
    fn keep(
        &mut self,
        Prepared { key, plan }: Prepared<'_>,
        stream: &CudaStream,
        capture: u64,
    ) -> Result<Resident> {
        let Encoded { bytes, shape } = match plan {
            Found::Kept(plan) | Found::Resident(plan) => {
                self.kept.upload(plan.address, stream, capture)?;
                return Ok(plan);
            }
            Found::Encoded(encoded) => encoded,
        };
        let address = self.kept.add(&bytes)?;
        self.kept.upload(address, stream, capture)?;
        let plan = Resident { address, shape };
        let kept = plan.clone();
        match key {
            PlanKey::Collective(request) => self.kept_collectives.insert(*request, kept),
            PlanKey::Group(transfers) => self.kept_groups.insert(transfers.to_vec(), kept),
        };
        Ok(plan)
    }

    /// Refuses a captured call where there is no room for what it keeps, before the other ranks are
    /// told of it.
    ///
    /// # Errors
    /// [`Error::Argument`].
    pub fn check_kept_room(&self) -> Result<()> {
        self.kept.check_room()
    }

    /// The device address of the table of all ranks' addresses of input and output, which `find`
    /// gives. It is uploaded, on `stream`, where it is not there.
    ///
    /// # Errors
    /// Those of `find`; [`Error::Cuda`] where the driver refuses; [`Error::Argument`] where
    /// captured launches have no room left.
    pub fn table_of_peers(
        &mut self,
        places: [RegisteredPlace; 2],
        find: impl FnOnce() -> Result<Vec<u64>>,
        stream: &CudaStream,
        capture: Option<u64>,
    ) -> Result<u64> {
        if let Some(capture) = capture {
            let table = match self.kept_peers.get(&places) {
                Some(table) => *table,
                None => self.kept.add_apart(bytemuck::cast_slice(&find()?))?,
            };
            self.kept_peers.insert(places, table);
            self.kept.upload(table, stream, capture)?;
            return Ok(table);
        }
        let now = self.tables.turn();
        if let Some(table) = self.peers.get(&places).filter(|table| table.turn.stays_in(now)) {
            return Ok(table.address);
        }
        let table = self.tables.enqueue(bytemuck::cast_slice(&find()?), stream)?;
        if table.turn != now {
            self.peers.retain(|_, known| known.turn.stays_in(table.turn));
        }
        self.peers.insert(places, table);
        Ok(table.address)
    }

    /// Forgets all ranks' addresses of registration `number`, whose launches have ended: captured
    /// ones that are made again are refused.
    pub fn forget_peers(&mut self, number: usize) {
        let concerned =
            |places: &[RegisteredPlace; 2]| places.iter().any(|it| it.registration == number);
        self.peers.retain(|places, _| !concerned(places));
        for (_, table) in self.kept_peers.extract_if(|places, _| concerned(places)) {
            self.kept.clear(table);
        }
    }

    /// The device address of the table of `addresses`, for a launch of the group of `transfers`,
    /// whose plan is resident. It is uploaded, on `stream`, where the last launch had others.
    ///
    /// # Errors
    /// [`Error::Argument`] for a table that does not fit; [`Error::Cuda`] where the driver refuses.
    pub fn table(
        &mut self,
        transfers: &[PointToPoint],
        addresses: &[u64],
        stream: &CudaStream,
        capture: Option<u64>,
    ) -> Result<u64> {
        if let Some(capture) = capture {
            let table = self.kept.add(bytemuck::cast_slice(addresses))?;
            self.kept.upload(table, stream, capture)?;
            return Ok(table);
        }
        let entry = self.groups.get_mut(transfers).expect("made resident just now");
        let now = self.tables.turn();
        if let Some((last, table)) = &entry.table
            && last == addresses
            && table.turn.stays_in(now)
        {
            return Ok(table.address);
        }
        let (bytes, most) = (bytemuck::cast_slice(addresses), self.tables.bytes_max());
        if bytes.len() > most {
            let expected = format!("at most {} buffers", most / size_of::<u64>());
            return Err(Error::argument("size of the group", expected, addresses.len()));
        }
        let table = self.tables.enqueue(bytes, stream)?;
        let (mut kept, _) = entry.table.take().unwrap_or((Vec::new(), table));
        kept.clear();
        kept.extend_from_slice(addresses);
        entry.table = Some((kept, table));
        Ok(table.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(ports: &[(u32, u32)]) -> PlanShape {
        let ports = ports.iter().map(|&(port, block)| PortUse { port, block }).collect();
        let (blocks, threads, scratch_bytes) = (4, 128, 0);
        let (name, wants_engine, reaches_peers) = ("test", true, false);
        PlanShape { name, blocks, threads, ports, wants_engine, scratch_bytes, reaches_peers }
    }

    /// If this fails, two blocks of one launch count messages on one port, or calls that could
    /// share a launch do not.
    #[test]
    fn plans_go_together_where_each_port_has_one_block() {
        let ring = shape(&[(3, 0), (4, 0), (7, 1), (8, 1)]);
        let together = [
            shape(&[]),
            shape(&[(1, 2), (5, 2), (9, 0)]),
            shape(&[(3, 0), (8, 1)]),
            shape(&[(0, 5), (4, 0), (5, 3), (7, 1), (20, 0)]),
        ];
        let apart = [shape(&[(8, 0)]), shape(&[(3, 0), (7, 0)]), shape(&[(1, 1), (4, 1)])];
        for other in &together {
            assert!(ring.goes_with(other) && other.goes_with(&ring), "{other:?}");
        }
        for other in &apart {
            assert!(!ring.goes_with(other) && !other.goes_with(&ring), "{other:?}");
        }
    }
}
