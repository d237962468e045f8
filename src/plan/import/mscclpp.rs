//! MSCCL++'s JSON: execution plans, in which a rank writes into other ranks' buffers and reads
//! them. Here is what is read and checked of a file; `play` makes messages of it.

use super::objects::{File, Gpu, Op};
use super::play::Player;
use super::{CHUNKS_MAX, ImportError, ImportedPlan, RANKS_MAX, THREAD_BLOCKS_MAX, collective};
use ringdove_kernels::element::ReduceOp;

/// Thread blocks that share a chunk, at most.
const PARTS_MAX: u32 = 256;

/// Reads a file.
pub(super) fn read(text: &str) -> Result<ImportedPlan, ImportError> {
    let file: File<'_> = serde_json::from_str(text)
        .map_err(|error| ImportError::new(error.line() as u32, format!("no plan: {error}")))?;
    let lines = Lines::of(text);
    check(&file)?;
    let ops = ops(&file, &lines)?;
    let parts = parts(&ops)?;
    let ranks = file.gpus.len() as u32;
    let collective = collective(&file.collective, file.root.min(ranks - 1), 0)?;
    let mut player = Player::new(&file, &ops, parts)?;
    player.play()?;
    let reduce_op = player.reduce_op;
    let programs = player.flat()?;
    let of = |count: fn(&Gpu<'_>) -> u32| file.gpus.iter().map(count).max().unwrap_or(0);
    let chunks = of(|gpu| gpu.input_chunks.max(gpu.output_chunks));
    Ok(ImportedPlan {
        name: file.name.clone(),
        collective,
        rank_count: ranks,
        in_place: file.inplace,
        out_of_place: !file.inplace,
        bytes: file.min_message_size..=file.max_message_size.unwrap_or(u64::MAX),
        chunks: chunks * parts,
        scratch_chunks: of(|gpu| gpu.scratch_chunks) * parts,
        reduce_op: collective.reduces().then_some(reduce_op.unwrap_or(ReduceOp::Sum)),
        programs,
    })
}

/// Where the lines of a text begin.
struct Lines<'t> {
    text: &'t str,
    begins: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn of(text: &'t str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let begins = std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect();
        Self { text, begins }
    }

    /// The line of a part of the text.
    fn of_part(&self, part: &str) -> u32 {
        let at = (part.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        self.begins.partition_point(|begin| *begin <= at) as u32
    }
}

fn check(file: &File<'_>) -> Result<(), ImportError> {
    let ranks = file.gpus.len();
    if ranks == 0 || ranks > RANKS_MAX as usize {
        return Err(ImportError::whole(format!("{ranks} GPUs; 1 to {RANKS_MAX} are expected")));
    }
    for (rank, gpu) in (0..).zip(&file.gpus) {
        let wrong = |reason| Err(ImportError::whole(format!("GPU {rank}: {reason}")));
        if gpu.id != rank {
            return wrong(format!("id {} stands in the place of {rank}", gpu.id));
        }
        if gpu.threadblocks.len() > THREAD_BLOCKS_MAX {
            return wrong(format!("more than {THREAD_BLOCKS_MAX} thread blocks"));
        }
        let chunks = gpu.input_chunks.max(gpu.output_chunks).max(gpu.scratch_chunks);
        if chunks > CHUNKS_MAX {
            return wrong(format!("{chunks} chunks; at most {CHUNKS_MAX}"));
        }
        for (place, threads) in (0..).zip(&gpu.threadblocks) {
            if threads.id != place {
                let id = threads.id;
                return wrong(format!("thread block {id} stands in the place of {place}"));
            }
        }
        if let Some(other) = gpu.remote_buffers.iter().find(|it| it.rank as usize >= ranks) {
            return wrong(format!("a buffer of rank {}, of {ranks}", other.rank));
        }
        let peers = gpu.channels.iter().flat_map(|channels| &channels.connected_to);
        if let Some(peer) = peers.into_iter().find(|peer| **peer as usize >= ranks) {
            return wrong(format!("a channel to rank {peer}, of {ranks}"));
        }
    }
    Ok(())
}

/// The ops of each rank and thread block, with their lines.
pub(super) type Ops = Vec<Vec<Vec<(u32, Op)>>>;

fn ops(file: &File<'_>, lines: &Lines<'_>) -> Result<Ops, ImportError> {
    let mut all = Vec::new();
    for gpu in &file.gpus {
        let mut of_gpu = Vec::new();
        for threads in &gpu.threadblocks {
            let read = |raw: &&serde_json::value::RawValue| {
                let line = lines.of_part(raw.get());
                let op = serde_json::from_str(raw.get());
                op.map(|op| (line, op))
                    .map_err(|error| ImportError::new(line, format!("no op: {error}")))
            };
            of_gpu.push(threads.ops.iter().map(read).collect::<Result<Vec<_>, _>>()?);
        }
        all.push(of_gpu);
    }
    Ok(all)
}

/// Parts of a chunk: as many as let each group of thread blocks share it evenly.
fn parts(ops: &Ops) -> Result<u32, ImportError> {
    let mut parts = 1_u32;
    for (line, op) in ops.iter().flatten().flatten() {
        let Some(group) = op.tbg_info else { continue };
        let (size, id) = (group.tbg_size, group.tb_id);
        if !(1..=PARTS_MAX).contains(&size) || id >= size {
            let reason = format!("thread block {id} of a group of {size} (at most {PARTS_MAX})");
            return Err(ImportError::new(*line, reason));
        }
        let (mut a, mut b) = (parts, size);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        parts = parts / a * size;
        if parts > PARTS_MAX {
            let reason = format!("groups of so many sizes that a chunk has {parts} parts");
            return Err(ImportError::new(*line, reason));
        }
    }
    Ok(parts)
}
