//! MSCCL's XML: `algo`, in it a `gpu` for each rank, thread blocks (`tb`) and their steps.
//!
//! A thread block has at most one rank to send to and one to receive from, on one channel. A step
//! handles `cnt` chunks, up to 8 of which make one message; `depid` and `deps` name a thread
//! block of the same GPU, and its step that comes before this one.

use super::{
    CHUNKS_MAX, Channel, GROUP_MAX, ImportError, ImportedPlan, Place, RANKS_MAX, STEPS_MAX, Space,
    Step, THREAD_BLOCKS_MAX, ThreadBlock, collective,
};
use roxmltree::{Document, Node, ParsingOptions};

/// Elements and texts of a file, at most.
const NODES_MAX: u32 = 1 << 22;

/// Reads a file.
pub(super) fn read(text: &str) -> Result<ImportedPlan, ImportError> {
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options)
        .map_err(|error| ImportError::new(error.pos().row, format!("no XML: {error}")))?;
    let algo = document.root_element();
    let reader = Reader { document: &document };
    if !algo.has_tag_name("algo") {
        let seen = algo.tag_name().name();
        return Err(reader.wrong(algo, format!("<algo> is expected, <{seen}> is seen")));
    }
    reader.algo(algo)
}

struct Reader<'a, 'i> {
    document: &'a Document<'i>,
}

/// What steps of one GPU may name.
struct Bounds {
    /// Chunks of input and output together, of which either may be named alone.
    chunks: u32,
    scratch: u32,
}

/// A thread block's ends.
struct Ends {
    send: Option<Channel>,
    receive: Option<Channel>,
}

/// The parts of a step that its type asks for.
#[derive(Clone, Copy)]
struct Parts {
    receives: bool,
    /// Its source is a term.
    reads: bool,
    /// So is its destination.
    adds: bool,
    stores: bool,
    sends: bool,
}

impl Parts {
    fn of(name: &str) -> Option<Self> {
        let none = Self { receives: false, reads: false, adds: false, stores: false, sends: false };
        Some(match name {
            "nop" => none,
            "s" => Self { reads: true, sends: true, ..none },
            "r" => Self { receives: true, stores: true, ..none },
            "rcs" => Self { receives: true, stores: true, sends: true, ..none },
            "rrs" => Self { receives: true, reads: true, sends: true, ..none },
            "rrc" => Self { receives: true, reads: true, stores: true, ..none },
            "rrcs" => Self { receives: true, reads: true, stores: true, sends: true, ..none },
            "cpy" => Self { reads: true, stores: true, ..none },
            "re" => Self { reads: true, adds: true, stores: true, ..none },
            _ => return None,
        })
    }
}

