//! Plays the programs of an execution plan of MSCCL++.
//!
//! There a rank writes into other ranks' buffers and reads them; here ranks send messages. So the
//! file's programs are played once, with their signals, barriers and packets:
//!
//! * a *put* becomes a send; the thread block that waits for the signal behind it receives it and
//!   stores it where the put would have written;
//! * a *get*, or a reduction that reads another rank's memory, becomes a receive; the other rank
//!   sends at its last signal that the reader has waited for before;
//! * *packets* carry their own flags: whoever reads them first receives them;
//! * *signals* by themselves only say that memory may be read or written. Messages need none of
//!   that, and the proof of the plan shows that nothing is missed;
//! * a barrier of thread blocks orders their steps.

use super::mscclpp::Ops;
use super::objects::{
    ChannelType, Chunks, File, Gpu, Message, Op, Span, channel_type, reduction, space,
};
use super::{Channel, ImportError, Place, STEPS_MAX, Step, ThreadBlock};
use ringdove_kernels::element::ReduceOp;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// What a thread block does, while its programs are played: what is sent at a signal is known once
/// a reader comes to it.
enum Entry {
    Step(Step),
    Signal(Vec<Step>),
}

/// A signal that was given: what it announces, and where it stands.
struct Given {
    messages: Vec<Message>,
    /// Thread block and entry.
    at: (usize, usize),
}

/// Data with a flag that has come, or will.
enum Packet {
    /// From another rank.
    Message(Channel),
    /// From a thread block of this one: which, and its entry.
    Here((usize, usize)),
}

#[derive(Default)]
struct Thread {
    entries: Vec<Entry>,
    /// Ops that are done.
    done: usize,
    /// What the next step comes after.
    after: Vec<(usize, usize)>,
    /// Puts that no signal has announced.
    puts: BTreeMap<u32, Vec<Message>>,
    /// The last signal of each rank that was waited for.
    heard: BTreeMap<u32, (usize, usize)>,
    /// The barrier that it stands at.
    waits: bool,
}

/// Plays the programs of all ranks.
pub(super) struct Player<'a> {
    file: &'a File<'a>,
    ops: &'a Ops,
    parts: u32,
    threads: Vec<Vec<Thread>>,
    /// Ends of channels: rank, type and number lead to peer and the peer's number.
    pairs: HashMap<(u32, ChannelType, usize), (u32, usize)>,
    /// Signals on their way, by receiver.
    signals: HashMap<(u32, ChannelType, usize), VecDeque<Given>>,
    packets: HashMap<(u32, Place), VecDeque<Packet>>,
    /// Packets that were read once: by whom.
    unpacked: HashMap<(u32, Place), (usize, usize)>,
    /// Thread blocks at each barrier of a rank.
    barriers: HashMap<(u32, u32), Vec<usize>>,
    messages: u32,
    steps: usize,
    pub(super) reduce_op: Option<ReduceOp>,
}

/// What came of an op.
enum Done {
    Yes,
    /// What it needs is not there yet.
    Waits,
}

/// The operands of an op.
struct Operands {
    sources: Vec<Span>,
    destinations: Vec<Span>,
}

