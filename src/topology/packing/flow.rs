//! Maximum flow: Dinic's algorithm, for many flows through one network that changes little.

use std::collections::VecDeque;

/// More than any flow.
pub(super) const UNBOUNDED: u64 = u64::MAX / 4;

/// Arcs in pairs: arc `2 n + 1` is the way back of arc `2 n`.
#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    arcs_of: Vec<Vec<u32>>,
    heads: Vec<u32>,
    capacities: Vec<u64>,
    residual: Vec<u64>,
    levels: Vec<u32>,
    next: Vec<u32>,
    queue: VecDeque<u32>,
}

const UNREACHED: u32 = u32::MAX;

impl Network {
    /// A network of so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self { arcs_of: vec![Vec::new(); nodes], ..Self::default() }
    }

    /// Adds a node.
    pub fn node(&mut self) -> usize {
        self.arcs_of.push(Vec::new());
        self.arcs_of.len() - 1
    }

    /// Adds an arc, and gives back its number.
    pub fn arc(&mut self, from: usize, to: usize, capacity: u64) -> usize {
        let arc = self.heads.len();
        for (tail, head, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.arcs_of[tail].push(self.heads.len() as u32);
            self.heads.push(head as u32);
            self.capacities.push(capacity);
        }
        arc
    }

    /// Gives an arc another capacity.
    pub fn set(&mut self, arc: usize, capacity: u64) {
        self.capacities[arc] = capacity;
    }

    /// What is added after this can be taken away again.
    pub fn mark(&self) -> (usize, usize) {
        (self.arcs_of.len(), self.heads.len())
    }

    /// Takes away what was added since `mark`.
    pub fn rewind(&mut self, (nodes, arcs): (usize, usize)) {
        for arc in (arcs..self.heads.len()).rev() {
            // Arc `arc` leaves the head of its way back, and was added there last.
            self.arcs_of[self.heads[arc ^ 1] as usize].pop();
        }
        self.heads.truncate(arcs);
        self.capacities.truncate(arcs);
        self.arcs_of.truncate(nodes);
    }

    /// The largest flow from `source` to `sink`, or `limit` if it is at least that.
    pub fn max_flow(&mut self, source: usize, sink: usize, limit: u64) -> u64 {
        self.residual.clone_from(&self.capacities);
        let mut flow = 0;
        while flow < limit && self.layer(source, sink) {
            self.next.clear();
            self.next.resize(self.arcs_of.len(), 0);
            loop {
                let more = self.push(source, sink, limit - flow);
                flow += more;
                if more == 0 || flow == limit {
                    break;
                }
            }
        }
        flow
    }

    /// After a flow that met no limit: on which side of the smallest cut is each node? True on that
    /// of the source.
    pub fn source_side(&self) -> impl Iterator<Item = bool> {
        self.levels.iter().map(|level| *level != UNREACHED)
    }

    fn layer(&mut self, source: usize, sink: usize) -> bool {
        self.levels.clear();
        self.levels.resize(self.arcs_of.len(), UNREACHED);
        self.levels[source] = 0;
        self.queue.clear();
        self.queue.push_back(source as u32);
        while let Some(node) = self.queue.pop_front() {
            for &arc in &self.arcs_of[node as usize] {
                let head = self.heads[arc as usize] as usize;
                if self.residual[arc as usize] > 0 && self.levels[head] == UNREACHED {
                    self.levels[head] = self.levels[node as usize] + 1;
                    if head == sink {
                        return true;
                    }
                    self.queue.push_back(head as u32);
                }
            }
        }
        false
    }

    /// Sends up to `limit` along the layers.
    fn push(&mut self, node: usize, sink: usize, limit: u64) -> u64 {
        if node == sink {
            return limit;
        }
        let mut sent = 0;
        while let Some(&arc) = self.arcs_of[node].get(self.next[node] as usize) {
            let arc = arc as usize;
            let head = self.heads[arc] as usize;
            if self.residual[arc] > 0 && self.levels[head] == self.levels[node].wrapping_add(1) {
                let more = self.push(head, sink, self.residual[arc].min(limit - sent));
                self.residual[arc] -= more;
                self.residual[arc ^ 1] += more;
                sent += more;
                if sent == limit {
                    return sent;
                }
            }
            self.next[node] += 1;
        }
        sent
    }
}
