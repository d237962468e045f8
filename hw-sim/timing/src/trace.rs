//! Traces in the trace event format that Perfetto and Chrome's tracing page read.

use crate::machine::Machine;
use crate::program::Lane;
use crate::time::Time;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Something that took time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Where.
    pub track: Track,
    /// What.
    pub name: &'static str,
    /// Bytes; for an engine: descriptors.
    pub bytes: u64,
    /// From.
    pub start: Time,
    /// To.
    pub end: Time,
}

/// A row of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Track {
    /// A block, numbered over all ranks.
    Block(u32),
    /// The proxy or decoder of a rank.
    Engine(u32),
    /// The copies of a lane.
    Copy(u32),
    /// A unit of a rank's device engine: 0 fetch, 1 link, 2 write.
    Unit(u32, u8),
    /// A rank's adapter.
    Adapter(u32),
    /// A link.
    Link(u32),
}

/// Process numbers of the trace: rows are grouped by them.
const GROUPS: [&str; 5] = ["GPU blocks", "engines", "copies", "adapters", "links"];

impl Track {
    fn group(self) -> usize {
        match self {
            Self::Block(_) => 0,
            Self::Engine(_) | Self::Unit(..) => 1,
            Self::Copy(_) => 2,
            Self::Adapter(_) => 3,
            Self::Link(_) => 4,
        }
    }

    fn row(self) -> u32 {
        match self {
            Self::Engine(rank) => 4 * rank,
            Self::Unit(rank, stage) => 4 * rank + 1 + u32::from(stage),
            Self::Block(row) | Self::Copy(row) | Self::Adapter(row) | Self::Link(row) => row,
        }
    }

    fn title(self, lanes: &[Lane], machine: &Machine) -> String {
        match self {
            Self::Block(block) => format!("block {block}"),
            Self::Engine(rank) => format!("rank {rank}: issue"),
            Self::Unit(rank, stage) => {
                format!("rank {rank}: {}", ["fetch", "link", "write"][usize::from(stage)])
            }
            Self::Copy(lane) => {
                let Lane { from, to, index, .. } = lanes[lane as usize];
                format!("lane {from} to {to}, {index}")
            }
            Self::Adapter(rank) => format!("adapter of rank {rank}"),
            Self::Link(link) => machine.link_name(link),
        }
    }
}

/// The trace as JSON. Times are in microseconds; the first line says that they are modelled.
pub fn chrome(spans: &[Span], lanes: &[Lane], machine: &Machine, about: &str) -> Value {
    let mut events = Vec::new();
    for (number, name) in GROUPS.iter().enumerate() {
        events.push(json!({"ph": "M", "name": "process_name", "pid": number,
                           "args": {"name": format!("{name} ({about})")}}));
        events.push(json!({"ph": "M", "name": "process_sort_index", "pid": number,
                           "args": {"sort_index": number}}));
    }
    let tracks: BTreeSet<Track> = spans.iter().map(|span| span.track).collect();
    for track in tracks {
        events.push(json!({"ph": "M", "name": "thread_name", "pid": track.group(),
                           "tid": track.row(), "args": {"name": track.title(lanes, machine)}}));
    }
    for span in spans {
        let (track, duration) = (span.track, span.end - span.start);
        // Flows that share a link overlap without nesting, which slices of one row must not; as
        // pairs of asynchronous events each gets its own line.
        if let Track::Link(_) = track {
            let id = events.len();
            for (phase, at) in [("b", span.start), ("e", span.end)] {
                events.push(json!({"ph": phase, "cat": "link", "id": id,
                                   "name": track.title(lanes, machine), "pid": track.group(),
                                   "tid": track.row(), "ts": at.us(),
                                   "args": {"bytes": span.bytes}}));
            }
        } else {
            events.push(json!({"ph": "X", "name": span.name, "pid": track.group(),
                               "tid": track.row(), "ts": span.start.us(), "dur": duration.us(),
                               "args": {"bytes": span.bytes}}));
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"about": about}})
}