impl<'a> Player<'a> {
    pub(super) fn new(file: &'a File<'a>, ops: &'a Ops, parts: u32) -> Result<Self, ImportError> {
        // The k-th channel of a type from one rank to another is the k-th the other way round.
        let mut ends: HashMap<(u32, u32, ChannelType), Vec<usize>> = HashMap::new();
        for (rank, gpu) in (0..).zip(&file.gpus) {
            let mut counts: HashMap<ChannelType, usize> = HashMap::new();
            for channels in &gpu.channels {
                let kind = channel_type(&channels.channel_type, 0)?;
                for peer in &channels.connected_to {
                    let count = counts.entry(kind).or_default();
                    ends.entry((rank, *peer, kind)).or_default().push(*count);
                    *count += 1;
                }
            }
        }
        let mut pairs = HashMap::new();
        for (&(rank, peer, kind), own) in &ends {
            let theirs = ends.get(&(peer, rank, kind)).map_or(&[][..], Vec::as_slice);
            for (own, theirs) in own.iter().zip(theirs) {
                pairs.insert((rank, kind, *own), (peer, *theirs));
            }
        }
        let of = |gpu: &Gpu<'_>| gpu.threadblocks.iter().map(|_| Thread::default()).collect();
        Ok(Self {
            file,
            ops,
            parts,
            threads: file.gpus.iter().map(of).collect(),
            pairs,
            signals: HashMap::new(),
            packets: HashMap::new(),
            unpacked: HashMap::new(),
            barriers: HashMap::new(),
            messages: 0,
            steps: 0,
            reduce_op: None,
        })
    }

    /// Plays until all have ended.
    pub(super) fn play(&mut self) -> Result<(), ImportError> {
        loop {
            let (mut moved, mut waits) = (false, None);
            for rank in 0..self.ops.len() {
                for thread in 0..self.ops[rank].len() {
                    let ops = self.ops;
                    let done = self.threads[rank][thread].done;
                    let Some((line, op)) = ops[rank][thread].get(done) else { continue };
                    match self.op(rank, thread, *line, op)? {
                        Done::Yes => {
                            self.threads[rank][thread].done += 1;
                            moved = true;
                        }
                        Done::Waits => waits = waits.or(Some((rank, thread, *line, &op.name))),
                    }
                }
            }
            match waits {
                None if !moved => return Ok(()),
                Some((rank, thread, line, name)) if !moved => {
                    let reason =
                        format!("rank {rank} thread block {thread} waits in {name:?}, for ever");
                    return Err(ImportError::new(line, reason));
                }
                _ => {}
            }
        }
    }

    /// The programs, with what is sent at signals in its place.
    pub(super) fn flat(self) -> Result<Vec<Vec<ThreadBlock>>, ImportError> {
        let mut all = Vec::new();
        for (rank, threads) in self.threads.into_iter().enumerate() {
            let puts = threads.iter().flat_map(|thread| thread.puts.values()).flatten();
            if let Some(message) = puts.into_iter().next() {
                let peer = message.channel.peer;
                let reason = format!("rank {rank} puts to rank {peer} what no signal announces");
                return Err(ImportError::whole(reason));
            }
            // Of each entry, how many steps stand before its end.
            let mut ends: Vec<Vec<usize>> = Vec::new();
            let mut blocks = Vec::new();
            for thread in threads {
                let mut block = ThreadBlock::default();
                let mut of_thread = Vec::new();
                for entry in thread.entries {
                    match entry {
                        Entry::Step(step) => block.steps.push(step),
                        Entry::Signal(steps) => block.steps.extend(steps),
                    }
                    of_thread.push(block.steps.len());
                }
                ends.push(of_thread);
                blocks.push(block);
            }
            for step in blocks.iter_mut().flat_map(|block: &mut ThreadBlock| &mut block.steps) {
                let after = std::mem::take(&mut step.after).into_iter();
                step.after = after
                    .filter_map(|(thread, entry)| {
                        Some((thread, ends[thread][entry].checked_sub(1)?))
                    })
                    .collect();
            }
            all.push(blocks);
        }
        Ok(all)
    }

