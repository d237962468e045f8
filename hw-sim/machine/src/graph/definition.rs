//! Graphs as programs make and change them.

use super::condition::Condition;
use super::user_object::{Held, UserObject};
use super::work::{NodeKind, Work};
use crate::error::{Error, Result};
use crate::memory::Reservation;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A node's number: never used twice, in whatever graph, and later for later nodes.
pub type NodeId = u64;

/// Two nodes of which the second comes after the first.
pub type Edge = (NodeId, NodeId);

/// Graphs within graphs, so deep at most.
const DEPTH_MAX: usize = 64;

/// A graph.
pub struct Graph {
    /// Never used twice.
    pub id: u64,
    /// It is part of a node, and goes with it.
    is_embedded: AtomicBool,
    /// A capture adds nodes to it.
    is_capturing: AtomicBool,
    state: Mutex<State>,
    /// The executable graph that was made of it last, if it has memory: there is one at a time.
    instance: Mutex<Weak<()>>,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<NodeId, Node>,
    held: Held,
    /// For conditional nodes of it.
    conditions: Vec<Arc<Condition>>,
}

/// A node.
#[derive(Clone)]
pub(super) struct Node {
    pub work: Work,
    pub after: Vec<NodeId>,
    /// The node of which it is a copy.
    origin: Option<NodeId>,
}

static NEXT_GRAPH: AtomicU64 = AtomicU64::new(1);
static NEXT_NODE: AtomicU64 = AtomicU64::new(1);

fn invalid<T>(words: impl Into<String>) -> Result<T> {
    Err(Error::InvalidValue(words.into()))
}

impl State {
    fn node(&self, node: NodeId) -> Result<&Node> {
        match self.nodes.get(&node) {
            Some(node) => Ok(node),
            None => invalid("the node is not of this graph"),
        }
    }

    /// Refuses nodes of elsewhere, and the same one twice.
    fn check(&self, nodes: &[NodeId]) -> Result<()> {
        let mut seen = BTreeSet::new();
        for &node in nodes {
            self.node(node)?;
            if !seen.insert(node) {
                return invalid("a dependency is given twice");
            }
        }
        Ok(())
    }

    /// Refuses a second end of the same memory, here or in another graph.
    fn check_free(&self, reservation: &Arc<Reservation>) -> Result<()> {
        let about = |node: &&Node| {
            node.work.reservation().is_some_and(|other| Arc::ptr_eq(other, reservation))
        };
        let here: Vec<_> = self.nodes.values().filter(about).collect();
        if here.iter().any(|node| node.work.kind() == NodeKind::Free) {
            return invalid("a node of the graph frees this memory already");
        }
        reservation.will_be_freed(!here.is_empty())
    }

    fn has_memory(&self) -> bool {
        self.nodes.values().any(|node| node.work.reservation().is_some())
    }

    /// Refuses to take nodes or edges out of graphs with memory.
    fn require_no_memory(&self) -> Result<()> {
        if self.has_memory() {
            return invalid("the graph allocates or frees memory: nothing of it can be taken out");
        }
        Ok(())
    }

    fn depth(&self) -> usize {
        let graphs = self.nodes.values().flat_map(|node| node.work.graphs());
        1 + graphs.map(|graph| graph.lock().depth()).max().unwrap_or(0)
    }

    /// Makes `work` this graph's own: a child becomes a copy.
    fn own(work: Work) -> Result<Work> {
        let Work::Child(graph) = work else { return Ok(work) };
        if graph.has_memory() {
            return invalid("a graph that allocates or frees memory cannot be a child");
        }
        if graph.lock().depth() >= DEPTH_MAX {
            let text = format!("graphs more than {DEPTH_MAX} deep within each other");
            return Err(Error::NotSupported(text));
        }
        Ok(Work::Child(graph.duplicate_within()))
    }
}

impl Graph {
    /// A graph without nodes.
    pub fn new() -> Arc<Self> {
        Self::with(State::default())
    }

