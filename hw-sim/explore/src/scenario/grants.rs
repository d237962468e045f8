//! Transfers from and into registered memory, with grants (R15): rank 0 sends, rank 1 receives.

use ringdove_kernels::launch::place;
use ringdove_kernels::op::{Op, OpCode, Operand, flags};
use ringdove_kernels::port::{GRANT_BYTES, Port};

use super::lanes::copy;
use super::{Options, SLOTS, Setup, buffer_bytes};
use crate::engine::Route;
use crate::rank::{Program, address, buffer, granted, op, slot};

/// The sender's number for its input.
const SOURCE: u32 = 1;
/// The generation of all grants.
const GENERATION: u32 = 5;

/// From where a transfer is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// Slots, into which the block copies it.
    Slots,
    /// Where it lies: the launch's input.
    Input,
    /// Where it lies, by an entry of the table of addresses.
    Entry,
}

/// One transfer.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    from: From,
    /// It begins with a grant.
    is_granted: bool,
    /// The grant is of the output, and not of slots.
    is_placed: bool,
    /// The number of its first message.
    first: u32,
}

impl Setup<'_> {
    pub(super) fn grant(&mut self) {
        let mut random = fastrand::Rng::with_seed(self.options.seed ^ 0x6772_616e);
        self.register();
        for block in 0..self.options.blocks {
            self.add_lane(block);
            let transfers = (0..self.options.transfers).map(|number| {
                let from = [From::Slots, From::Input, From::Entry][random.usize(..3)];
                let is_granted = random.u32(..4) != 0;
                let is_placed = is_granted && random.bool();
                Transfer { from, is_granted, is_placed, first: number * self.options.messages }
            });
            let transfers: Vec<_> = transfers.collect();
            let (mut sends, mut receives) = (Vec::new(), Vec::new());
            for transfer in &transfers {
                self.send(&mut sends, block, transfer);
                self.receive(&mut receives, block, transfer);
            }
            self.end_lane(&transfers, &mut sends, &mut receives);
            for (rank, ops) in [(0, sends), (1, receives)] {
                self.programs[rank].push(Program { ports: vec![block], ops });
            }
        }
    }

    /// Routes of sources and grants, and the tables of addresses. Routes are numbered block by
    /// block: from slots into slots, from the input into slots, and from either into the output.
    fn register(&mut self) {
        let blocks = self.options.blocks;
        self.ranks[0].add_source(SOURCE, 0, place::entry(blocks, 0));
        for block in 0..blocks {
            for source in [0, SOURCE] {
                let route = (2 + source) * blocks + block;
                self.ranks[0].add_source(source, 1 + block, place::entry(route, GENERATION));
            }
        }
        let starts =
            (0..self.options.rounds()).map(|round| u64::from(round) * buffer_bytes(self.options));
        let sources: Vec<u64> =
            starts.clone().map(|start| place::of_source(SOURCE, start)).collect();
        let grants: Vec<u64> = starts
            .flat_map(|start| {
                (0..blocks).map(move |block| place::of_grant(1 + block, GENERATION, start))
            })
            .collect();
        for (rank, table, count) in [(0, sources, 1), (1, grants, blocks)] {
            self.arguments[rank].addresses = self.ranks[rank].table(&table);
            self.arguments[rank].address_count = count;
        }
        self.arguments[0].source = SOURCE;
        let count = (4 * blocks) as usize;
        self.routes[0].resize(count, Route::default());
    }

    /// Ports and routes of a block's lane. Ports have the number of their block.
    fn add_lane(&mut self, block: u32) {
        let Options { blocks, bytes, .. } = *self.options;
        let slot_bytes = bytes.next_multiple_of(16);
        let slots_bytes = u64::from(SLOTS * slot_bytes);
        let [sender, receiver] = &mut self.ranks;
        let there = receiver.allocate(&format!("slots {block}"), slots_bytes + GRANT_BYTES);
        let here = sender.allocate(&format!("slots {block}"), slots_bytes + GRANT_BYTES);
        let arrival = receiver.allocate(&format!("arrivals {block}"), 8);
        let credits = sender.allocate(&format!("credits {block}"), 8);
        let completion = sender.allocate(&format!("completions {block}"), 8);
        let shape = Port { slot_bytes, slot_mask: SLOTS - 1, route: block, ..Port::default() };
        sender.add_port(Port { signal: credits, completion, slots: here, peer: 1, ..shape });
        receiver.add_port(Port { signal: arrival, slots: there, peer: 0, ..shape });
        let lane = block as usize;
        let (input, output) = (self.inputs[0], self.outputs[1]);
        let ends = [(0, there), (input, there), (0, output), (input, output)];
        for (kind, (source, destination)) in ends.into_iter().enumerate() {
            let route = Route { lane, peer: 1, source, destination, arrival, completion, bytes: 0 };
            self.routes[0][kind * blocks as usize + lane] = route;
        }
        let grant_word = here + slots_bytes;
        self.routes[1].push(Route {
            lane,
            peer: 0,
            source: 0,
            destination: grant_word,
            arrival: credits,
            completion: 0,
            bytes: 0,
        });
    }

    fn send(&self, ops: &mut Vec<Op>, block: u32, transfer: &Transfer) {
        let Options { messages, bytes, .. } = *self.options;
        for index in 0..messages {
            let message = transfer.first + index;
            let at = self.offset(block, message);
            // The grant stands for the first credit, and the credit after the second message for
            // two: so the sender counts on one slot less.
            let credits = match transfer.is_granted {
                true => {
                    i64::from(transfer.first) + (i64::from(index) + 2 - i64::from(SLOTS)).max(1)
                }
                false => i64::from(message) + 1 - i64::from(SLOTS),
            };
            ops.push(Op { value: credits, ..op(OpCode::WaitSignal, 0) });
            let a: Operand = match transfer.from {
                From::Slots => slot(0, message),
                From::Input => buffer(0, at),
                From::Entry => address(1, at),
            };
            if transfer.from == From::Slots {
                ops.push(copy(a, buffer(0, at), bytes));
            }
            let completion = if transfer.from == From::Slots { 0 } else { flags::COMPLETION };
            ops.push(Op {
                length: bytes,
                flags: flags::ARRIVAL | completion,
                destination: match transfer.is_granted {
                    true => granted(0, message, u64::from(index * bytes)),
                    false => slot(0, message),
                },
                a,
                ..op(OpCode::Put, 0)
            });
        }
    }

    fn receive(&self, ops: &mut Vec<Op>, block: u32, transfer: &Transfer) {
        let Options { messages, bytes, .. } = *self.options;
        if transfer.is_granted {
            let start = self.offset(block, transfer.first);
            let a = if transfer.is_placed { address(1 + block, start) } else { Operand::default() };
            ops.push(Op { a, ..op(OpCode::Grant, 0) });
        }
        for index in 0..messages {
            let message = transfer.first + index;
            ops.push(Op { value: i64::from(message) + 1, ..op(OpCode::WaitSignal, 0) });
            if !transfer.is_placed {
                let at = self.offset(block, message);
                ops.push(copy(buffer(1, at), slot(0, message), bytes));
            }
            if index > 0 || !transfer.is_granted {
                ops.push(Op { value: 1, ..op(OpCode::Credit, 0) });
            }
        }
    }

    /// The sender waits until all sources have been read, and both ends pass what they counted.
    fn end_lane(&self, transfers: &[Transfer], sends: &mut Vec<Op>, receives: &mut Vec<Op>) {
        let messages = i64::from(self.options.messages * self.options.transfers);
        let in_place = transfers.iter().filter(|it| it.from != From::Slots).count() as u64;
        let completions = in_place * u64::from(self.options.messages);
        if completions > 0 {
            let value = completions as i64;
            sends.push(Op { value, ..op(OpCode::WaitCompletion, 0) });
        }
        let passed = Operand { offset: completions, ..Operand::default() };
        let advance = Op { value: messages, ..op(OpCode::Advance, 0) };
        sends.push(Op { destination: passed, ..advance });
        receives.push(advance);
    }
}