    fn op(&mut self, rank: usize, thread: usize, line: u32, op: &Op) -> Result<Done, ImportError> {
        if let Some(name) = &op.reduce_op {
            let own = reduction(name, line)?;
            if *self.reduce_op.get_or_insert(own) != own {
                return Err(ImportError::new(line, "a second reduction in one plan"));
            }
        }
        let mut at = At { rank, thread, line };
        match op.name.as_str() {
            "nop" | "flush" => Ok(Done::Yes),
            "barrier" => Ok(self.barrier(&at, op)),
            "signal" | "rlxsignal" => self.signal(&at, op),
            "wait" | "rlxwait" => self.wait(&at, op),
            "put" | "pws" | "pwsf" => {
                let operands = self.operands(&at, op)?;
                at.same_count(&operands.sources, &operands.destinations)?;
                for (source, destination) in operands.sources.iter().zip(&operands.destinations) {
                    self.send(&at, *source, *destination, false)?;
                }
                match op.name.as_str() {
                    "put" => Ok(Done::Yes),
                    _ => self.signal(&at, op),
                }
            }
            "copy" | "get" => {
                let operands = self.operands(&at, op)?;
                at.same_count(&operands.sources, &operands.destinations)?;
                for (source, destination) in operands.sources.iter().zip(&operands.destinations) {
                    self.combine(&mut at, &[*source], *destination)?;
                }
                Ok(Done::Yes)
            }
            "re" | "res" | "rre" | "rres" => {
                let Operands { sources, destinations } = self.operands(&at, op)?;
                let [own, others @ ..] = &destinations[..] else {
                    return Err(ImportError::new(line, "a reduction without a destination"));
                };
                self.combine(&mut at, &sources, *own)?;
                for other in others {
                    self.send(&at, *own, *other, false)?;
                }
                Ok(Done::Yes)
            }
            "ppkt" | "rppkt" | "upkt" | "cpkt" | "repkt" | "respkt" | "recpkt" | "recspkt" => {
                self.packets(&mut at, op)
            }
            "glres" | "gstore" | "gstorepkt" => Err(ImportError::new(
                line,
                format!(
                    "{:?} loads and stores by multicast in NVSwitches, which has no counterpart",
                    op.name
                ),
            )),
            "pipeline" | "sem_acquire" | "sem_release" => Err(ImportError::new(
                line,
                format!("{:?}: loops and semaphores of thread blocks have no counterpart", op.name),
            )),
            other => Err(ImportError::new(line, format!("{other:?} is no op that is known"))),
        }
    }

    /// Thread blocks of a rank wait for one another.
    fn barrier(&mut self, at: &At, op: &Op) -> Done {
        let key = (at.rank as u32, op.barrier_id.unwrap_or(0));
        let wanted = op.num_threadblocks.unwrap_or(self.threads[at.rank].len());
        let thread = &mut self.threads[at.rank][at.thread];
        let list = self.barriers.entry(key).or_default();
        if !thread.waits {
            thread.waits = true;
            list.push(at.thread);
        }
        if list.len() < wanted {
            return Done::Waits;
        }
        let list = std::mem::take(list);
        let threads = &mut self.threads[at.rank];
        let last = |thread: usize| Some((thread, threads[thread].entries.len().checked_sub(1)?));
        let ends: Vec<_> = list.iter().filter_map(|thread| last(*thread)).collect();
        let heard: Vec<_> = list.iter().flat_map(|thread| threads[*thread].heard.clone()).collect();
        let mut puts: BTreeMap<u32, Vec<Message>> = BTreeMap::new();
        for &thread in &list {
            let others = ends.iter().filter(|(other, _)| *other != thread);
            threads[thread].after.extend(others);
            threads[thread].heard.extend(heard.iter().copied());
            threads[thread].waits = false;
            // All go on: what the others stand at is done, too.
            threads[thread].done += usize::from(thread != at.thread);
            for (peer, messages) in std::mem::take(&mut threads[thread].puts) {
                puts.entry(peer).or_default().extend(messages);
            }
        }
        // Whoever signals first announces what all have put: the one that came last.
        threads[at.thread].puts = puts;
        Done::Yes
    }

