//! Messages in slots: by the engine, by stores, and low-latency ones.

use ringdove_kernels::op::{Op, OpCode, flags};
use ringdove_kernels::port::Port;

use super::{Options, SLOTS, Setup};
use crate::engine::Route;
use crate::rank::{Program, buffer, op, slot};

impl Setup<'_> {
    /// Rank 0 sends, rank 1 receives and returns credits.
    pub(super) fn send_and_receive(&mut self, by_stores: bool) {
        let Options { blocks, messages, bytes, spare_ports, .. } = *self.options;
        // Loaded by other warps than the first if it stands far behind in the list.
        let port = spare_ports as u16;
        let slot_bytes = bytes.next_multiple_of(16);
        let slots_bytes = u64::from(SLOTS * slot_bytes);
        for block in 0..blocks {
            let [sender, receiver] = &mut self.ranks;
            let there = receiver.allocate(&format!("slots {block}"), slots_bytes);
            let here = sender.allocate(&format!("slots {block}"), slots_bytes);
            let arrivals = receiver.allocate(&format!("arrivals {block}"), 8);
            let credits = sender.allocate(&format!("credits {block}"), 8);
            let completion = sender.allocate(&format!("completions {block}"), 8);
            let shape =
                Port { slot_bytes: bytes, slot_mask: SLOTS - 1, route: block, ..Port::default() };
            let send = sender.add_port(Port {
                signal: credits,
                completion,
                slots: if by_stores { there } else { here },
                peer: 1,
                peer_signal: if by_stores { arrivals } else { 0 },
                ..shape
            });
            let receive = receiver.add_port(Port {
                signal: arrivals,
                slots: there,
                peer: 0,
                peer_signal: if by_stores { credits } else { 0 },
                ..shape
            });
            let lane = block as usize;
            let route = |peer, destination, arrival| Route {
                lane,
                peer,
                source: 0,
                destination,
                arrival,
                completion: 0,
                bytes: 0,
            };
            self.routes[0].push(route(1, there, arrivals));
            self.routes[1].push(route(0, 0, credits));
            let (mut sends, mut receives) = (Vec::new(), Vec::new());
            for message in 0..messages {
                let at = self.offset(block, message);
                let credit = i64::from(message) + 1 - i64::from(SLOTS);
                sends.push(Op { value: credit, ..op(OpCode::WaitSignal, port) });
                sends.push(copy(slot(port, message), buffer(0, at), bytes));
                sends.push(Op {
                    length: bytes,
                    flags: flags::ARRIVAL,
                    destination: slot(port, message),
                    a: slot(port, message),
                    ..op(OpCode::Put, port)
                });
                let arrival = i64::from(message) + 1;
                receives.push(Op { value: arrival, ..op(OpCode::WaitSignal, port) });
                receives.push(copy(buffer(1, at), slot(port, message), bytes));
                receives.push(Op { value: 1, ..op(OpCode::Credit, port) });
            }
            sends.push(advance(port, messages));
            receives.push(advance(port, messages));
            for (rank, used, ops) in [(0, send, sends), (1, receive, receives)] {
                let spare = (0..spare_ports).map(|_| self.ranks[rank].add_port(Port::default()));
                let ports = spare.chain([used]).collect::<Vec<_>>();
                self.programs[rank].push(Program { ports, ops });
            }
        }
    }

    /// Both ranks send each message to the other one, on several lanes, and sum.
    pub(super) fn exchange(&mut self) {
        for block in 0..self.options.blocks {
            let [first, second] = [0, 1].map(|_| self.add_low_latency_slots(block));
            let ports = [
                self.add_low_latency_ports(0, &first, &second),
                self.add_low_latency_ports(1, &second, &first),
            ];
            for (rank, ports) in ports.into_iter().enumerate() {
                let ops = self.exchange_ops(block);
                self.programs[rank].push(Program { ports, ops });
            }
        }
    }

    fn low_latency_slot_bytes(&self) -> u32 {
        2 * self.options.bytes.next_multiple_of(8)
    }

    /// Of a rank's lanes in a block.
    fn add_low_latency_slots(&self, block: u32) -> Vec<u64> {
        let bytes = u64::from(SLOTS * self.low_latency_slot_bytes());
        let name = format!("low-latency slots of block {block}");
        (0..self.options.terms).map(|_| self.memory.allocate(&name, bytes)).collect()
    }

    /// Receive ports, and then send ports, with slots at this rank and at the other one.
    fn add_low_latency_ports(&mut self, rank: usize, here: &[u64], there: &[u64]) -> Vec<u32> {
        let slot_bytes = self.low_latency_slot_bytes();
        let rank = &mut self.ranks[rank];
        let signal = rank.allocate("unused signals", 16);
        let shape = Port {
            slot_bytes,
            slot_mask: SLOTS - 1,
            peer: 1 - rank.number,
            signal,
            ..Port::default()
        };
        let mut ports = Vec::new();
        for slots in here {
            ports.push(rank.add_port(Port { slots: *slots, ..shape }));
        }
        for peer_slots in there {
            let slots = rank.allocate("own slots", u64::from(SLOTS * slot_bytes));
            let completion = signal + 8;
            let peer_slots = *peer_slots;
            ports.push(rank.add_port(Port { slots, completion, peer_slots, ..shape }));
        }
        ports
    }

    fn exchange_ops(&self, block: u32) -> Vec<Op> {
        let Options { messages, bytes, terms, .. } = *self.options;
        let mut ops = Vec::new();
        let sends = || (terms as u16..).take(terms as usize);
        for message in 0..messages {
            let at = self.offset(block, message);
            ops.push(Op {
                length: bytes,
                value: sends().map(|port| 1 << port).sum(),
                destination: slot(1, message),
                a: buffer(0, at),
                ..op(OpCode::Pack, terms as u16)
            });
            ops.extend(sends().map(|port| Op {
                length: bytes,
                flags: flags::LOW_LATENCY,
                destination: slot(port, message),
                a: slot(port, message),
                ..op(OpCode::Put, port)
            }));
            ops.push(Op {
                length: bytes,
                flags: flags::FINISH,
                value: terms.into(),
                before: terms.into(),
                destination: buffer(1, at),
                a: buffer(0, at),
                b: slot(0, message),
                ..op(OpCode::Collect, 0)
            });
        }
        ops.extend((0..2 * terms as u16).map(|port| advance(port, messages)));
        ops
    }
}

pub(super) fn copy(
    destination: ringdove_kernels::op::Operand,
    a: ringdove_kernels::op::Operand,
    length: u32,
) -> Op {
    Op { length, destination, a, ..op(OpCode::Copy, 0) }
}

fn advance(port: u16, messages: u32) -> Op {
    Op { value: messages.into(), ..op(OpCode::Advance, port) }
}
