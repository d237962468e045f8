//! Plans that were made once: verified, for all ranks of the process, and encoded, in a rank's
//! device memory. Both are looked up before a plan is built, and both are bounded.

use super::sync::lock;
use crate::error::{Error, Result};
use crate::gpu::Upload;
use crate::plan::{CollectiveRequest, PointToPoint, Verified};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use lru::LruCache;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

/// The most verified plans that a process keeps. A program that repeats more different calls than
/// this builds some of them again, which costs milliseconds.
const VERIFIED_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Alignment of an encoded plan, for the executor's 16-byte loads.
const PLAN_ALIGN: usize = 256;

/// Device memory for encoded plans, and as much pinned memory. A plan takes a few KiB.
const PLAN_MEMORY_BYTES: usize = 4 << 20;

/// What a plan in device memory was made for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PlanKey<'a> {
    /// A collective.
    Collective(&'a CollectiveRequest),
    /// A group of sends and receives.
    Group(&'a [PointToPoint]),
}

/// A plan in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    /// Device address.
    pub address: u64,
    /// Blocks of its launch.
    pub blocks: u32,
    /// Threads of each block.
    pub threads: u32,
}

/// An encoded plan, before it is on the device.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The bytes of `ringdove_kernels::op`.
    pub bytes: Vec<u8>,
    /// Blocks of its launch.
    pub blocks: u32,
    /// Threads of each block.
    pub threads: u32,
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
}

/// One half of the plan memory. Halves take turns, so that room can be made without waiting for
/// the launches that were enqueued just now.
#[derive(Debug, Default)]
struct Half {
    used: usize,
    collectives: HashMap<CollectiveRequest, Resident>,
    groups: HashMap<Vec<PointToPoint>, Resident>,
    /// Recorded when the other half took over: after it, nobody reads this half.
    left: Option<CudaEvent>,
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
    upload: Upload,
    halves: [Half; 2],
    current: usize,
}

impl PlanMemory {
    /// Room for plans in `context`.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let upload = Upload::new(context, PLAN_MEMORY_BYTES)?;
        Ok(Self { upload, halves: Default::default(), current: 0 })
    }

    /// Looks up the plan of `key`; `encode` makes it where it is not on the device.
    ///
    /// # Errors
    /// Those of `encode`; [`Error::Argument`] for a plan that does not fit.
    pub fn prepare<'a>(
        &self,
        key: PlanKey<'a>,
        encode: impl FnOnce() -> Result<Encoded>,
    ) -> Result<Prepared<'a>> {
        if let Some(plan) = self.halves.iter().find_map(|half| half.find(key)) {
            return Ok(Prepared { key, plan: Found::Resident(plan) });
        }
        let encoded = encode()?;
        let (size, most) = (size_of_encoded(&encoded), self.half_bytes());
        if size > most {
            let expected = format!("one whose plan has at most {most} bytes");
            return Err(Error::argument("size of the call", expected, size));
        }
        Ok(Prepared { key, plan: Found::Encoded(encoded) })
    }

    /// Brings a plan to the device, on `stream`, if it is not there. No other plan may have been
    /// brought there since it was prepared.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver refuses.
    pub fn resident(&mut self, prepared: Prepared<'_>, stream: &CudaStream) -> Result<Resident> {
        let Prepared { key, plan } = prepared;
        let encoded = match plan {
            Found::Resident(plan) => return Ok(plan),
            Found::Encoded(encoded) => encoded,
        };
        let size = size_of_encoded(&encoded);
        if self.halves[self.current].used + size > self.half_bytes() {
            self.turn_over(stream)?;
        }
        let offset = self.current * self.half_bytes() + self.halves[self.current].used;
        self.upload.enqueue(offset, &encoded.bytes, stream)?;
        let plan = Resident {
            address: self.upload.address(offset),
            blocks: encoded.blocks,
            threads: encoded.threads,
        };
        let half = &mut self.halves[self.current];
        half.used += size;
        half.insert(key, plan);
        Ok(plan)
    }

    fn half_bytes(&self) -> usize {
        self.upload.bytes() / 2
    }

    /// Makes the other half current and empty.
    fn turn_over(&mut self, stream: &CudaStream) -> Result<()> {
        // The stream waits for the launches before, so what it has reached now, they have ended.
        let event = stream.record_event(None).map_err(Error::from_driver("cuEventRecord"))?;
        self.halves[self.current].left = Some(event);
        self.current = 1 - self.current;
        let next = &mut self.halves[self.current];
        if let Some(event) = next.left.take() {
            event.synchronize().map_err(Error::from_driver("cuEventSynchronize"))?;
        }
        next.used = 0;
        next.collectives.clear();
        next.groups.clear();
        Ok(())
    }
}

impl Half {
    fn find(&self, key: PlanKey<'_>) -> Option<Resident> {
        match key {
            PlanKey::Collective(request) => self.collectives.get(request).copied(),
            PlanKey::Group(transfers) => self.groups.get(transfers).copied(),
        }
    }

    fn insert(&mut self, key: PlanKey<'_>, plan: Resident) {
        match key {
            PlanKey::Collective(request) => self.collectives.insert(*request, plan),
            PlanKey::Group(transfers) => self.groups.insert(transfers.to_vec(), plan),
        };
    }
}

fn size_of_encoded(encoded: &Encoded) -> usize {
    encoded.bytes.len().next_multiple_of(PLAN_ALIGN)
}
