//! Parts of a dispatch and of a combine, as programs of the model.

use super::load::{Load, Way};
use crate::predict::{PredictError, Scene};
use hwsim_timing::encode::{Block, copy, encode, put, wait_arrivals, wait_completions};
use hwsim_timing::profile::Block as BlockCosts;
use hwsim_timing::{
    Engine, Lane, Outcome, Port, Profile, Programs, RankProgram, Setup, Time, simulate,
};

/// Blocks of a launch, and warps of a block, as `src/experts/group.rs` has them.
const BLOCKS_MAX: u32 = 128;
const WARPS: u32 = 8;
/// Far peers of a block: a port for each direction, and a block has 32 ports at most.
const FAR_PEERS: u32 = 16;

/// A part of an operation.
pub(super) struct Part {
    pub name: &'static str,
    pub time: Time,
    /// It begins with the part before, not behind it.
    pub is_beside: bool,
    pub limit: String,
}

pub(super) struct Player<'a> {
    pub scene: &'a Scene,
    pub engine: Engine,
    pub load: &'a Load,
}

/// Is the start of a kernel in a part?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Launch,
    Running,
}

/// Every rank moves bytes in its own memory, by all blocks.
struct Local {
    ranks: u32,
    blocks: u32,
    bytes: u64,
}

/// Ranks of a node store to one another, and to themselves.
struct Near {
    ranks: u32,
    blocks: u32,
    message: u64,
}

/// Engines take messages to all ranks of other nodes, or to one of each.
struct Far {
    ranks: u32,
    near: u32,
    message: u64,
    one_of_each: bool,
}

impl Programs for Local {
    fn rank_count(&self) -> u32 {
        self.ranks
    }

    fn program(&self, _: u32) -> RankProgram {
        let mut block = Block::default();
        copy(&mut block.ops, self.bytes.div_ceil(self.blocks.into()));
        let encoded = encode(&vec![block; self.blocks as usize]);
        RankProgram { encoded, ports: Vec::new() }
    }
}

impl Programs for Near {
    fn rank_count(&self) -> u32 {
        self.ranks
    }

    fn program(&self, rank: u32) -> RankProgram {
        let share = self.message.div_ceil(self.blocks.into()).max(1);
        let (mut ports, mut blocks) = (Vec::new(), Vec::new());
        for index in 0..self.blocks {
            let mut block = Block::default();
            copy(&mut block.ops, share);
            let mut waits = Vec::new();
            for nth in 1..self.ranks {
                let peer = (rank + nth) % self.ranks;
                let [out, back] = lanes(rank, peer, index, true);
                let place = block.ports.len() as u16;
                block.ports.extend([ports.len() as u32, ports.len() as u32 + 1]);
                ports.extend([out, back]);
                put(&mut block.ops, place, (0, share), false);
                wait_arrivals(&mut waits, place + 1, 1);
            }
            block.ops.extend(waits);
            blocks.push(block);
        }
        RankProgram { encoded: encode(&blocks), ports }
    }
}

impl Programs for Far {
    fn rank_count(&self) -> u32 {
        self.ranks
    }

    fn program(&self, rank: u32) -> RankProgram {
        let (first, base) = (rank / self.near * self.near, rank % self.near);
        // From the next node on, the same on every node; an empty message has its head.
        let peer = |nth: u32| {
            let (node, local) = (nth / self.near + 1, (base + nth) % self.near);
            (first + node * self.near) % self.ranks + local
        };
        let step = if self.one_of_each { self.near as usize } else { 1 };
        let peers: Vec<u32> = (0..self.ranks - self.near).step_by(step).map(peer).collect();
        let (mut ports, mut blocks) = (Vec::new(), Vec::new());
        for peers in peers.chunks(FAR_PEERS as usize) {
            let (mut block, mut waits) = (Block::default(), Vec::new());
            for peer in peers {
                let [out, back] = lanes(rank, *peer, 0, false);
                let place = block.ports.len() as u16;
                block.ports.extend([ports.len() as u32, ports.len() as u32 + 1]);
                ports.extend([out, back]);
                put(&mut block.ops, place, (0, self.message.max(1)), true);
                wait_arrivals(&mut waits, place + 1, 1);
                wait_completions(&mut waits, place, 1);
            }
            block.ops.extend(waits);
            blocks.push(block);
        }
        RankProgram { encoded: encode(&blocks), ports }
    }
}

/// The lanes between two ranks: this rank's ends.
fn lanes(rank: u32, peer: u32, index: u32, stores: bool) -> [Port; 2] {
    let lane = |from, to| Lane { from, to, index, stores };
    [Port { lane: lane(rank, peer), sends: true }, Port { lane: lane(peer, rank), sends: false }]
}

