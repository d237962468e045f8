//! Numbers of agents, and who can ever know of whom.
//!
//! Blocks learn of each other by signals alone. So two blocks that no chain of lanes joins know
//! nothing of each other, nor of each other's engines, and no clock has to count what its owner
//! never learns. In a plan whose blocks work on their own parts, that makes clocks as many times
//! smaller as there are such parts. Agents that lanes join are numbered one after another: a clock
//! has their entries, and those of what came before the launch.

use std::ops::Range;

/// Which agents a clock counts: those before the launch, one for each rank, and a range of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) ranks: u32,
    pub(super) others: Range<u32>,
}

/// An agent, by what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agent {
    /// What ran on a rank before the launch.
    Before { rank: u32 },
    /// A block, by its place among all blocks.
    Block(usize),
    /// The engine on a lane.
    Engine { lane: usize },
}

/// The numbers of all agents.
#[derive(Debug)]
pub(super) struct Agents {
    /// By number; those before the launch are the first.
    all: Vec<Agent>,
    /// By place: the block's number, and what it may know of.
    pub(super) blocks: Vec<(u32, Scope)>,
    /// By lane: the number of the first of its engine's two agents, and what they may know of.
    pub(super) lanes: Vec<(u32, Scope)>,
    ranks: u32,
}

impl Agents {
    /// Of so many ranks and lanes; `uses` has, for each block, the lanes that it uses.
    pub(super) fn new(ranks: u32, lane_count: usize, uses: &[Vec<usize>]) -> Self {
        let mut agents = Self {
            all: (0..ranks).map(|rank| Agent::Before { rank }).collect(),
            blocks: vec![(0, Scope { ranks, others: 0..0 }); uses.len()],
            lanes: vec![(0, Scope { ranks, others: 0..0 }); lane_count],
            ranks,
        };
        for joined in joined(lane_count, uses) {
            agents.number(&joined);
        }
        agents
    }

    /// Numbers blocks and lanes that only know of each other.
    fn number(&mut self, joined: &[Agent]) {
        let first = self.all.len() as u32;
        for &agent in joined {
            let number = self.all.len() as u32;
            match agent {
                Agent::Before { .. } => continue,
                Agent::Block(place) => self.blocks[place].0 = number,
                Agent::Engine { lane } => {
                    self.lanes[lane].0 = number;
                    self.all.push(agent);
                }
            }
            self.all.push(agent);
        }
        let others = first..self.all.len() as u32;
        for agent in joined {
            let scope = match *agent {
                Agent::Before { .. } => continue,
                Agent::Block(place) => &mut self.blocks[place].1,
                Agent::Engine { lane } => &mut self.lanes[lane].1,
            };
            scope.others = others.clone();
        }
    }

    /// Of somebody who may know of all.
    pub(super) fn everybody(&self) -> Scope {
        Scope { ranks: self.ranks, others: self.ranks..self.all.len() as u32 }
    }

    /// Who has this number.
    pub(super) fn get(&self, number: u32) -> Agent {
        self.all[number as usize]
    }
}

/// Blocks and lanes, those together that lanes join.
fn joined(lane_count: usize, uses: &[Vec<usize>]) -> Vec<Vec<Agent>> {
    let mut parents: Vec<usize> = (0..lane_count).collect();
    let find = |parents: &mut Vec<usize>, mut lane: usize| {
        while parents[lane] != lane {
            parents[lane] = parents[parents[lane]];
            lane = parents[lane];
        }
        lane
    };
    for pair in uses.iter().flat_map(|lanes| lanes.windows(2)) {
        let (one, other) = (find(&mut parents, pair[0]), find(&mut parents, pair[1]));
        parents[one] = other;
    }
    let mut groups = vec![Vec::new(); lane_count];
    for lane in 0..lane_count {
        groups[find(&mut parents, lane)].push(Agent::Engine { lane });
    }
    for (place, lanes) in uses.iter().enumerate() {
        match lanes.first() {
            Some(&lane) => groups[find(&mut parents, lane)].push(Agent::Block(place)),
            None => groups.push(vec![Agent::Block(place)]),
        }
    }
    groups.retain(|group| !group.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a clock lacks an agent that its owner learns of, or two agents are one.
    #[test]
    fn agents_that_lanes_join_are_numbered_together() {
        // Blocks 0 and 2 share lane 1, 2 and 4 share lane 3; 1 is alone on lane 0; 3 has none.
        let uses = [vec![1], vec![0], vec![1, 3], vec![], vec![3, 2]];
        let agents = Agents::new(2, 4, &uses);
        let scope = |place: usize| agents.blocks[place].1.clone();
        assert_eq!((scope(0), scope(2)), (scope(2), scope(4)));
        assert!(scope(1) != scope(0) && scope(3) != scope(1));
        for (place, lanes) in uses.iter().enumerate() {
            let (number, scope) = &agents.blocks[place];
            assert!(scope.others.contains(number));
            assert_eq!(agents.get(*number), Agent::Block(place));
            for &lane in lanes {
                let (first, of_lane) = &agents.lanes[lane];
                assert_eq!(scope, of_lane);
                for number in [*first, first + 1] {
                    assert!(scope.others.contains(&number));
                    assert_eq!(agents.get(number), Agent::Engine { lane });
                }
            }
        }
        // Two ranks, five blocks, two agents of each lane.
        assert_eq!(agents.everybody(), Scope { ranks: 2, others: 2..15 });
        assert_eq!(agents.get(1), Agent::Before { rank: 1 });
    }
}
