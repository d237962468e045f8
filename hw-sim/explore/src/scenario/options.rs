//! What a seed draws before a run.

mod corners;
mod strikes;

use std::fmt;
use std::str::FromStr;

use super::{GroupShape, PlanShape, Scenario, Shape, Traffic};
use crate::engine::{DeviceShape, HostMutant};
use crate::fault::Fault;
use crate::members::{Shape as MembersShape, Strike as MembersStrike};
use crate::rank::NEVER_NS;

/// How many looks at the clock a wait may last in a run with a fault that was asked for.
const DEADLINE_NS: u64 = 1 << 7;

/// All that a run follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The seed.
    pub seed: u64,
    /// Never [`Scenario::Random`].
    pub scenario: Scenario,
    /// What the ranks do.
    pub traffic: Traffic,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// How long a wait may last, in looks at the clock.
    pub timeout_ns: u64,
    /// Launches, one behind the other.
    pub launches: u32,
    /// Calls of a launch. Each call does the same on other buffers.
    pub calls: u32,
    /// Blocks, each with a lane of its own.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Messages of each lane in a transfer.
    pub messages: u32,
    /// Transfers of each lane in a launch; one but for grants.
    pub transfers: u32,
    /// Low-latency messages that one op takes, each by a lane of its own.
    pub terms: u32,
    /// Bytes of a message.
    pub bytes: u32,
    /// Slots of the ring, as a power of two.
    pub ring_log2: u32,
    /// Ports of a block that it does not use, before the one that it does.
    pub spare_ports: u32,
    /// Loads in a hundred that return the newest value without a draw.
    pub plain_percent: u8,
    /// Loads that race may mix values.
    pub tears: bool,
    /// Loads that race never see anything newer.
    pub stalls: bool,
    /// What runs of experts draw beside.
    pub shape: Shape,
    /// What runs of collectives draw beside.
    pub collective: PlanShape,
    /// What runs of groups draw beside.
    pub groups: GroupShape,
    /// What runs of members draw.
    pub members: MembersShape,
    /// What device engines are like; without, engines are proxies.
    pub device: Option<DeviceShape>,
    /// What the host's code is weakened to: for its mutants. Never drawn.
    pub host: Option<HostMutant>,
    /// Faults that were named, and not drawn; they are among `faults`, too.
    pub named_faults: Vec<Fault>,
    /// What was changed after the draw.
    pub changes: Vec<Change>,
}

/// A number that is changed after the draw: how a shorter run is told from the one of its seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which number.
    pub name: &'static str,
    /// Its new value.
    pub value: u64,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let known = Options::NAMES.iter().find(|(known, _)| *known == name);
        let names = Options::NAMES.map(|(name, _)| name).join(", ");
        let (name, _) =
            known.ok_or_else(|| format!("expected NAME=NUMBER, NAME one of {names}"))?;
        let value = value.parse().map_err(|_| format!("expected a number after {name}="))?;
        Ok(Self { name, value })
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.traffic == Traffic::Members {
            return write!(f, "members: {}", self.members);
        }
        if self.traffic == Traffic::Words {
            return write!(f, "words: {} % plain", self.plain_percent);
        }
        let on = |flag| if flag { "on" } else { "off" };
        write!(
            f,
            "{}: {} launches of {} calls, {} blocks of {} threads, {} transfers of {} messages of \
             {} bytes, {} terms, ring of {}, {} spare ports, {} % plain, tearing {}, stalling {}",
            self.traffic.name(),
            self.launches,
            self.calls,
            self.blocks,
            self.threads,
            self.transfers,
            self.messages,
            self.bytes,
            self.terms,
            1 << self.ring_log2,
            self.spare_ports,
            self.plain_percent,
            on(self.tears),
            on(self.stalls),
        )?;
        if self.traffic == Traffic::Experts {
            write!(f, "{}", self.shape)?;
        }
        if self.traffic == Traffic::Collectives {
            write!(f, "{}", self.collective)?;
        }
        if self.traffic == Traffic::Groups {
            write!(f, "{}", self.groups)?;
        }
        if let Some(device) = &self.device {
            write!(f, "{device}")?;
        }
        if self.timeout_ns != NEVER_NS {
            write!(f, ", waits expire after {} looks", self.timeout_ns)?;
        }
        for fault in &self.faults {
            write!(f, "; {fault}")?;
        }
        Ok(())
    }
}

