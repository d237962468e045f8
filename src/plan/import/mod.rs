//! Plans of others: what MSCCL and MSCCL++ write, as plans of this library.
//!
//! Their files say what thread blocks do with chunks of buffers, for data of any size. A file is
//! read into [`ImportedPlan`]: for each rank and thread block the chunks that it receives,
//! combines, stores and sends. [`ImportedPlan::build`] makes a plan of it for one request and one
//! machine:
//!
//! * `msccl`: MSCCL's XML; `mscclpp`, `objects`, `play`: MSCCL++'s JSON
//! * `order`: one order of all steps of all ranks, which shows that the file's programs end
//! * `lower`: the steps as ops, thread blocks as blocks
//!
//! **Nothing read here is trusted.** A built plan is proved like any other, with all ranks, before
//! it runs: a file that computes something else, or a reader that misunderstands one, ends in a
//! refusal with the verifier's reason.
//!
//! **Thread blocks wait for one another** in these formats, and blocks of this library do not. So
//! thread blocks of a rank that depend on each other, or that share a lane, become one block, which
//! takes their steps in the order that `order` has found: all blocks' programs are then parts of
//! one order in which every step can be done, hence none waits for ever.

mod lower;
mod msccl;
mod mscclpp;
mod objects;
mod order;
mod play;

use super::{Collective, CollectiveRequest, Limits, Plan, VerifyError, verify};
use ringdove_kernels::element::ReduceOp;
use std::fmt;
use std::ops::RangeInclusive;

/// The longest file that is read. The largest published ones have some MiB.
const TEXT_BYTES_MAX: usize = 64 << 20;
/// The most ranks: all of their programs are proved together.
const RANKS_MAX: u32 = super::PROVED_RANKS_MAX;
/// The most thread blocks of a rank.
const THREAD_BLOCKS_MAX: usize = 1024;
/// The most steps of all thread blocks and ranks, of one chunk each.
const STEPS_MAX: usize = 1 << 20;
/// The most chunks of one message: slots hold a piece of each.
const GROUP_MAX: u32 = 8;
/// The most chunks of a buffer.
const CHUNKS_MAX: u32 = 1 << 16;
/// Scratch memory of a rank, at most: calls that need more are done by other plans.
pub const SCRATCH_BYTES_MAX: u64 = 64 << 20;
/// What a rank has to have of its program, at most: half of the memory for plans.
pub(super) const PROGRAM_BYTES_MAX: u64 = 2 << 20;

/// Why a plan of others is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ImportError {
    /// The line of the file, from 1; 0 where it is about the whole.
    pub line: u32,
    /// Why.
    pub reason: String,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.reason),
            line => write!(f, "line {line}: {}", self.reason),
        }
    }
}

impl ImportError {
    fn new(line: u32, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }

    fn whole(reason: impl Into<String>) -> Self {
        Self::new(0, reason)
    }
}

impl From<VerifyError> for ImportError {
    fn from(error: VerifyError) -> Self {
        Self::whole(error.to_string())
    }
}

/// A plan of another library, for data of any size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedPlan {
    /// Its name in the file.
    pub name: String,
    /// What it does.
    pub collective: Collective,
    /// For so many ranks.
    pub rank_count: u32,
    /// It serves calls whose input and output are the same memory.
    pub in_place: bool,
    /// It serves other calls.
    pub out_of_place: bool,
    /// Bytes of the larger one of input and output for which it is meant.
    pub bytes: RangeInclusive<u64>,
    /// Chunks of the larger one of input and output.
    pub chunks: u32,
    /// Chunks of scratch memory.
    pub scratch_chunks: u32,
    /// The one reduction that it is for; `None`: any.
    pub reduce_op: Option<ReduceOp>,
    /// The thread blocks of each rank.
    programs: Vec<Vec<ThreadBlock>>,
}

/// What one thread block does, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ThreadBlock {
    steps: Vec<Step>,
}