    fn with(state: State) -> Arc<Self> {
        Arc::new(Self {
            id: NEXT_GRAPH.fetch_add(1, Ordering::Relaxed),
            is_embedded: AtomicBool::new(false),
            is_capturing: AtomicBool::new(false),
            state: Mutex::new(state),
            instance: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A graph without nodes that is part of a node.
    pub fn new_within() -> Arc<Self> {
        let graph = Self::new();
        graph.is_embedded.store(true, Ordering::Relaxed);
        graph
    }

    /// Takes a condition for its conditional nodes.
    pub fn add_condition(&self, condition: Arc<Condition>) {
        self.lock().conditions.push(condition);
    }

    /// That of a handle.
    pub fn condition(&self, handle: u64) -> Result<Arc<Condition>> {
        let state = self.lock();
        match state.conditions.iter().find(|condition| condition.handle() == handle) {
            Some(condition) => Ok(Arc::clone(condition)),
            None => invalid(format!("the graph has no condition {handle:#x}")),
        }
    }

    /// Is it part of a node of another graph?
    pub fn is_embedded(&self) -> bool {
        self.is_embedded.load(Ordering::Relaxed)
    }

    /// Does a capture add nodes to it?
    pub fn is_capturing(&self) -> bool {
        self.is_capturing.load(Ordering::Relaxed)
    }

    pub(crate) fn set_capturing(&self, capturing: bool) {
        // Relaxed: the nodes themselves are under the lock.
        self.is_capturing.store(capturing, Ordering::Relaxed);
    }

    /// Adds a node after others. A child graph is copied.
    pub fn add(&self, work: Work, after: &[NodeId]) -> Result<NodeId> {
        let work = State::own(work)?;
        let mut state = self.lock();
        state.check(after)?;
        if let Work::Free(reservation) = &work {
            state.check_free(reservation)?;
        }
        let number = NEXT_NODE.fetch_add(1, Ordering::Relaxed);
        let node = Node { work, after: after.to_vec(), origin: None };
        state.nodes.insert(number, node);
        Ok(number)
    }

    /// Takes a node out, with its edges.
    pub fn remove(&self, node: NodeId) -> Result<()> {
        let mut state = self.lock();
        state.node(node)?;
        state.require_no_memory()?;
        state.nodes.remove(&node);
        for other in state.nodes.values_mut() {
            other.after.retain(|before| *before != node);
        }
        Ok(())
    }

    /// Adds edges, all or none.
    pub fn connect(&self, edges: &[Edge]) -> Result<()> {
        let mut state = self.lock();
        let mut seen = BTreeSet::new();
        for &(from, to) in edges {
            state.node(from)?;
            if from == to {
                return invalid("a node cannot come after itself");
            }
            if state.node(to)?.after.contains(&from) || !seen.insert((from, to)) {
                return invalid("the dependency is there already");
            }
        }
        for (from, to) in edges {
            if let Some(node) = state.nodes.get_mut(to) {
                node.after.push(*from);
            }
        }
        Ok(())
    }

    /// Takes edges out, all or none.
    pub fn disconnect(&self, edges: &[Edge]) -> Result<()> {
        let mut state = self.lock();
        state.require_no_memory()?;
        let mut seen = BTreeSet::new();
        for &(from, to) in edges {
            state.node(from)?;
            if !state.node(to)?.after.contains(&from) || !seen.insert((from, to)) {
                return invalid("there is no such dependency");
            }
        }
        for (from, to) in edges {
            if let Some(node) = state.nodes.get_mut(to) {
                node.after.retain(|before| before != from);
            }
        }
        Ok(())
    }

    /// Its nodes, in the order in which they were made.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.lock().nodes.keys().copied().collect()
    }

    /// Those that come after none.
    pub fn roots(&self) -> Vec<NodeId> {
        let state = self.lock();
        let roots = state.nodes.iter().filter(|(_, node)| node.after.is_empty());
        roots.map(|(number, _)| *number).collect()
    }

    /// Its edges.
    pub fn edges(&self) -> Vec<Edge> {
        let state = self.lock();
        let edges = |(to, node): (&NodeId, &Node)| {
            node.after.iter().map(|from| (*from, *to)).collect::<Vec<_>>()
        };
        state.nodes.iter().flat_map(edges).collect()
    }

    /// The nodes before a node.
    pub fn dependencies(&self, node: NodeId) -> Result<Vec<NodeId>> {
        Ok(self.lock().node(node)?.after.clone())
    }

    /// The nodes right after a node.
    pub fn dependents(&self, node: NodeId) -> Result<Vec<NodeId>> {
        let state = self.lock();
        state.node(node)?;
        let after = state.nodes.iter().filter(|(_, other)| other.after.contains(&node));
        Ok(after.map(|(number, _)| *number).collect())
    }

    /// What a node does.
    pub fn work(&self, node: NodeId) -> Result<Work> {
        Ok(self.lock().node(node)?.work.clone())
    }

    /// Changes what a node does, but not its kind.
    pub fn set_work(&self, node: NodeId, work: Work) -> Result<()> {
        let work = State::own(work)?;
        let mut state = self.lock();
        let kind = state.node(node)?.work.kind();
        if matches!(kind, NodeKind::Allocate | NodeKind::Free) {
            return invalid("a node that allocates or frees memory cannot be changed");
        }
        if kind != work.kind() {
            return invalid(format!("{:?} parameters for a node of kind {kind:?}", work.kind()));
        }
        if let Some(node) = state.nodes.get_mut(&node) {
            node.work = work;
        }
        Ok(())
    }

    /// Do nodes of it allocate or free memory?
    pub fn has_memory(&self) -> bool {
        self.lock().has_memory()
    }

    /// Leave to make an executable graph of it: with memory, there is one at a time.
    pub(super) fn instance(&self) -> Result<Option<Arc<()>>> {
        if !self.has_memory() {
            return Ok(None);
        }
        let mut instance = self.instance.lock().unwrap_or_else(PoisonError::into_inner);
        if instance.strong_count() > 0 {
            return invalid("a graph with memory can be instantiated once at a time");
        }
        let token = Arc::new(());
        *instance = Arc::downgrade(&token);
        Ok(Some(token))
    }

    /// A copy with nodes of its own, also of the graphs within.
    pub fn duplicate(&self) -> Arc<Self> {
        let state = self.lock();
        let new = |number: &NodeId| (*number, NEXT_NODE.fetch_add(1, Ordering::Relaxed));
        let numbers: BTreeMap<NodeId, NodeId> = state.nodes.keys().map(new).collect();
        let copy = |(number, node): (&NodeId, &Node)| {
            let work = match &node.work {
                Work::Child(graph) => Work::Child(graph.duplicate_within()),
                Work::Conditional(conditional) => Work::Conditional(conditional.duplicate()),
                work => work.clone(),
            };
            let after = node.after.iter().map(|before| numbers[before]).collect();
            (numbers[number], Node { work, after, origin: Some(*number) })
        };
        let nodes = state.nodes.iter().map(copy).collect();
        let (held, conditions) = (state.held.duplicate(), state.conditions.clone());
        Self::with(State { nodes, held, conditions })
    }

    /// A copy that is part of a node.
    pub(super) fn duplicate_within(&self) -> Arc<Self> {
        let own = self.duplicate();
        own.is_embedded.store(true, Ordering::Relaxed);
        own
    }

    /// The copy, in this graph, of a node of the graph that it was made from.
    pub fn copy_of(&self, original: NodeId) -> Option<NodeId> {
        let state = self.lock();
        let copy = state.nodes.iter().find(|(_, node)| node.origin == Some(original));
        copy.map(|(number, _)| *number)
    }

    /// The graphs within it, at every depth.
    pub fn embedded(&self) -> Vec<Arc<Self>> {
        let own: Vec<Arc<Self>> = {
            let state = self.lock();
            state.nodes.values().flat_map(|node| node.work.graphs()).cloned().collect()
        };
        let deeper: Vec<_> = own.iter().flat_map(|graph| graph.embedded()).collect();
        own.into_iter().chain(deeper).collect()
    }

    /// Those of `nodes` that are in it and that nothing comes after.
    pub(crate) fn last_of(&self, nodes: &BTreeSet<NodeId>) -> Vec<NodeId> {
        let state = self.lock();
        let before: BTreeSet<&NodeId> = state.nodes.values().flat_map(|node| &node.after).collect();
        let last = nodes.iter().filter(|node| !before.contains(node));
        last.filter(|node| state.nodes.contains_key(node)).copied().collect()
    }

    /// Takes references of an object over.
    pub fn hold(&self, object: &Arc<UserObject>, count: u64) {
        self.lock().held.add(object, count);
    }

    /// Gives references of an object up.
    pub fn let_go(&self, object: &Arc<UserObject>, count: u64) -> Result<()> {
        self.lock().held.take(object, count)?;
        // Outside of the lock: the object's end is the program's code.
        object.release(count).map(drop)
    }

    /// A graph of these nodes and references.
    pub(super) fn from_parts(works: Vec<Work>, edges: &[(usize, usize)], held: Held) -> Arc<Self> {
        let new = |_: &Work| NEXT_NODE.fetch_add(1, Ordering::Relaxed);
        let numbers: Vec<NodeId> = works.iter().map(new).collect();
        let node = |work| Node { work, after: Vec::new(), origin: None };
        let mut nodes: BTreeMap<NodeId, Node> =
            numbers.iter().copied().zip(works.into_iter().map(node)).collect();
        for (from, to) in edges {
            if let Some(node) = nodes.get_mut(&numbers[*to]) {
                node.after.push(numbers[*from]);
            }
        }
        Self::with(State { nodes, held, conditions: Vec::new() })
    }

    /// The references that it holds, once more.
    pub(super) fn held(&self) -> Held {
        self.lock().held.duplicate()
    }

    /// Its nodes so that each comes after those that it depends on, the earliest first; an error
    /// if they depend on each other in a circle.
    pub(super) fn in_order(&self) -> Result<Vec<(NodeId, Node)>> {
        let state = self.lock();
        let mut missing: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut next: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for (number, node) in &state.nodes {
            missing.insert(*number, node.after.len());
            node.after.iter().for_each(|before| next.entry(*before).or_default().push(*number));
        }
        let ready = |(number, missing): (&NodeId, &usize)| (*missing == 0).then_some(*number);
        let mut ready: BTreeSet<NodeId> = missing.iter().filter_map(ready).collect();
        let mut order = Vec::with_capacity(state.nodes.len());
        while let Some(number) = ready.pop_first() {
            for after in next.get(&number).into_iter().flatten() {
                if let Some(missing) = missing.get_mut(after) {
                    *missing -= 1;
                    if *missing == 0 {
                        ready.insert(*after);
                    }
                }
            }
            order.push((number, state.nodes[&number].clone()));
        }
        if order.len() < state.nodes.len() {
            return invalid("the graph's nodes depend on each other in a circle");
        }
        Ok(order)
    }

    /// The kind of a node.
    pub fn kind(&self, node: NodeId) -> Result<NodeKind> {
        Ok(self.lock().node(node)?.work.kind())
    }
}