impl Options {
    /// Draws them. What [`Scenario::Random`] draws is the same as that scenario by its own name.
    pub fn draw(scenario: Scenario, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x0971_0e5e);
        let scenario = match scenario {
            Scenario::Random => Scenario::DRAWN[random.usize(..Scenario::DRAWN.len())],
            scenario => scenario,
        };
        let mut random = fastrand::Rng::with_seed(seed ^ 0x0971_0e5e);
        let traffic = match scenario.traffic() {
            Some(traffic) => traffic,
            None if matches!(scenario, Scenario::Device | Scenario::DeviceFaults) => {
                Traffic::OF_DEVICE[random.usize(..Traffic::OF_DEVICE.len())]
            }
            None if scenario == Scenario::Clock => {
                Traffic::OF_WAITS[random.usize(..Traffic::OF_WAITS.len())]
            }
            None if scenario == Scenario::Corners => {
                Traffic::OF_CORNERS[random.usize(..Traffic::OF_CORNERS.len())]
            }
            None => Traffic::OF_EXECUTOR[random.usize(..Traffic::OF_EXECUTOR.len())],
        };
        // Short messages mostly, because they are quick; long ones give all warps a part.
        let words_max = [16, 160, 700][random.usize(..3)];
        let mut options = Self {
            seed,
            scenario,
            traffic,
            faults: Vec::new(),
            timeout_ns: NEVER_NS,
            launches: 1,
            calls: 1,
            blocks: random.u32(1..=3),
            threads: [32, 64, 96][random.usize(..3)],
            messages: random.u32(2..=5),
            transfers: 1,
            terms: random.u32(1..=2),
            bytes: 4 * random.u32(1..=words_max),
            ring_log2: random.u32(0..=2),
            spare_ports: random.u32(0..=7),
            plain_percent: [20, 50, 80][random.usize(..3)],
            tears: random.bool(),
            stalls: random.bool(),
            members: MembersShape::default(),
            device: None,
            host: None,
            shape: Shape::default(),
            collective: PlanShape::default(),
            groups: GroupShape::default(),
            named_faults: Vec::new(),
            changes: Vec::new(),
        };
        match random.u32(0..4) {
            0 => options.launches = 2,
            1 => options.calls = 2,
            _ => {}
        }
        if traffic == Traffic::Grants {
            options.messages = random.u32(3..=5);
            options.transfers = random.u32(1..=3);
            options.bytes = options.bytes.min(1024);
        }
        if traffic == Traffic::LowLatency {
            // Long enough for a tile of each warp. Each thread of a later launch knows of each word
            // of the earlier ones, so these are short.
            options.bytes = options.bytes.min(if options.rounds() > 1 { 128 } else { 1100 });
        }
        if traffic == Traffic::User {
            options.launches = options.rounds();
            options.calls = 1;
            // Each thread copies words, and few threads are enough to be several.
            options.threads = [2, 4, 32][random.usize(..3)];
            options.bytes = options.bytes.min(256);
        }
        if traffic == Traffic::Experts {
            options.bring_tokens(&mut random);
        }
        if traffic == Traffic::Collectives {
            options.collective = match scenario {
                Scenario::Packed | Scenario::PackedFaults => PlanShape::draw_packed(&mut random),
                _ => PlanShape::draw(&mut random),
            };
            options.bytes = 4 * random.u32(1..=64);
            options.threads = [32, 64][random.usize(..2)];
            options.blocks = random.u32(1..=2);
        }
        if traffic == Traffic::Groups {
            options.groups = GroupShape::draw(&mut random);
            options.bytes = 4 * random.u32(1..=64);
            options.threads = [32, 64][random.usize(..2)];
            (options.launches, options.calls) = (random.u32(1..=3), 1);
        }
        if traffic == Traffic::Members {
            options.members = match scenario {
                Scenario::Communicators => MembersShape::draw_with_gpus(&mut random, false),
                Scenario::CommunicatorsFaults => MembersShape::draw_with_gpus(&mut random, true),
                Scenario::Connections => MembersShape::draw_with_connections(&mut random, false),
                Scenario::ConnectionsFaults => {
                    MembersShape::draw_with_connections(&mut random, true)
                }
                Scenario::Lossy => MembersShape::draw_with_losses(&mut random),
                Scenario::SeveralFaults => MembersShape::draw_with_several(&mut random),
                Scenario::Absences => MembersShape::draw_with_absences(&mut random),
                _ => MembersShape::draw(&mut random, scenario == Scenario::MembersFaults),
            };
        }
        if matches!(scenario, Scenario::Device | Scenario::DeviceFaults) {
            options.device = Some(DeviceShape::draw(&mut random));
        }
        let strike = match scenario {
            Scenario::DeviceFaults => {
                options.lose_engine(&mut random);
                scenario
            }
            Scenario::Graphs => {
                options.groups.replays = random.u32(2..=3);
                scenario
            }
            Scenario::GroupsFaults => {
                options.lose_rank(options.groups.ranks, &mut random);
                if random.bool() {
                    options.kill_what_stops();
                }
                options.groups.replays = random.u32(1..=2);
                if options.timeout_ns != NEVER_NS {
                    options.timeout_ns = 1 << random.u32(4..=8);
                }
                scenario
            }
            Scenario::Relays => {
                options.shape.relay();
                scenario
            }
            Scenario::ExpertsFaults => {
                options.shape.goes_on = random.bool();
                options.lose_rank(options.shape.ranks, &mut random);
                scenario
            }
            Scenario::Batches => {
                options.bring_batches(&mut random);
                scenario
            }
            Scenario::BatchesFaults => {
                options.bring_batches(&mut random);
                options.lose_batch(&mut random);
                scenario
            }
            Scenario::Claims => {
                options.bring_claim(&mut random);
                scenario
            }
            Scenario::Waits => {
                options.bring_waits(&mut random);
                scenario
            }
            Scenario::Rewrites => {
                options.shape.rewrite(&mut random);
                scenario
            }
            Scenario::Corners => {
                options.turn_a_corner(&mut random);
                scenario
            }
            Scenario::CollectivesFaults | Scenario::PackedFaults => {
                options.lose_rank(options.collective.ranks, &mut random);
                // Each of many lanes may have to wait so long, one after the other.
                if options.timeout_ns != NEVER_NS {
                    options.timeout_ns = 1 << random.u32(4..=8);
                }
                scenario
            }
            Scenario::UserFaults => {
                [Scenario::Refusal, Scenario::Abort, Scenario::Expiry, Scenario::Stray]
                    [random.usize(..4)]
            }
            scenario => scenario,
        };
        match strike {
            Scenario::Many => options.make_many(&mut random),
            Scenario::Refusal => options.refuse(&mut random),
            Scenario::Abort => options.abort(&mut random),
            Scenario::Expiry => options.expire(&mut random),
            Scenario::Stray => options.stray(&mut random),
            Scenario::Garbage => options.garble(&mut random),
            Scenario::Clock => options.leap(&mut random),
            _ => {}
        }
        options
    }

    /// Does nothing go wrong that may end a run other than well?
    pub fn is_undisturbed(&self) -> bool {
        self.timeout_ns == NEVER_NS && !self.faults.iter().any(|fault| fault.disturbs())
    }

    /// Does any of these faults strike this rank?
    pub(super) fn strikes(&self, rank: usize, is: impl Fn(&Fault) -> bool) -> bool {
        self.faults.iter().any(|fault| fault.rank() as usize == rank && is(fault))
    }

    /// Numbers that may be changed, and the least that each may be.
    pub const NAMES: [(&'static str, u64); 13] = [
        ("launches", 1),
        ("calls", 1),
        ("blocks", 1),
        ("threads", 32),
        ("transfers", 1),
        ("messages", 1),
        ("bytes", 4),
        ("terms", 1),
        ("spare-ports", 0),
        ("ring-log2", 0),
        ("tears", 0),
        ("stalls", 0),
        ("faults", 0),
    ];

    /// The number with this name.
    pub fn number(&self, name: &str) -> u64 {
        match name {
            "launches" => self.launches.into(),
            "calls" => self.calls.into(),
            "blocks" => self.blocks.into(),
            "threads" => self.threads.into(),
            "transfers" => self.transfers.into(),
            "messages" => self.messages.into(),
            "bytes" => self.bytes.into(),
            "terms" => self.terms.into(),
            "spare-ports" => self.spare_ports.into(),
            "ring-log2" => self.ring_log2.into(),
            "tears" => self.tears.into(),
            "stalls" => self.stalls.into(),
            _ if self.traffic == Traffic::Members => self.members.strikes.len() as u64,
            _ => self.faults.len() as u64,
        }
    }

    /// Changes a number, no further than it was or may be. `faults` keeps the first ones.
    pub fn change(&mut self, change: Change) {
        let least = Self::NAMES.iter().find(|(name, _)| *name == change.name);
        let value = change.value.max(least.map_or(0, |(_, least)| *least));
        let value = value.min(self.number(change.name)) as u32;
        match change.name {
            "launches" => self.launches = value,
            "calls" => self.calls = value,
            "blocks" => self.blocks = value,
            // Of whole warps, unless they were less.
            "threads" if self.threads > 32 => self.threads = value / 32 * 32,
            "threads" => {}
            "transfers" => self.transfers = value,
            "messages" => self.messages = value,
            "bytes" => self.bytes = value / 4 * 4,
            "terms" => self.terms = value,
            "spare-ports" => self.spare_ports = value,
            "ring-log2" => self.ring_log2 = value,
            "tears" => self.tears = value != 0,
            "stalls" => self.stalls = value != 0,
            _ => {
                self.faults.truncate(value as usize);
                self.members.strikes.truncate(value as usize);
            }
        }
        for fault in &mut self.faults {
            fault.move_into(self.blocks);
        }
        self.changes.retain(|it| it.name != change.name);
        self.changes.push(change);
    }

    /// How many ranks the run has.
    pub fn ranks(&self) -> u32 {
        match self.traffic {
            Traffic::Experts => self.shape.ranks,
            Traffic::Collectives => self.collective.ranks,
            Traffic::Groups => self.groups.ranks,
            Traffic::Members => self.members.ranks,
            _ => 2,
        }
    }

    /// Adds a fault to those that were drawn; a block counts modulo the run's. Waits get a deadline
    /// where none was drawn, unless a host aborts.
    ///
    /// # Errors
    ///
    /// The run does not have the rank.
    pub fn add_fault(&mut self, mut fault: Fault) -> Result<(), String> {
        if fault.rank() >= self.ranks() {
            return Err(format!(
                "{fault}: the run of seed {} has {} ranks",
                self.seed,
                self.ranks()
            ));
        }
        if self.traffic == Traffic::Members {
            let strike = MembersStrike::of_fault(fault);
            let strike = strike.filter(|it| self.members.can_have(*it));
            let unknown = || format!("{fault}: the run of seed {} has no such fault", self.seed);
            self.members.strike_with(strike.ok_or_else(unknown)?);
            self.named_faults.push(fault);
            return Ok(());
        }
        if fault.is_of_jobs() {
            return Err(format!("{fault}: the run of seed {} has no jobs", self.seed));
        }
        if fault.is_of_device() && self.device.is_none() {
            return Err(format!("{fault}: the run of seed {} has no device engines", self.seed));
        }
        fault.move_into(self.blocks);
        // Somebody may wait for good then, as nobody else was drawn who ends it.
        let ends_waits = |fault: &Fault| matches!(fault, Fault::Abort { .. });
        let has_end = self.timeout_ns != NEVER_NS || self.faults.iter().any(ends_waits);
        if fault.disturbs() && !ends_waits(&fault) && !has_end {
            self.timeout_ns = DEADLINE_NS;
        }
        self.faults.push(fault);
        self.named_faults.push(fault);
        Ok(())
    }

    /// Calls of all launches.
    pub fn rounds(&self) -> u32 {
        self.launches * self.calls
    }

    /// Many producers, few messages, and a ring of which each slot is used often.
    fn make_many(&mut self, random: &mut fastrand::Rng) {
        self.blocks = random.u32(16..=64);
        self.threads = 32;
        (self.launches, self.calls) = (1, 1);
        self.messages = random.u32(1..=2);
        self.bytes = 4 * random.u32(1..=8);
        self.ring_log2 = random.u32(0..=5);
    }

    /// Tokens of a few elements, which several steps dispatch and combine.
    fn bring_tokens(&mut self, random: &mut fastrand::Rng) {
        self.shape = Shape::draw(random).checked();
        (self.launches, self.calls) = (random.u32(2..=4), 1);
        self.blocks = random.u32(1..=2);
        self.threads = [32, 64][random.usize(..2)];
        self.messages = random.u32(1..=4);
        self.terms = random.u32(1..=3);
        self.bytes = 16 * random.u32(1..=3);
    }

    /// Two batches of a step or two; now and then with tokens enough for several warps.
    fn bring_batches(&mut self, random: &mut fastrand::Rng) {
        self.shape.double(random);
        self.launches = random.u32(1..=2);
        self.messages = random.u32(1..=3);
        if self.shape.node_ranks == 1 {
            // Rings lap.
            self.launches = random.u32(2..=3);
            self.ring_log2 = random.u32(0..=1);
        }
        if random.u32(0..6) == 0 {
            (self.launches, self.blocks) = (1, 2);
            self.messages = random.u32(33..=40);
            self.bytes = 16;
            if random.bool() {
                // Warps of both blocks find faults.
                self.shape.routes_again = false;
                (self.shape.faulty_step, self.shape.has_many_faults) = (1, true);
            }
        }
    }
}
