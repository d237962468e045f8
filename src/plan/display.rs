//! A plan as text: for each rank and block, one op a line.

use super::{BlockProgram, Buffer, Lane, LaneEnd, LaneKind, Modifiers, Op, Operand, Plan, Side};
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ranks, threads, slots) = (self.ranks.len(), self.thread_count, self.slots);
        writeln!(
            f,
            "plan: {ranks} ranks, {threads} threads per block, {} slots of {} bytes",
            slots.count, slots.bytes
        )?;
        for (rank, program) in self.ranks.iter().enumerate() {
            for (number, block) in program.blocks.iter().enumerate() {
                writeln!(f, "rank {rank} block {number}")?;
                block.fmt(f)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for BlockProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            writeln!(
                f,
                "  {} rounds, {} bytes apart, up to {} bytes",
                segment.rounds, segment.round_stride, segment.limit
            )?;
            for op in &segment.ops {
                writeln!(f, "    {}", Named { op, ports: &self.ports })?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            LaneKind::Slots => "slots",
            LaneKind::Direct => "direct",
            LaneKind::LowLatency => "low-latency",
            LaneKind::Stores => "stores",
            LaneKind::Rail => "rail",
            LaneKind::User => "user",
        };
        write!(f, "lane {}->{} {kind} {}", self.from, self.to, self.index)
    }
}

impl fmt::Display for LaneEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Send => "send",
            Side::Receive => "receive",
        };
        write!(f, "{side} port of {}", self.lane)
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Scratch => "scratch",
        })
    }
}

/// An op with the names of its ports.
pub(super) struct Named<'a> {
    pub(super) op: &'a Op,
    pub(super) ports: &'a [LaneEnd],
}

impl Named<'_> {
    fn port(&self, index: u16) -> String {
        match self.ports.get(usize::from(index)) {
            Some(end) => end.to_string(),
            None => format!("port {index} (unknown)"),
        }
    }

    fn ports(&self, first: u16, count: u16) -> String {
        let ports: Vec<String> =
            (0..count).map(|place| self.port(first.saturating_add(place))).collect();
        ports.join(", ")
    }

    fn place(&self, place: Operand) -> String {
        match place {
            Operand::Buffer { buffer, offset } => format!("{buffer}[{offset}]"),
            Operand::Slot { port, message, offset: 0 } => {
                format!("slot of message {message} at {}", self.port(port))
            }
            Operand::Slot { port, message, offset } => {
                format!("slot of message {message} + {offset} at {}", self.port(port))
            }
            Operand::Address(address) => format!("address {address:#x}"),
            Operand::Peer { port, buffer, offset } => {
                let peer = self.ports.get(usize::from(port)).map(LaneEnd::peer);
                let whose = peer.map_or("an unknown rank".to_owned(), |it| format!("rank {it}"));
                format!("{whose}'s {buffer}[{offset}]")
            }
            Operand::Granted { message, offset, .. } => {
                format!("granted place + {offset}, or slot of message {message}")
            }
        }
    }
}

fn suffix(modifiers: Modifiers) -> &'static str {
    match (modifiers.scale, modifiers.finish) {
        (false, false) => "",
        (true, false) => ", scale",
        (false, true) => ", finish",
        (true, true) => ", scale, finish",
    }
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |port| self.port(port);
        match *self.op {
            Op::Copy { destination, source, range, modifiers } => write!(
                f,
                "copy {} bytes: {} = {}{}",
                range.length,
                self.place(destination),
                self.place(source),
                suffix(modifiers)
            ),
            Op::Reduce { destination, a, b, range, modifiers } => write!(
                f,
                "reduce {} bytes: {} = {} (op) {}{}",
                range.length,
                self.place(destination),
                self.place(a),
                self.place(b),
                suffix(modifiers)
            ),
            Op::Pack { port, message, source, range } => write!(
                f,
                "pack {} bytes: LL message {message} at {} = {}",
                range.length,
                at(port),
                source.map_or("no data".to_owned(), |source| self.place(source))
            ),
            Op::Collect { destination, own, before, first, count, message, range, finish } => {
                let to = destination.map_or("nothing".to_owned(), |to| self.place(to));
                let from = self.ports(first, count);
                write!(f, "collect {} bytes: {to} = ", range.length)?;
                write!(
                    f,
                    "{}LL message {message} at {from}",
                    if count > 1 { "(op) of " } else { "" }
                )?;
                if let Some(own) = own {
                    write!(f, ", and {} as term {before}", self.place(own))?;
                }
                f.write_str(suffix(Modifiers { scale: false, finish }))
            }
            Op::Put { port, destination, source, range, arrival, completion } => {
                write!(f, "put {} bytes on {}: ", range.length, at(port))?;
                match (source, destination) {
                    (Operand::Slot { message: from, .. }, Operand::Slot { message: to, .. })
                        if from == to =>
                    {
                        write!(f, "message {from}")?;
                    }
                    _ => write!(f, "peer's {} = {}", self.place(destination), self.place(source))?,
                }
                f.write_str(if arrival { ", raise arrival" } else { "" })?;
                f.write_str(if completion { ", raise completion" } else { "" })
            }
            Op::Credit { port, messages: 1 } => write!(f, "credit on {}", at(port)),
            Op::Credit { port, messages } => write!(f, "{messages} credits on {}", at(port)),
            Op::Grant { port, place: None } => write!(f, "grant the slots on {}", at(port)),
            Op::Grant { port, place: Some(place) } => {
                write!(f, "grant {} on {}", self.place(Operand::Address(place)), at(port))
            }
            Op::WaitSignal { port, value } => write!(f, "wait for signal {value} at {}", at(port)),
            Op::WaitCompletion { port, value } => {
                write!(f, "wait for completion {value} at {}", at(port))
            }
            Op::Advance { port, signals, completions } => {
                write!(f, "advance by {signals} signals, {completions} completions at {}", at(port))
            }
            Op::InSwitch(work) => {
                write!(f, "{} of {} bytes in a switch", work.name(), work.range().length)
            }
        }
    }
}
