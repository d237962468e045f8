//! Result of a run: time, bytes on every link, and busy times.

use crate::machine::Machine;
use crate::program::Lane;
use crate::time::{Rate, Time};
use crate::trace::Span;

/// One put, credit or signal, in the order of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A block rang for a transfer, or stored it.
    Put {
        /// Index into [`Outcome::lanes`].
        lane: u32,
        /// Bytes, clipped.
        bytes: u64,
        /// Asks for an arrival.
        arrival: bool,
        /// Asks for a completion.
        completion: bool,
    },
    /// A block rang for a credit.
    Credit {
        /// Index into [`Outcome::lanes`].
        lane: u32,
    },
    /// A signal became visible.
    Signal {
        /// Index into [`Outcome::lanes`].
        lane: u32,
        /// `arrival`, `credit` or `completion`.
        signal: &'static str,
        /// Its new value.
        value: u64,
    },
}

/// How long each part worked.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    /// Each block, on anything but waiting.
    pub blocks: Vec<Time>,
    /// Each rank's proxy on issuing, or decoder on decoding.
    pub issue: Vec<Time>,
    /// Each GPU's copy engines, summed.
    pub copy: Vec<Time>,
    /// Each lane's copies, which come one after another: setup and flow.
    pub lanes: Vec<Time>,
    /// Each adapter on its messages.
    pub adapter: Vec<Time>,
    /// Fetch, link and write unit of each device engine.
    pub units: [Vec<Time>; 3],
    /// Each decoder, with work and no room for it.
    pub stalled: Vec<Time>,
}

impl Busy {
    pub(crate) fn new(ranks: usize) -> Self {
        let zero = || vec![Time::ZERO; ranks];
        Self {
            blocks: Vec::new(),
            issue: zero(),
            copy: zero(),
            lanes: Vec::new(),
            adapter: zero(),
            units: [zero(), zero(), zero()],
            stalled: zero(),
        }
    }

    pub(crate) fn add(list: &mut [Time], number: u32, time: Time) {
        list[number as usize] += time;
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// When the last block ended.
    pub end: Time,
    /// Events of the run.
    pub events: u64,
    /// Ranks that were played; the others do what one of these does, at the same time. Lists of
    /// ranks, blocks and lanes have zeros for the others, or leave them out; lists of links do not.
    pub ranks_played: usize,
    /// How often a flow got a new rate.
    pub ratings: u64,
    /// Bytes that crossed each link.
    pub link_bytes: Vec<u64>,
    /// Bytes on each link.
    pub link_rates: Vec<Rate>,
    /// Busy times of parts.
    pub busy: Busy,
    /// Copy engines of each GPU.
    pub copy_engines: u64,
    /// The lanes, as notes number them.
    pub lanes: Vec<Lane>,
    /// For the trace.
    pub spans: Vec<Span>,
    /// The sequence of puts and signals, if it was asked for.
    pub notes: Vec<Note>,
}

/// Limit of a run: the busiest part and its share of the time.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Its name; "latency" if nothing is busy most of the time.
    pub name: String,
    /// Busy time over the whole, 0 to 1.
    pub share: f64,
}

/// Below this, waiting for signals is what takes the time.
const BUSY_SHARE_MIN: f64 = 0.6;

impl Outcome {
    /// What limits between two runs of the same plan of which `self` is longer: start and end do
    /// not count. `shorter` may be `None`: then the whole run counts.
    pub fn limit(&self, shorter: Option<&Self>, machine: &Machine) -> Limit {
        let whole = self.end.seconds() - shorter.map_or(0.0, |it| it.end.seconds());
        let longest = |list: fn(&Self) -> &[Time]| {
            let before = |at: usize| shorter.map_or(0, |it| list(it)[at].0);
            let spent = list(self).iter().enumerate().map(|(at, time)| time.0 - before(at));
            spent.max().unwrap_or(0) as f64 / 1e12 / whole
        };
        let engines = self.copy_engines as f64;
        let mut parts = vec![
            ("blocks".to_owned(), longest(|it| &it.busy.blocks)),
            ("issue".into(), longest(|it| &it.busy.issue)),
            ("copy engines".into(), longest(|it| &it.busy.copy) / engines),
            ("copies of a lane".into(), longest(|it| &it.busy.lanes)),
            ("adapter messages".into(), longest(|it| &it.busy.adapter)),
            ("fetch unit".into(), longest(|it| &it.busy.units[0])),
            ("link unit".into(), longest(|it| &it.busy.units[1])),
            ("write unit".into(), longest(|it| &it.busy.units[2])),
            ("requests in flight".into(), longest(|it| &it.busy.stalled)),
        ];
        let before = |link: usize| shorter.map_or(0, |it| it.link_bytes[link]);
        let spent = self.link_bytes.iter().zip(&self.link_rates).enumerate();
        let spent = spent.map(|(link, (bytes, rate))| (rate.time(bytes - before(link)), link));
        // Of equal links the first.
        if let Some((time, link)) = spent.max_by_key(|&(time, link)| (time, usize::MAX - link)) {
            let share = time.seconds() / whole;
            parts.push((format!("link {}", machine.link_name(link as u32)), share));
        }
        let busiest = parts.into_iter().fold(("latency".to_owned(), 0.0), |best, part| {
            // The later part wins only by a clear margin: a full link also keeps its engine busy.
            if part.1 > best.1 + 1e-9 { part } else { best }
        });
        match busiest {
            // Credits that are rung last are issued after the last block has ended.
            (name, share) if share >= BUSY_SHARE_MIN => Limit { name, share: share.min(1.0) },
            (_, share) => Limit { name: "latency".into(), share },
        }
    }
}