/// One step, of one chunk or of several that follow one another in each of its places: takes what
/// has come, combines it with what is here, stores it, sends it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Step {
    /// Its line in the file.
    line: u32,
    /// Chunks: 1 to [`GROUP_MAX`]. They make one message.
    count: u32,
    /// Steps of other thread blocks of the rank that come before it: number of the thread block,
    /// number of the step.
    after: Vec<(usize, usize)>,
    /// The next message on this channel is one term.
    receive: Option<Channel>,
    /// Terms of this rank's memory: at most two, or one beside a message.
    terms: Vec<Place>,
    /// Where the result goes here.
    store: Option<Place>,
    /// Where it is sent.
    send: Option<Channel>,
}

/// One end of a channel: messages between two ranks, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Channel {
    /// The other rank.
    peer: u32,
    /// Which of the channels in this direction between the two.
    number: u32,
    /// Where messages have names of their own: which one. Messages of one name are in order.
    message: u32,
}

/// A chunk of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Place {
    space: Space,
    chunk: u32,
}

/// The buffers of these formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Space {
    Input,
    Output,
    Scratch,
}

impl ImportedPlan {
    /// Reads MSCCL's XML or MSCCL++'s JSON, whichever `text` is.
    ///
    /// # Errors
    /// What is wrong with the text, or what of it has no counterpart here, with the line.
    pub fn read(text: &str) -> Result<Self, ImportError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(ImportError::whole("a file of at most 64 MiB is read"));
        }
        let plan = match text.trim_start_matches('\u{feff}').trim_start().starts_with('<') {
            true => msccl::read(text)?,
            false => mscclpp::read(text)?,
        };
        plan.check()?;
        Ok(plan)
    }

    /// The numbers that everything else relies on.
    fn check(&self) -> Result<(), ImportError> {
        let whole = |reason: String| Err(ImportError::whole(reason));
        let parts = self.parts();
        if self.chunks == 0 || !u64::from(self.chunks).is_multiple_of(parts) {
            return whole(format!(
                "{} chunks, which is no multiple of the {parts} parts of the data",
                self.chunks
            ));
        }
        let steps: usize = self.programs.iter().flatten().map(|block| block.steps.len()).sum();
        if steps > STEPS_MAX {
            return whole(format!("{steps} steps; at most {STEPS_MAX} are read"));
        }
        Ok(())
    }

    /// Parts of a request's bytes in the larger one of input and output.
    fn parts(&self) -> u64 {
        match self.collective {
            Collective::AllReduce | Collective::Broadcast { .. } | Collective::Reduce { .. } => 1,
            _ => u64::from(self.rank_count),
        }
    }

    /// May the plan be used for `request`? It says nothing of the machine.
    pub fn covers(&self, request: &CollectiveRequest) -> bool {
        let all = request.bytes.saturating_mul(request.parts());
        let chunk = all / u64::from(self.chunks);
        let reduces = |op| match self.reduce_op {
            Some(own) => op == own,
            // Terms are scaled and averages finished by the library's own plans alone.
            None => {
                matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min)
            }
        };
        request.collective == self.collective
            && request.rank_count == self.rank_count
            && (!request.collective.reduces() || reduces(request.reduce_op))
            && self.bytes.contains(&all)
            && chunk > 0
            && all.is_multiple_of(u64::from(self.chunks))
            && chunk.is_multiple_of(u64::from(request.element_bytes))
            // What is done in place serves others by a copy of its own. With a root, the other
            // ranks do not know whether its call is in place.
            && (self.in_place || !request.in_place && request.collective.root().is_none())
    }

    /// A request that the plan covers, of `chunk_bytes` in each chunk, or what comes next to that.
    pub fn request(&self, chunk_bytes: u64, element_bytes: u32) -> CollectiveRequest {
        let chunks = u64::from(self.chunks);
        let element = u64::from(element_bytes.max(1));
        let (least, most) = (self.bytes.start().div_ceil(chunks), self.bytes.end() / chunks);
        let (least, most) = (least.max(1).next_multiple_of(element), most - most % element);
        let wanted = chunk_bytes.max(1).next_multiple_of(element);
        let chunk = wanted.clamp(least, most.max(least));
        CollectiveRequest {
            collective: self.collective,
            rank_count: self.rank_count,
            bytes: chunk * chunks / self.parts(),
            element_bytes,
            reduce_op: self.reduce_op.unwrap_or(ReduceOp::Sum),
            in_place: self.in_place && !self.out_of_place,
            registered: false,
        }
    }

    /// The plan for `request`, on a machine with `limits`. It is not proved yet.
    ///
    /// # Errors
    /// A request that the plan does not cover, programs that wait for ever, and what the machine
    /// has too little of.
    pub fn build(&self, request: &CollectiveRequest, limits: &Limits) -> Result<Plan, ImportError> {
        if !self.covers(request) {
            return Err(ImportError::whole(self.uncovered(request)));
        }
        lower::lower(self, request, limits)
    }

    /// The plan for `request`, proved. Of a long one, a plan of three rounds and of the whole's
    /// rest is proved in its place: rounds do the same on data of their own.
    ///
    /// # Errors
    /// As [`build`](Self::build), and the verifier's refusal.
    pub fn prove(
        &self,
        request: &CollectiveRequest,
        limits: &Limits,
    ) -> Result<super::Verified, ImportError> {
        let plan = self.build(request, limits)?;
        let all = request.bytes * request.parts();
        let Some(chunk) = lower::short(&plan, all / u64::from(self.chunks)) else {
            return Ok(verify(plan, &request.promise())?);
        };
        let bytes = chunk * u64::from(self.chunks) / request.parts();
        let short = CollectiveRequest { bytes, ..*request };
        verify(lower::lower(self, &short, limits)?, &short.promise())?;
        Ok(super::verify::check_ops(plan)?)
    }

    /// Scratch memory of a rank for the largest request that the plan covers, or the most that
    /// there is.
    pub fn scratch_bytes_max(&self) -> u64 {
        // What is reduced elsewhere and has no place in this rank's output.
        let more = match self.collective {
            Collective::ReduceScatter | Collective::Reduce { .. } if self.in_place => self.chunks,
            _ => 0,
        };
        let chunk = self.bytes.end() / u64::from(self.chunks);
        let chunks = u64::from(self.scratch_chunks + more);
        chunk.saturating_mul(chunks).min(SCRATCH_BYTES_MAX)
    }

    fn uncovered(&self, request: &CollectiveRequest) -> String {
        let place = match (self.in_place, self.out_of_place) {
            (true, true) => "in place or not",
            (true, false) => "best in place",
            _ => "not in place",
        };
        format!(
            "the plan {:?} is an {} of {} ranks, {place}, of {} to {} bytes in {} chunks of whole \
             elements, for sum, prod, min and max; asked for is {} of {} bytes ({} in all) among \
             {} ranks{}",
            self.name,
            self.collective.name(),
            self.rank_count,
            self.bytes.start(),
            self.bytes.end(),
            self.chunks,
            request.collective.name(),
            request.bytes,
            request.bytes.saturating_mul(request.parts()),
            request.rank_count,
            if request.in_place { ", in place" } else { "" },
        )
    }
}

/// The collective that a file names.
fn collective(name: &str, root: u32, line: u32) -> Result<Collective, ImportError> {
    let letters: String = name.chars().filter(|it| !matches!(it, '_' | '-')).collect();
    Ok(match letters.to_ascii_lowercase().as_str() {
        "allreduce" => Collective::AllReduce,
        "allgather" => Collective::AllGather,
        "reducescatter" => Collective::ReduceScatter,
        "alltoall" => Collective::AllToAll,
        "broadcast" => Collective::Broadcast { root },
        "reduce" => Collective::Reduce { root },
        _ => {
            let known = "allreduce, allgather, reduce_scatter, alltoall, broadcast or reduce";
            return Err(ImportError::new(line, format!("collective {name:?}: expected {known}")));
        }
    })
}

impl Step {
    /// A step that only waits.
    fn nothing(line: u32) -> Self {
        Self { line, count: 1, ..Self::default() }
    }
}