    /// The number of a channel on this rank, and its kind.
    fn channel(&self, at: &At, op: &Op, place: usize) -> Result<(ChannelType, usize), ImportError> {
        let name = op.channel_type.as_deref().unwrap_or("memory");
        let kind = channel_type(name, at.line)?;
        let threads = &self.file.gpus[at.rank].threadblocks[at.thread];
        let of_kind = threads.channels.iter().filter(|used| used.channel_type == name);
        let number = of_kind.flat_map(|used| &used.channel_ids).nth(place);
        let number = number.ok_or_else(|| {
            ImportError::new(at.line, format!("no {name} channel {place} of this thread block"))
        })?;
        Ok((kind, *number))
    }

    fn signal(&mut self, at: &At, op: &Op) -> Result<Done, ImportError> {
        for &place in &op.channel_ids {
            let (kind, number) = self.channel(at, op, place)?;
            let pair = self.pairs.get(&(at.rank as u32, kind, number));
            let Some(&(peer, theirs)) = pair else {
                let reason = format!("a signal on channel {number}, which has no other end");
                return Err(ImportError::new(at.line, reason));
            };
            let thread = &mut self.threads[at.rank][at.thread];
            thread.entries.push(Entry::Signal(Vec::new()));
            let entry = (at.thread, thread.entries.len() - 1);
            let messages = thread.puts.remove(&peer).unwrap_or_default();
            let given = Given { messages, at: entry };
            self.signals.entry((peer, kind, theirs)).or_default().push_back(given);
        }
        Ok(Done::Yes)
    }

    fn wait(&mut self, at: &At, op: &Op) -> Result<Done, ImportError> {
        let own = at.rank as u32;
        let mut ends = Vec::new();
        for &place in &op.channel_ids {
            let (kind, number) = self.channel(at, op, place)?;
            let Some(&(peer, _)) = self.pairs.get(&(own, kind, number)) else {
                let reason = format!("a wait on channel {number}, which has no other end");
                return Err(ImportError::new(at.line, reason));
            };
            ends.push((peer, (own, kind, number)));
        }
        let has_come = |end| self.signals.get(end).is_some_and(|queue| !queue.is_empty());
        if !ends.iter().all(|(_, end)| has_come(end)) {
            return Ok(Done::Waits);
        }
        for (peer, end) in ends {
            let Some(given) = self.signals.get_mut(&end).and_then(VecDeque::pop_front) else {
                let reason = "a wait for one channel twice".to_owned();
                return Err(ImportError::new(at.line, reason));
            };
            self.threads[at.rank][at.thread].heard.insert(peer, given.at);
            for Message { channel, store } in given.messages {
                let receive = Some(Channel { peer, ..channel });
                self.push(at, Step { receive, store: Some(store), ..Step::nothing(at.line) })?;
            }
        }
        Ok(Done::Yes)
    }

    /// The chunks that an op names.
    fn operands(&self, at: &At, op: &Op) -> Result<Operands, ImportError> {
        let group = op.tbg_info;
        let gpu = &self.file.gpus[at.rank];
        let span = |chunks: &Chunks| {
            if chunks.switch_channel_id.is_some() {
                return Err(channel_type("switch", at.line).expect_err("has no counterpart"));
            }
            let of = match (&chunks.space, chunks.buffer_id) {
                (Some(name), None) => (None, space(name, at.line)?),
                (None, Some(place)) => {
                    let name = op.channel_type.as_deref().unwrap_or("memory");
                    let refs = &gpu.threadblocks[at.thread].remote_buffer_refs;
                    let of_kind = refs.iter().filter(|used| used.access_channel_type == name);
                    let number = of_kind.flat_map(|used| &used.remote_buffer_ids).nth(place);
                    let buffer = number.and_then(|number| gpu.remote_buffers.get(*number));
                    let Some(buffer) = buffer.filter(|buffer| buffer.rank as usize != at.rank)
                    else {
                        let reason =
                            format!("no buffer {place} of another rank in this thread block");
                        return Err(ImportError::new(at.line, reason));
                    };
                    (Some(buffer.rank), space(&buffer.space, at.line)?)
                }
                _ => {
                    let reason = "chunks of a type or of a buffer_id are expected";
                    return Err(ImportError::new(at.line, reason));
                }
            };
            Span::of(of, chunks, (self.parts, group), at.line)
        };
        let spans = |list: &[Chunks]| list.iter().map(span).collect::<Result<Vec<_>, _>>();
        let (sources, destinations) = (spans(&op.src_buff)?, spans(&op.dst_buff)?);
        let count = sources.first().map_or(0, |first| first.count);
        let all = sources.iter().chain(&destinations);
        if sources.is_empty() || all.into_iter().any(|span| span.count != count) {
            let reason = "sources and destinations of one size are expected";
            return Err(ImportError::new(at.line, reason));
        }
        Ok(Operands { sources, destinations })
    }