fn elements<'a, 'i>(node: Node<'a, 'i>, name: &'static str) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

impl Reader<'_, '_> {
    fn line(&self, node: Node) -> u32 {
        self.document.text_pos_at(node.range().start).row
    }

    fn wrong(&self, node: Node, reason: String) -> ImportError {
        ImportError::new(self.line(node), reason)
    }

    fn number(&self, node: Node, name: &str, least: i64, most: i64) -> Result<i64, ImportError> {
        let of = node.tag_name().name();
        let Some(text) = node.attribute(name) else {
            return Err(self.wrong(node, format!("<{of}> lacks the attribute {name}")));
        };
        let value = text.trim().parse().ok().filter(|value| (least..=most).contains(value));
        value.ok_or_else(|| {
            self.wrong(
                node,
                format!("{name} of <{of}>: {least} to {most} is expected, not {text:?}"),
            )
        })
    }

    /// The same where it may be missing.
    fn or(
        &self,
        node: Node,
        name: &str,
        (least, most): (i64, i64),
        missing: i64,
    ) -> Result<i64, ImportError> {
        match node.attribute(name) {
            None => Ok(missing),
            Some(_) => self.number(node, name, least, most),
        }
    }

    fn algo(&self, algo: Node) -> Result<ImportedPlan, ImportError> {
        let ranks = self.number(algo, "ngpus", 1, RANKS_MAX.into())?;
        let chunks = self.number(algo, "nchunksperloop", 1, CHUNKS_MAX.into())? as u32;
        let root = self.or(algo, "root", (0, ranks - 1), 0)? as u32;
        let name = algo.attribute("coll").unwrap_or_default();
        let collective = collective(name, root, self.line(algo))?;
        let in_place = self.or(algo, "inplace", (0, 1), 1)? == 1;
        let out_of_place = self.or(algo, "outofplace", (0, 1), i64::from(!in_place))? == 1;
        let least = self.or(algo, "minBytes", (0, i64::MAX), 0)? as u64;
        let most = match self.or(algo, "maxBytes", (0, i64::MAX), 0)? {
            // As in MSCCL's scheduler.
            0 => u64::MAX,
            most => most as u64,
        };
        let mut programs: Vec<Option<Vec<ThreadBlock>>> = vec![None; ranks as usize];
        let (mut scratch_chunks, mut steps) = (0, 0);
        for gpu in elements(algo, "gpu") {
            let id = self.number(gpu, "id", 0, ranks - 1)?;
            let scratch = self.or(gpu, "s_chunks", (0, CHUNKS_MAX.into()), 0)? as u32;
            scratch_chunks = scratch_chunks.max(scratch);
            let bounds = Bounds { chunks, scratch };
            let place = &mut programs[id as usize];
            if place.is_some() {
                return Err(self.wrong(gpu, format!("a second <gpu> with id {id}")));
            }
            *place = Some(self.gpu(gpu, id as u32, ranks, &bounds, &mut steps)?);
        }
        let mut all = Vec::new();
        for (id, program) in programs.into_iter().enumerate() {
            let missing = || self.wrong(algo, format!("no <gpu> with id {id}, of {ranks}"));
            all.push(program.ok_or_else(missing)?);
        }
        Ok(ImportedPlan {
            name: algo.attribute("name").unwrap_or("unnamed").to_owned(),
            collective,
            rank_count: ranks as u32,
            in_place,
            out_of_place,
            bytes: least..=most,
            chunks,
            scratch_chunks,
            reduce_op: None,
            programs: all,
        })
    }

    fn gpu(
        &self,
        gpu: Node,
        own: u32,
        ranks: i64,
        bounds: &Bounds,
        steps: &mut usize,
    ) -> Result<Vec<ThreadBlock>, ImportError> {
        let nodes: Vec<_> = elements(gpu, "tb").collect();
        if nodes.len() > THREAD_BLOCKS_MAX {
            let most = THREAD_BLOCKS_MAX;
            return Err(self.wrong(gpu, format!("{} thread blocks; at most {most}", nodes.len())));
        }
        // Thread blocks are named by their ids, which may come in any order.
        let most = THREAD_BLOCKS_MAX as i64 - 1;
        let ids = nodes.iter().map(|tb| self.number(*tb, "id", 0, most));
        let ids: Vec<i64> = ids.collect::<Result<_, _>>()?;
        let mut sent_on = std::collections::HashMap::new();
        let mut found = Vec::new();
        // For each thread block: of each step, the last one that it stands for.
        let mut ends_of = vec![Vec::new(); nodes.len()];
        for (place, tb) in nodes.iter().enumerate() {
            if ids[..place].contains(&ids[place]) {
                return Err(self.wrong(*tb, format!("a second <tb> with id {}", ids[place])));
            }
            let ends = self.ends(*tb, own, ranks)?;
            for (side, end) in [("send", ends.send), ("receive", ends.receive)] {
                if let Some(end) = end
                    && sent_on.insert((side, end), ids[place]).is_some()
                {
                    let (peer, number) = (end.peer, end.number);
                    let reason = format!(
                        "two thread blocks {side} on channel {number} of rank {peer}: each needs \
                         one of its own"
                    );
                    return Err(self.wrong(*tb, reason));
                }
            }
            let mut block = ThreadBlock::default();
            for node in elements(*tb, "step") {
                self.step(node, &ends, bounds, &mut block)?;
                ends_of[place].push(block.steps.len() - 1);
                if *steps + block.steps.len() > STEPS_MAX {
                    let reason = format!("more than {STEPS_MAX} steps");
                    return Err(self.wrong(node, reason));
                }
            }
            *steps += block.steps.len();
            found.push(block);
        }
        self.dependencies(&nodes, &ids, &ends_of, &mut found)?;
        Ok(found)
    }

    fn ends(&self, tb: Node, own: u32, ranks: i64) -> Result<Ends, ImportError> {
        let number = self.or(tb, "chan", (-1, 1023), 0)?.max(0) as u32;
        let end = |name| {
            let peer = self.or(tb, name, (-1, ranks - 1), -1)?;
            match u32::try_from(peer) {
                Err(_) => Ok(None),
                Ok(peer) if peer == own => {
                    Err(self.wrong(tb, format!("{name} names the GPU itself")))
                }
                Ok(peer) => Ok(Some(Channel { peer, number, message: 0 })),
            }
        };
        Ok(Ends { send: end("send")?, receive: end("recv")? })
    }

    fn place(
        &self,
        step: Node,
        of: [&str; 2],
        (more, count): (i64, i64),
        bounds: &Bounds,
    ) -> Result<Place, ImportError> {
        let text = step.attribute(of[0]).unwrap_or("nothing");
        let (space, chunks) = match text {
            "i" => (Space::Input, bounds.chunks),
            "o" => (Space::Output, bounds.chunks),
            "s" => (Space::Scratch, bounds.scratch),
            _ => {
                let reason = format!("{}: i, o or s is expected, not {text:?}", of[0]);
                return Err(self.wrong(step, reason));
            }
        };
        let first = self.number(step, of[1], 0, CHUNKS_MAX.into())?;
        let last = u32::try_from(first + more + count - 1).ok().filter(|last| *last < chunks);
        last.map(|last| Place { space, chunk: last + 1 - count as u32 }).ok_or_else(|| {
            let last = first + more + count - 1;
            self.wrong(step, format!("chunk {last} of {text}, which has {chunks}"))
        })
    }

    /// Adds the steps that a step stands for.
    fn step(
        &self,
        node: Node,
        ends: &Ends,
        bounds: &Bounds,
        block: &mut ThreadBlock,
    ) -> Result<(), ImportError> {
        let line = self.line(node);
        let name = node.attribute("type").unwrap_or("");
        let Some(parts) = Parts::of(name) else {
            let reason = format!(
                "steps of type {name:?} have no counterpart: s, r, rcs, rrs, rrc, rrcs, cpy, re \
                 and nop have"
            );
            return Err(ImportError::new(line, reason));
        };
        let missing = |what| {
            ImportError::new(line, format!("a step {name:?} in a thread block without {what}"))
        };
        let receive = match parts.receives {
            true => Some(ends.receive.ok_or_else(|| missing("recv"))?),
            false => None,
        };
        let send = match parts.sends {
            true => Some(ends.send.ok_or_else(|| missing("send"))?),
            false => None,
        };
        let count = match name {
            "nop" => {
                block.steps.push(Step::nothing(line));
                return Ok(());
            }
            _ => self.number(node, "cnt", 1, CHUNKS_MAX.into())?,
        };
        let most = i64::from(GROUP_MAX);
        for more in (0..count).step_by(GROUP_MAX as usize) {
            let of_group = (count - more).min(most);
            let source = || self.place(node, ["srcbuf", "srcoff"], (more, of_group), bounds);
            let destination = || self.place(node, ["dstbuf", "dstoff"], (more, of_group), bounds);
            let mut terms = Vec::new();
            if parts.adds {
                terms.push(destination()?);
            }
            if parts.reads {
                terms.push(source()?);
            }
            let store = match parts.stores {
                true => Some(destination()?),
                false => None,
            };
            let (after, count) = (Vec::new(), of_group as u32);
            block.steps.push(Step { line, count, after, receive, terms, store, send });
            if block.steps.len() > STEPS_MAX {
                return Err(ImportError::new(line, format!("more than {STEPS_MAX} steps")));
            }
        }
        Ok(())
    }

    /// Which steps come after steps of other thread blocks.
    fn dependencies(
        &self,
        nodes: &[Node],
        ids: &[i64],
        ends_of: &[Vec<usize>],
        found: &mut [ThreadBlock],
    ) -> Result<(), ImportError> {
        for (place, tb) in nodes.iter().enumerate() {
            let mut first = 0;
            for (number, step) in elements(*tb, "step").enumerate() {
                let id = self.or(step, "depid", (-1, i64::from(u16::MAX)), -1)?;
                if id >= 0 {
                    let deps = self.number(step, "deps", 0, STEPS_MAX as i64)? as usize;
                    let other = ids.iter().position(|other| *other == id);
                    let last = other.and_then(|other| Some((other, *ends_of[other].get(deps)?)));
                    let Some(last) = last.filter(|(other, _)| *other != place) else {
                        let reason = format!(
                            "depends on step {deps} of thread block {id}: another thread block of \
                             the same <gpu> with such a step is expected"
                        );
                        return Err(self.wrong(step, reason));
                    };
                    found[place].steps[first].after.push(last);
                }
                first = ends_of[place][number] + 1;
            }
        }
        Ok(())
    }
}