impl Player<'_> {
    fn play(&self, programs: &impl Programs, start: Start) -> Result<Outcome, PredictError> {
        let profile = self.scene.profile.clone();
        let launch = if start == Start::Running { Time::ZERO } else { profile.block.launch };
        // Profiles have calibrated the stagger to blocks of the executor, each of which has a
        // pipeline of its own. Here all blocks of a kernel start, and end, for one announcement.
        let block = BlockCosts { launch, stagger: Time::ZERO, ..profile.block };
        let profile = Profile { block, ..profile };
        let budget = Some(&self.scene.budget);
        let setup = Setup::new(&self.scene.machine, &profile, self.engine);
        Ok(simulate(Setup { ops: budget, ..setup }, programs)?)
    }

    fn part(
        &self,
        name: &'static str,
        programs: &impl Programs,
        start: Start,
    ) -> Result<Part, PredictError> {
        let outcome = self.play(programs, start)?;
        let limit = outcome.limit(None, &self.scene.machine);
        Ok(Part { name, time: outcome.end, is_beside: false, limit: limit.name })
    }

    /// Blocks for so many warps' work.
    fn blocks(&self, items: f64) -> u32 {
        (items / f64::from(WARPS)).ceil().clamp(1.0, BLOCKS_MAX.into()) as u32
    }

    /// All rows of a rank's output.
    fn all_rows(&self) -> f64 {
        self.load.returns * f64::from(self.load.ranks)
    }

    pub fn dispatch(&self) -> Result<Vec<Part>, PredictError> {
        let mut parts = vec![self.route()];
        let choices = f64::from(self.load.tokens) * f64::from(self.load.top_k);
        self.send(Way::Dispatch, self.blocks(choices), &mut parts)?;
        if self.load.is_relayed() {
            // One more kernel waits behind it.
            let rows = self.load.node_rows * f64::from(self.load.nodes - 1);
            let message = u64::from(self.load.nodes - 1) * self.load.message(Way::Dispatch);
            parts.push(self.stores("relayed rows", message, self.blocks(rows))?);
        }
        let bytes = u64::from(self.load.ranks) * self.load.output();
        parts.push(self.local("rows to their places", bytes, self.blocks(self.all_rows()))?);
        Ok(parts)
    }

    pub fn combine(&self) -> Result<Vec<Part>, PredictError> {
        if self.load.is_relayed() {
            return self.relayed_combine();
        }
        let mut parts = Vec::new();
        self.send(Way::Combine, self.blocks(self.all_rows()), &mut parts)?;
        let bytes = u64::from(self.load.ranks) * self.load.message(Way::Combine);
        parts.push(self.local("additions", bytes, BLOCKS_MAX)?);
        Ok(parts)
    }

    /// Rows are stored to their ranks or to relays; these add them, engines take the sums back, and
    /// all is added.
    fn relayed_combine(&self) -> Result<Vec<Part>, PredictError> {
        let &Load { ranks, near, nodes, .. } = self.load;
        let (message, others) = (self.load.message(Way::Combine), u64::from(nodes - 1));
        let node_message = self.load.node_message(Way::Combine);
        let stored = u64::from(nodes) * message;
        let gathered = u64::from(near) * others * message;
        let far = Far { ranks, near, message: node_message, one_of_each: true };
        let mut engines = self.part("engines", &far, Start::Running)?;
        engines.time += self.scene.profile.block.launch;
        let added = u64::from(near) * message + others * node_message;
        Ok(vec![
            self.stores("stores", stored, self.blocks(self.all_rows()))?,
            self.local("additions at relays", gathered, BLOCKS_MAX)?,
            engines,
            self.local("additions", added, BLOCKS_MAX)?,
        ])
    }

    /// A kernel that stores so many bytes to each rank of the node, and one behind it that waits.
    fn stores(&self, name: &'static str, message: u64, blocks: u32) -> Result<Part, PredictError> {
        let near = Near { ranks: self.load.near, blocks, message };
        let stores = self.part(name, &near, Start::Launch)?;
        let time = stores.time + self.scene.profile.block.launch;
        Ok(Part { time, ..stores })
    }

    /// A warp for each bucket looks at 32 tokens at a time.
    fn route(&self) -> Part {
        let costs = self.scene.profile.block;
        let buckets = self.load.buckets.div_ceil(WARPS * BLOCKS_MAX);
        let looks = u64::from(buckets) * u64::from(self.load.tokens.div_ceil(32));
        let time = costs.launch + costs.op.times(looks);
        Part { name: "route", time, is_beside: false, limit: "latency".into() }
    }

    /// What engines take is written first; while they move it, the rest is stored.
    fn send(&self, way: Way, blocks: u32, parts: &mut Vec<Part>) -> Result<(), PredictError> {
        let &Load { ranks, near, nodes, .. } = self.load;
        let message = self.load.message(way);
        let one_of_each = self.load.is_relayed();
        let far_message = if one_of_each { self.load.node_message(way) } else { message };
        let far_peers = if one_of_each { nodes - 1 } else { ranks - near };
        let far_bytes = u64::from(far_peers) * far_message;
        let mut start = Start::Launch;
        if far_bytes > 0 {
            parts.push(self.local("rows for engines", far_bytes, blocks)?);
            start = Start::Running;
            let far = Far { ranks, near, message: far_message, one_of_each };
            parts.push(self.part("engines", &far, start)?);
        }
        let stores = self.part("stores", &Near { ranks: near, blocks, message }, start)?;
        // Behind this kernel comes the one that waits.
        let time = stores.time + self.scene.profile.block.launch;
        parts.push(Part { time, is_beside: far_bytes > 0, ..stores });
        Ok(())
    }

    /// A kernel that moves so many bytes in each GPU's memory.
    fn local(&self, name: &'static str, bytes: u64, blocks: u32) -> Result<Part, PredictError> {
        self.part(name, &Local { ranks: 1, blocks, bytes }, Start::Launch)
    }
}