    /// Adds a step.
    fn push(&mut self, at: &At, step: Step) -> Result<(), ImportError> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            let reason = format!("more than {STEPS_MAX} steps of one chunk");
            return Err(ImportError::new(at.line, reason));
        }
        let thread = &mut self.threads[at.rank][at.thread];
        let after = std::mem::take(&mut thread.after);
        thread.entries.push(Entry::Step(Step { after, ..step }));
        Ok(())
    }

    /// A name for one message, of the lane that the thread block sends on.
    fn message(&mut self, thread: usize, peer: u32) -> Channel {
        self.messages += 1;
        Channel { peer, number: thread as u32, message: self.messages }
    }

    /// Sends chunks of this rank to places of another one.
    fn send(
        &mut self,
        at: &At,
        source: Span,
        destination: Span,
        is_packet: bool,
    ) -> Result<(), ImportError> {
        let (None, Some(peer)) = (source.rank, destination.rank) else {
            let reason = "from this rank to another one is expected";
            return Err(ImportError::new(at.line, reason));
        };
        for number in 0..source.count {
            let channel = self.message(at.thread, peer);
            let (terms, store) = (vec![source.at(number)], destination.at(number));
            self.push(at, Step { terms, send: Some(channel), ..Step::nothing(at.line) })?;
            if is_packet {
                let came = Packet::Message(Channel { peer: at.rank as u32, ..channel });
                self.packets.entry((peer, store)).or_default().push_back(came);
            } else {
                let puts = &mut self.threads[at.rank][at.thread].puts;
                puts.entry(peer).or_default().push(Message { channel, store });
            }
        }
        Ok(())
    }

    /// `destination`, of this rank, is the combination of all sources.
    fn combine(
        &mut self,
        at: &mut At,
        sources: &[Span],
        destination: Span,
    ) -> Result<(), ImportError> {
        if destination.rank.is_some() {
            let reason = "a destination of this rank is expected";
            return Err(ImportError::new(at.line, reason));
        }
        for number in 0..destination.count {
            let store = destination.at(number);
            let own = sources.iter().filter(|span| span.rank.is_none());
            let mut own: Vec<_> = own.map(|span| span.at(number)).collect();
            // What is overwritten first has to be read first.
            own.sort_by_key(|place| *place != store);
            let mut own = own.into_iter();
            let mut sum: Vec<Place> = own.next().into_iter().collect();
            let mut is_stored = false;
            for term in own {
                let terms = vec![sum[0], term];
                self.push(at, Step { terms, store: Some(store), ..Step::nothing(at.line) })?;
                (sum, is_stored) = (vec![store], true);
            }
            for (span, peer) in sources.iter().filter_map(|span| Some((span, span.rank?))) {
                let receive = Some(self.fetch(at, peer, span.at(number))?);
                let step = Step { receive, terms: sum, store: Some(store), ..Step::nothing(0) };
                self.push(at, Step { line: at.line, ..step })?;
                (sum, is_stored) = (vec![store], true);
            }
            if !is_stored {
                self.push(at, Step { terms: sum, store: Some(store), ..Step::nothing(at.line) })?;
            }
        }
        Ok(())
    }

    /// Lets another rank send a chunk, at its last signal that this thread block has waited for.
    fn fetch(&mut self, at: &At, peer: u32, place: Place) -> Result<Channel, ImportError> {
        let heard = self.threads[at.rank][at.thread].heard.get(&peer);
        let Some(&(thread, entry)) = heard else {
            let reason =
                format!("reads memory of rank {peer} without having waited for a signal of it");
            return Err(ImportError::new(at.line, reason));
        };
        let channel = self.message(thread, at.rank as u32);
        let step = Step { terms: vec![place], send: Some(channel), ..Step::nothing(at.line) };
        self.steps += 1;
        match &mut self.threads[peer as usize][thread].entries[entry] {
            Entry::Signal(steps) => steps.push(step),
            Entry::Step(_) => {
                return Err(ImportError::new(at.line, "internal: a signal is no step"));
            }
        }
        Ok(Channel { peer, ..channel })
    }

    /// Ops on data with flags.
    fn packets(&mut self, at: &mut At, op: &Op) -> Result<Done, ImportError> {
        let Operands { sources, destinations } = self.operands(at, op)?;
        // Which sources hold packets, and which destinations.
        let (first_packet, first_sent) = match op.name.as_str() {
            "ppkt" | "cpkt" => (sources.len(), 0),
            "rppkt" => (0, 0),
            "upkt" => (0, destinations.len()),
            // The first source is data, and so is the first destination.
            _ => (1, 1),
        };
        for span in sources.iter().skip(first_packet) {
            for number in 0..span.count {
                let key = (at.rank as u32, span.at(number));
                let is_here = self.packets.get(&key).is_some_and(|queue| !queue.is_empty());
                if !is_here && !self.unpacked.contains_key(&key) {
                    return Ok(Done::Waits);
                }
            }
        }
        for span in sources.iter().skip(first_packet) {
            for number in 0..span.count {
                self.unpack(at, span.at(number))?;
            }
        }
        let (own, sent) = destinations.split_at(first_sent.min(destinations.len()));
        let mut value = sources[0];
        if let Some(first) = own.first() {
            self.combine(at, &sources, *first)?;
            value = *first;
        }
        for destination in sent {
            match destination.rank {
                Some(_) => self.send(at, value, *destination, true)?,
                None => {
                    self.combine(at, &[value], *destination)?;
                    let entry = self.threads[at.rank][at.thread].entries.len() - 1;
                    for number in 0..destination.count {
                        let key = (at.rank as u32, destination.at(number));
                        let here = Packet::Here((at.thread, entry));
                        self.packets.entry(key).or_default().push_back(here);
                    }
                }
            }
        }
        Ok(Done::Yes)
    }

    /// Receives a packet where it was not yet, and orders what follows after it.
    fn unpack(&mut self, at: &At, place: Place) -> Result<(), ImportError> {
        let key = (at.rank as u32, place);
        let by = match self.packets.get_mut(&key).and_then(VecDeque::pop_front) {
            Some(Packet::Message(channel)) => {
                let (receive, store) = (Some(channel), Some(place));
                self.push(at, Step { receive, store, ..Step::nothing(at.line) })?;
                (at.thread, self.threads[at.rank][at.thread].entries.len() - 1)
            }
            Some(Packet::Here(entry)) => entry,
            None => *self.unpacked.get(&key).ok_or_else(|| {
                ImportError::new(at.line, "the same packet is read twice by one op")
            })?,
        };
        if by.0 != at.thread {
            self.threads[at.rank][at.thread].after.push(by);
        }
        self.unpacked.insert(key, by);
        Ok(())
    }
}

/// The op that is played.
struct At {
    rank: usize,
    thread: usize,
    line: u32,
}

impl At {
    fn same_count(&self, sources: &[Span], destinations: &[Span]) -> Result<(), ImportError> {
        match sources.len() == destinations.len() {
            true => Ok(()),
            false => {
                let reason = "as many sources as destinations are expected";
                Err(ImportError::new(self.line, reason))
            }
        }
    }
}
