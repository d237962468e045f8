//! Faults: what goes wrong in a run, drawn from its seed or named. A run may have several.
//!
//! Names and forms are those of `hwsim run --fault`, where that has the fault; there each process
//! counts launches, requests or looks, here the turns of all actors together are counted.
//!
//! `FORMS` lists them; `README.md` of virtual hardware says what each does. In runs of jobs
//! (`members`, `communicators`, `connections`) N is a process, and times are microseconds.

use std::fmt;
use std::str::FromStr;

/// What goes wrong, and when: turns are those of all actors together. The module's table says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// `bad-op`: the kernel refuses the plan.
    BadOp {
        /// The rank.
        rank: u32,
        /// The block.
        block: u32,
        /// Which op, counted from the first one; modulo their number.
        op: u32,
    },
    /// `bad-port`.
    BadPort {
        /// The rank.
        rank: u32,
        /// The block.
        block: u32,
    },
    /// `abort-at`.
    Abort {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `stall-after`.
    EngineStops {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `link-down-after`.
    LinkDown {
        /// The rank.
        rank: u32,
        /// How many requests its device engine has taken then.
        request: u64,
    },
    /// `fetch-fault-after`.
    FetchFault {
        /// The rank.
        rank: u32,
        /// How many requests its device engine took before.
        request: u64,
    },
    /// `stop-at`.
    GpuStops {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `kill-at`.
    Killed {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `partition-at`.
    Partition {
        /// The process.
        rank: u32,
        /// When, in microseconds.
        at_us: u64,
    },
    /// `connections-reset-at`.
    ConnectionReset {
        /// The process.
        rank: u32,
        /// When, in microseconds.
        at_us: u64,
    },
    /// `reset-at`.
    AdapterReset {
        /// The process.
        rank: u32,
        /// When, in microseconds.
        at_us: u64,
    },
    /// `no-queue-pairs-at`.
    NoQueuePairs {
        /// The process.
        rank: u32,
        /// When, in microseconds.
        at_us: u64,
    },
    /// `no-answer-at`.
    NoAnswer {
        /// The process.
        rank: u32,
        /// When, in microseconds.
        at_us: u64,
    },
    /// `loss-at`.
    Loss {
        /// The process.
        rank: u32,
        /// The first message that its adapter loses.
        message: u64,
    },
    /// `port-flap`.
    PortFlap {
        /// The process.
        rank: u32,
        /// How many messages its adapter has sent before.
        message: u64,
        /// So many are lost then, in either direction.
        attempts: u32,
    },
    /// `delay`.
    Delay {
        /// The process.
        rank: u32,
        /// So often at most a lane finds that its message is still on the way.
        turns: u32,
    },
    /// `late`.
    Late {
        /// The process.
        rank: u32,
    },
    /// `disagrees`.
    Disagrees {
        /// The process.
        rank: u32,
    },
    /// `no-call`.
    NoCall {
        /// The process.
        rank: u32,
    },
    /// `no-alarm`.
    NoAlarm {
        /// The rank.
        rank: u32,
    },
    /// `stray-claim-at`.
    StrayClaim {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `ring-garbage-at`.
    RingGarbage {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
    },
    /// `clock-leaps-at`.
    ClockLeaps {
        /// The rank.
        rank: u32,
        /// When.
        turn: u64,
        /// How far, forward or back.
        by_us: i64,
    },
}

/// What a stray write leaves in the claim word.
pub const STRAY: u32 = 0x0bad_c1a1;

/// The longest leap of a clock: a day, as for `hwsim run`.
const LEAP_US_MAX: i128 = 86_400_000_000;

impl Fault {
    /// The rank that it strikes.
    pub fn rank(self) -> u32 {
        match self {
            Self::BadOp { rank, .. }
            | Self::BadPort { rank, .. }
            | Self::Abort { rank, .. }
            | Self::EngineStops { rank, .. }
            | Self::LinkDown { rank, .. }
            | Self::FetchFault { rank, .. }
            | Self::GpuStops { rank, .. }
            | Self::Killed { rank, .. }
            | Self::Partition { rank, .. }
            | Self::ConnectionReset { rank, .. }
            | Self::AdapterReset { rank, .. }
            | Self::NoQueuePairs { rank, .. }
            | Self::NoAnswer { rank, .. }
            | Self::Loss { rank, .. }
            | Self::PortFlap { rank, .. }
            | Self::Delay { rank, .. }
            | Self::Late { rank }
            | Self::Disagrees { rank }
            | Self::NoCall { rank }
            | Self::NoAlarm { rank }
            | Self::StrayClaim { rank, .. }
            | Self::RingGarbage { rank, .. }
            | Self::ClockLeaps { rank, .. } => rank,
        }
    }

    /// Moves it to a block that there is.
    pub(crate) fn move_into(&mut self, blocks: u32) {
        if let Self::BadOp { block, .. } | Self::BadPort { block, .. } = self {
            *block %= blocks;
        }
    }

    /// Its numbers, as they stand behind its name.
    fn numbers(self) -> [i128; 2] {
        match self {
            Self::BadOp { block, op, .. } => [block.into(), op.into()],
            Self::BadPort { block, .. } => [block.into(), 0],
            Self::LinkDown { request, .. } | Self::FetchFault { request, .. } => {
                [request.into(), 0]
            }
            Self::Partition { at_us, .. }
            | Self::ConnectionReset { at_us, .. }
            | Self::AdapterReset { at_us, .. }
            | Self::NoQueuePairs { at_us, .. }
            | Self::NoAnswer { at_us, .. } => [at_us.into(), 0],
            Self::Loss { message, .. } => [message.into(), 0],
            Self::PortFlap { message, attempts, .. } => [message.into(), attempts.into()],
            Self::Delay { turns, .. } => [turns.into(), 0],
            Self::NoAlarm { .. }
            | Self::Late { .. }
            | Self::Disagrees { .. }
            | Self::NoCall { .. } => [0, 0],
            Self::Abort { turn, .. }
            | Self::EngineStops { turn, .. }
            | Self::GpuStops { turn, .. }
            | Self::Killed { turn, .. }
            | Self::StrayClaim { turn, .. }
            | Self::RingGarbage { turn, .. } => [turn.into(), 0],
            Self::ClockLeaps { turn, by_us, .. } => [turn.into(), by_us.into()],
        }
    }

    fn form(self) -> &'static Form {
        let (rank, numbers) = (self.rank(), self.numbers());
        let form = FORMS.iter().find(|form| (form.make)(rank, numbers) == self);
        form.expect("a test finds the form of each")
    }

    /// The turn at which it strikes; some are there from the beginning on.
    pub fn turn(self) -> u64 {
        let is_turn = self.form().numbers.first().is_some_and(|number| number.name == "TURN");
        if is_turn { self.numbers()[0] as u64 } else { 0 }
    }

    /// Is it one that only runs of jobs have?
    pub fn is_of_jobs(self) -> bool {
        self.form().of == Of::Jobs
    }

    /// Is it one that only device engines have?
    pub fn is_of_device(self) -> bool {
        self.form().of == Of::DeviceEngines
    }

    /// May a run with it end other than well? A clock that leaps ends nothing, unless waits expire.
    pub fn disturbs(self) -> bool {
        !matches!(self, Self::ClockLeaps { .. })
    }
}

/// Which runs have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// Those of kernels and engines; of jobs too, where those have something of the name.
    Kernels,
    /// Those with device engines.
    DeviceEngines,
    /// Those of jobs alone.
    Jobs,
}

/// A number of a fault.
#[derive(Clone, Copy, Debug)]
struct Number {
    name: &'static str,
    least: i128,
    most: i128,
}

const fn up_to(name: &'static str, most: i128) -> Number {
    Number { name, least: 0, most }
}

const TURN: Number = up_to("TURN", u64::MAX as i128);
const REQUEST: Number = up_to("REQUEST", u64::MAX as i128);
const MESSAGE: Number = up_to("MESSAGE", u64::MAX as i128);
const US: Number = up_to("US", u64::MAX as i128);
const BLOCK: Number = up_to("BLOCK", u32::MAX as i128);
const OP: Number = up_to("OP", u32::MAX as i128);
const TIMES: Number = up_to("TIMES", u32::MAX as i128);
/// Of a message. Where all take longer, a run takes it that nothing happens any more, and waits
/// expire.
const TURNS: Number = up_to("TURNS (up to 100)", 100);
/// As for `hwsim run`.
const LEAP: Number = Number { name: "[-]US (up to a day)", least: -LEAP_US_MAX, most: LEAP_US_MAX };

/// How a fault is written.
struct Form {
    /// What it strikes; its number follows.
    target: &'static str,
    name: &'static str,
    numbers: &'static [Number],
    of: Of,
    make: fn(u32, [i128; 2]) -> Fault,
}

const fn form(
    (target, name): (&'static str, &'static str),
    numbers: &'static [Number],
    of: Of,
    make: fn(u32, [i128; 2]) -> Fault,
) -> Form {
    Form { target, name, numbers, of, make }
}

/// All faults. Numbers have been compared with their bounds when they are made.
const FORMS: &[Form] =
    &[
        form(("gpu", "stop-at"), &[TURN], Of::Kernels, |rank, [turn, _]| Fault::GpuStops {
            rank,
            turn: turn as u64,
        }),
        form(("gpu", "clock-leaps-at"), &[TURN, LEAP], Of::Kernels, |rank, [turn, by]| {
            Fault::ClockLeaps { rank, turn: turn as u64, by_us: by as i64 }
        }),
        form(("engine", "stall-after"), &[TURN], Of::Kernels, |rank, [turn, _]| {
            Fault::EngineStops { rank, turn: turn as u64 }
        }),
        form(("engine", "link-down-after"), &[REQUEST], Of::DeviceEngines, |rank, [at, _]| {
            Fault::LinkDown { rank, request: at as u64 }
        }),
        form(("engine", "fetch-fault-after"), &[REQUEST], Of::DeviceEngines, |rank, [at, _]| {
            Fault::FetchFault { rank, request: at as u64 }
        }),
        form(("rank", "kill-at"), &[TURN], Of::Kernels, |rank, [turn, _]| Fault::Killed {
            rank,
            turn: turn as u64,
        }),
        form(("rank", "abort-at"), &[TURN], Of::Kernels, |rank, [turn, _]| Fault::Abort {
            rank,
            turn: turn as u64,
        }),
        form(("rank", "no-alarm"), &[], Of::Kernels, |rank, _| Fault::NoAlarm { rank }),
        form(("rank", "stray-claim-at"), &[TURN], Of::Kernels, |rank, [turn, _]| {
            Fault::StrayClaim { rank, turn: turn as u64 }
        }),
        form(("rank", "ring-garbage-at"), &[TURN], Of::Kernels, |rank, [turn, _]| {
            Fault::RingGarbage { rank, turn: turn as u64 }
        }),
        form(("rank", "bad-op"), &[BLOCK, OP], Of::Kernels, |rank, [block, op]| Fault::BadOp {
            rank,
            block: block as u32,
            op: op as u32,
        }),
        form(("rank", "bad-port"), &[BLOCK], Of::Kernels, |rank, [block, _]| Fault::BadPort {
            rank,
            block: block as u32,
        }),
        form(("rank", "partition-at"), &[US], Of::Jobs, |rank, [at, _]| Fault::Partition {
            rank,
            at_us: at as u64,
        }),
        form(("rank", "connections-reset-at"), &[US], Of::Jobs, |rank, [at, _]| {
            Fault::ConnectionReset { rank, at_us: at as u64 }
        }),
        form(("rank", "no-answer-at"), &[US], Of::Jobs, |rank, [at, _]| Fault::NoAnswer {
            rank,
            at_us: at as u64,
        }),
        form(("rank", "late"), &[], Of::Jobs, |rank, _| Fault::Late { rank }),
        form(("rank", "disagrees"), &[], Of::Jobs, |rank, _| Fault::Disagrees { rank }),
        form(("rank", "no-call"), &[], Of::Jobs, |rank, _| Fault::NoCall { rank }),
        form(("hwsim", "reset-at"), &[US], Of::Jobs, |rank, [at, _]| Fault::AdapterReset {
            rank,
            at_us: at as u64,
        }),
        form(("hwsim", "no-queue-pairs-at"), &[US], Of::Jobs, |rank, [at, _]| {
            Fault::NoQueuePairs { rank, at_us: at as u64 }
        }),
        form(("hwsim", "loss-at"), &[MESSAGE], Of::Jobs, |rank, [message, _]| Fault::Loss {
            rank,
            message: message as u64,
        }),
        form(("hwsim", "port-flap"), &[MESSAGE, TIMES], Of::Jobs, |rank, [message, times]| {
            Fault::PortFlap { rank, message: message as u64, attempts: times as u32 }
        }),
        form(("hwsim", "delay"), &[TURNS], Of::Jobs, |rank, [turns, _]| Fault::Delay {
            rank,
            turns: turns as u32,
        }),
    ];

/// Other faults of `hwsim run`, and why no run here has them.
const REFUSED: &[(&[&str], &str)] = &[
    (
        &["reorder", "network-delay", "slow"],
        "each run has it: which agent goes on, and what overtakes what, is drawn",
    ),
    (&["port-down", "port-down-after"], "use loss-at, after which nothing arrives either"),
    (&["qp-error-after"], "use reset-at, after which queue pairs are in error"),
    (
        &["receiver-not-ready", "registration-fails-at", "completions-max"],
        "receive requests, registration and completion queues are verbs', which no agent here has",
    ),
    (
        &["out-of-memory-at"],
        "memory of a run is there before it begins, and no driver allocates any",
    ),
    (&["freeze-at"], "use partition-at of a job, or stop-at and stall-after"),
    (&["time-jumps"], "no code that runs here looks at the time of day"),
    (
        &["flip-at"],
        "messages of the control plane come whole here; tests of frames flip their bits",
    ),
    (&["disk-full-at", "unreadable"], "no code that runs here reads or writes files"),
];

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = self.form();
        write!(f, "{}{}:{}", form.target, self.rank(), form.name)?;
        for (place, number) in self.numbers().iter().take(form.numbers.len()).enumerate() {
            write!(f, "{}{number}", if place == 0 { '=' } else { ':' })?;
        }
        Ok(())
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        read(text).ok_or_else(|| {
            let name = text.split_once(':').map_or(text, |(_, fault)| fault);
            let name = name.split_once('=').map_or(name, |(name, _)| name);
            let refused = REFUSED.iter().find(|(names, _)| names.contains(&name));
            match refused {
                Some((_, why)) => format!("no run here has the fault {name}: {why}"),
                None => format!("expected {}, found `{text}`", expected()),
            }
        })
    }
}

/// All forms, for an error.
fn expected() -> String {
    let written = FORMS.iter().map(|form| {
        let numbers: Vec<_> = form.numbers.iter().map(|number| number.name).collect();
        let equals = if numbers.is_empty() { "" } else { "=" };
        format!("{}N:{}{equals}{}", form.target, form.name, numbers.join(":"))
    });
    written.collect::<Vec<_>>().join(", ")
}

fn read(text: &str) -> Option<Fault> {
    let (target, fault) = text.split_once(':')?;
    let digits = target.trim_start_matches(|letter: char| letter.is_ascii_lowercase());
    let rank = digits.parse().ok()?;
    let target = &target[..target.len() - digits.len()];
    let (name, numbers) = match fault.split_once('=') {
        Some((name, numbers)) => (name, numbers.split(':').collect()),
        None => (fault, Vec::new()),
    };
    let form = FORMS.iter().find(|form| (form.target, form.name) == (target, name))?;
    if numbers.len() != form.numbers.len() {
        return None;
    }
    let mut values = [0; 2];
    for ((value, text), number) in values.iter_mut().zip(numbers).zip(form.numbers) {
        *value = text.parse().ok()?;
        if !(number.least..=number.most).contains(value) {
            return None;
        }
    }
    Some((form.make)(rank, values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// If this fails, a fault is printed in a way that is not read, or is read as another one.
    #[test]
    fn each_fault_is_read_as_it_is_written() {
        let mut seen = BTreeSet::new();
        for (at, form) in FORMS.iter().enumerate() {
            let numbers = [7 + at as i128, 70 + at as i128];
            let fault = (form.make)(3, numbers);
            let text = fault.to_string();
            assert_eq!(text.parse(), Ok(fault), "{text}");
            assert!(text.starts_with(&format!("{}3:{}", form.target, form.name)), "{text}");
            assert!(seen.insert(text), "{fault:?} twice");
            assert!(expected().contains(form.name));
        }
        assert!(seen.contains("rank3:bad-op=17:80"), "{seen:?}");
    }

    #[test]
    fn what_is_no_fault_is_refused_with_what_there_is() {
        for text in ["gpu0", "gpu:stop-at=1", "gpu0:stop-at", "gpu0:stop-at=1:2", "rank0:late=1"] {
            assert!(text.parse::<Fault>().unwrap_err().contains("gpuN:stop-at=TURN"), "{text}");
        }
        let day = "gpu0:clock-leaps-at=1:86400000001".parse::<Fault>();
        assert!(day.unwrap_err().contains("expected"));
        assert!("gpu0:clock-leaps-at=1:-5".parse::<Fault>().is_ok());
        for (names, why) in REFUSED {
            for name in *names {
                let error = format!("hwsim0:{name}=1").parse::<Fault>().unwrap_err();
                assert!(error.contains(why), "{error}");
                assert!(FORMS.iter().all(|form| form.name != *name), "{name}");
            }
        }
    }
}
