//! Graphs that can be launched: flat, in an order that respects their edges.

use super::definition::{Graph, NodeId};
use super::kernel::OwnMemory;
use super::run::GraphRun;
use super::user_object::Held;
use super::work::{NodeKind, Work};
use crate::command::Place;
use crate::error::{Error, Result};
use crate::memory::Reservation;
use crate::record::Records;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A node of an executable graph. A child graph is two of them, before and after its nodes.
#[derive(Clone)]
pub(super) struct Step {
    /// Its number in the graph from which it was made.
    node: NodeId,
    /// What that node is, whatever `work` says of a child.
    kind: NodeKind,
    pub work: Work,
    /// The steps right after it.
    pub dependents: Vec<usize>,
    /// How many steps are right before it.
    pub waits: usize,
    pub enabled: bool,
    /// Of a cooperative kernel.
    pub workspace: Option<Arc<OwnMemory>>,
    /// Those of the graphs of a conditional node.
    pub bodies: Vec<Arc<Vec<Step>>>,
}

/// A graph on its way to be flat.
#[derive(Default)]
struct Flat {
    steps: Vec<Step>,
    /// The first and the last step of each node.
    places: HashMap<NodeId, (usize, usize)>,
}

/// Why an executable graph cannot become another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateError {
    /// The other graph cannot be instantiated.
    Invalid,
    /// Nodes or edges came or went.
    Topology(Option<NodeId>),
    /// A node is of another kind.
    Kind(NodeId),
    /// A kernel is of another context.
    Context(NodeId),
    /// A node is about other memory.
    Memory(NodeId),
    /// There is no memory for what the other graph needs.
    NoMemory(NodeId),
}

/// A graph that can be launched.
pub struct Executable {
    /// Flags that it was made with, for its program.
    pub flags: u64,
    state: Mutex<State>,
    /// Its launches: each waits for the one before.
    pub(crate) launches: Arc<Records>,
    /// References that its launches need, too.
    held: Arc<Held>,
    /// Keeps others from being made of a graph with memory.
    _instance: Option<Arc<()>>,
}

struct State {
    steps: Arc<Vec<Step>>,
    places: HashMap<NodeId, (usize, usize)>,
}

impl Flat {
    fn of(graph: &Graph) -> Result<Self> {
        let mut flat = Self::default();
        flat.add(graph, None)?;
        Ok(flat)
    }

    fn push(&mut self, node: NodeId, kind: NodeKind, work: Work, before: &[usize]) -> usize {
        let index = self.steps.len();
        before.iter().for_each(|&step| self.steps[step].dependents.push(index));
        let (dependents, waits) = (Vec::new(), before.len());
        self.steps.push(Step {
            node,
            kind,
            work,
            dependents,
            waits,
            enabled: true,
            workspace: None,
            bodies: Vec::new(),
        });
        index
    }

    /// Adds a graph's nodes after a step.
    fn add(&mut self, graph: &Graph, entry: Option<usize>) -> Result<()> {
        for (number, node) in graph.in_order()? {
            let before: Vec<usize> = match entry {
                Some(entry) if node.after.is_empty() => vec![entry],
                _ => node.after.iter().map(|before| self.places[before].1).collect(),
            };
            self.add_node(number, node.work, &before)?;
        }
        Ok(())
    }

    fn add_node(&mut self, number: NodeId, work: Work, before: &[usize]) -> Result<()> {
        let Work::Child(child) = work else {
            let index = self.push(number, work.kind(), work, before);
            self.places.insert(number, (index, index));
            return Ok(());
        };
        let first = self.push(number, NodeKind::Child, Work::Empty, before);
        self.add(&child, Some(first))?;
        let end = self.steps.len();
        let leaves: Vec<usize> =
            (first..end).filter(|&step| self.steps[step].dependents.is_empty()).collect();
        let last = self.push(number, NodeKind::Empty, Work::Empty, &leaves);
        self.places.insert(number, (first, last));
        Ok(())
    }

    /// Gives cooperative kernels what they need.
    fn prepare(&mut self) -> std::result::Result<(), (NodeId, Error)> {
        self.steps.iter_mut().try_for_each(|step| {
            let node = step.node;
            step.set(step.work.clone()).map_err(|error| (node, error))?;
            step.bodies = bodies(&step.work).map_err(|error| (node, error))?;
            Ok(())
        })
    }
}

/// The steps of the graphs of a conditional node. CUDA admits there what a GPU does by itself.
fn bodies(work: &Work) -> Result<Vec<Arc<Vec<Step>>>> {
    let Work::Conditional(conditional) = work else { return Ok(Vec::new()) };
    let body = |graph: &Arc<Graph>| {
        let mut flat = Flat::of(graph)?;
        for step in &flat.steps {
            match step.work.kind() {
                NodeKind::Kernel | NodeKind::Copy | NodeKind::Fill | NodeKind::Empty => {}
                NodeKind::Conditional => {}
                kind => {
                    let text = format!("a node of kind {kind:?} in a conditional node");
                    return Err(Error::NotSupported(text));
                }
            }
        }
        flat.prepare().map_err(|(_, error)| error)?;
        Ok(Arc::new(flat.steps))
    };
    conditional.bodies.iter().map(body).collect()
}

impl Step {
    fn set(&mut self, work: Work) -> Result<()> {
        self.workspace = match &work {
            Work::Kernel(launch) => launch.workspace()?.map(Arc::new),
            _ => None,
        };
        self.work = work;
        Ok(())
    }
}

/// Compares two flat graphs, or two parts of them that begin at `offsets`.
fn compare(
    old: &[Step],
    new: &[Step],
    offsets: [usize; 2],
) -> std::result::Result<(), UpdateError> {
    if old.len() != new.len() {
        return Err(UpdateError::Topology(None));
    }
    let last = old.len().saturating_sub(1);
    for (index, (old, new)) in old.iter().zip(new).enumerate() {
        if old.kind != new.kind {
            return Err(UpdateError::Kind(new.node));
        }
        let relative = |step: &Step, offset: usize| -> Vec<usize> {
            step.dependents.iter().map(|dependent| dependent - offset).collect()
        };
        // What comes after a part is not the part's.
        let is_end = offsets != [0, 0] && index == last;
        if !is_end && relative(old, offsets[0]) != relative(new, offsets[1]) {
            return Err(UpdateError::Topology(Some(new.node)));
        }
        if let (Work::Kernel(old), Work::Kernel(launch)) = (&old.work, &new.work)
            && old.context() != launch.context()
        {
            return Err(UpdateError::Context(new.node));
        }
        if let (Some(old), Some(memory)) = (old.work.reservation(), new.work.reservation())
            && !Arc::ptr_eq(old, memory)
        {
            return Err(UpdateError::Memory(new.node));
        }
        if let (Work::Conditional(old), Work::Conditional(conditional)) = (&old.work, &new.work)
            && (old.kind, old.bodies.len()) != (conditional.kind, conditional.bodies.len())
        {
            return Err(UpdateError::Topology(Some(new.node)));
        }
    }
    Ok(())
}

impl Executable {
    /// Makes a graph executable. Later changes to the graph do not matter.
    pub fn new(graph: &Graph, flags: u64) -> Result<Arc<Self>> {
        let mut flat = Flat::of(graph)?;
        flat.prepare().map_err(|(_, error)| error)?;
        let mut held = graph.held();
        graph.embedded().iter().for_each(|graph| held.extend(graph.held()));
        let state = State { steps: Arc::new(flat.steps), places: flat.places };
        let (launches, held, state) = (Arc::default(), Arc::new(held), Mutex::new(state));
        let _instance = graph.instance()?;
        Ok(Arc::new(Self { flags, state, launches, held, _instance }))
    }

    /// Does it allocate or free memory?
    pub(crate) fn has_memory(&self) -> bool {
        self.lock().steps.iter().any(|step| step.work.reservation().is_some())
    }

    /// Notes, in the order of calls, what a launch does to the memory of graphs; gives what has to
    /// be freed before. An error if an allocation of an earlier launch is still held, unless
    /// launches free those, or if there is nothing to free.
    pub(crate) fn take_memory(&self, frees_first: bool) -> Result<Vec<Arc<Reservation>>> {
        let steps = Arc::clone(&self.lock().steps);
        let of = |kind: NodeKind| {
            let steps = steps.iter().filter(move |step| step.work.kind() == kind);
            steps.filter_map(|step| step.work.reservation()).collect::<Vec<_>>()
        };
        let (allocated, freed) = (of(NodeKind::Allocate), of(NodeKind::Free));
        let without = |these: &[&Arc<Reservation>], those: &[&Arc<Reservation>]| {
            let lacks = |one: &&&Arc<Reservation>| !those.iter().any(|o| Arc::ptr_eq(o, one));
            these.iter().filter(lacks).map(|one| Arc::clone(one)).collect::<Vec<_>>()
        };
        let (kept, others) = (without(&allocated, &freed), without(&freed, &allocated));
        if let Some(still) = kept.iter().find(|own| own.is_held() && !frees_first) {
            return Err(Error::InvalidValue(format!(
                "the memory at {:#x}, of an earlier launch of this graph, has not been freed",
                still.base
            )));
        }
        if let Some(gone) = others.iter().find(|other| !other.is_held()) {
            return gone.let_go().map(|_| Vec::new());
        }
        for other in &others {
            other.let_go()?;
        }
        let before = kept.iter().filter_map(|own| own.let_go().ok()).collect();
        kept.iter().for_each(Reservation::hold);
        Ok(before)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One launch, with a place for what belongs to no context of its own.
    pub(crate) fn launch(&self, place: Arc<dyn Place>) -> Arc<GraphRun> {
        let steps = Arc::clone(&self.lock().steps);
        GraphRun::new(steps, place, Arc::clone(&self.held))
    }

    /// Its steps as a graph of their own.
    pub fn to_graph(&self) -> Arc<Graph> {
        let steps = Arc::clone(&self.lock().steps);
        let work = |step: &Step| if step.enabled { step.work.clone() } else { Work::Empty };
        let edges = |(from, step): (usize, &Step)| {
            step.dependents.iter().map(move |to| (from, *to)).collect::<Vec<_>>()
        };
        let edges: Vec<_> = steps.iter().enumerate().flat_map(edges).collect();
        Graph::from_parts(steps.iter().map(work).collect(), &edges, self.held.duplicate())
    }

    /// Changes what a node does in later launches.
    pub fn set_work(&self, node: NodeId, work: Work) -> Result<()> {
        let state = &mut *self.lock();
        let (first, last) = state.place(node)?;
        let kind = state.steps[first].kind;
        if kind != work.kind() || work.reservation().is_some() {
            let text = format!("{:?} parameters for a node of kind {kind:?}", work.kind());
            return Err(Error::InvalidValue(text));
        }
        let Work::Child(child) = &work else {
            if let (Work::Kernel(old), Work::Kernel(new)) = (&state.steps[first].work, &work)
                && old.context() != new.context()
            {
                return Err(Error::InvalidValue("the kernel is of another context".into()));
            }
            return Arc::make_mut(&mut state.steps)[first].set(work);
        };
        let mut flat = Flat::default();
        // Before it so many empty steps that offsets differ from those of a whole graph.
        let before = flat.push(0, NodeKind::Empty, Work::Empty, &[]);
        flat.add_node(node, Work::Child(Arc::clone(child)), &[before])?;
        flat.prepare().map_err(|(_, error)| error)?;
        let new = &flat.steps[before + 1..];
        compare(&state.steps[first..=last], new, [first, before + 1])
            .map_err(|error| Error::InvalidValue(format!("the child graph differs: {error:?}")))?;
        let steps = &mut Arc::make_mut(&mut state.steps)[first..=last];
        for (step, new) in steps.iter_mut().zip(new) {
            step.work = new.work.clone();
            step.workspace = new.workspace.clone();
        }
        Ok(())
    }

    /// Does what another graph does, which must have the same nodes and edges.
    pub fn update(&self, graph: &Graph) -> std::result::Result<(), UpdateError> {
        let mut flat = Flat::of(graph).map_err(|_| UpdateError::Invalid)?;
        let state = &mut *self.lock();
        compare(&state.steps, &flat.steps, [0, 0])?;
        flat.prepare().map_err(|(node, _)| UpdateError::NoMemory(node))?;
        for (step, new) in state.steps.iter().zip(&flat.steps) {
            for (body, new) in step.bodies.iter().zip(&new.bodies) {
                compare(body, new, [0, 0])?;
            }
        }
        for (step, new) in Arc::make_mut(&mut state.steps).iter_mut().zip(flat.steps) {
            step.work = new.work;
            step.workspace = new.workspace;
            step.bodies = new.bodies;
        }
        Ok(())
    }

    /// Is a node launched?
    pub fn is_enabled(&self, node: NodeId) -> Result<bool> {
        let state = self.lock();
        let (first, _) = state.switchable(node)?;
        Ok(state.steps[first].enabled)
    }

    /// Later launches do, or do not, what a node does.
    pub fn enable(&self, node: NodeId, enabled: bool) -> Result<()> {
        let state = &mut *self.lock();
        let (first, _) = state.switchable(node)?;
        Arc::make_mut(&mut state.steps)[first].enabled = enabled;
        Ok(())
    }
}

impl State {
    fn place(&self, node: NodeId) -> Result<(usize, usize)> {
        let place = self.places.get(&node).copied();
        place.ok_or_else(|| Error::InvalidValue("the node is not of this graph".into()))
    }

    /// The place of a node that can be switched off.
    fn switchable(&self, node: NodeId) -> Result<(usize, usize)> {
        let place = self.place(node)?;
        match self.steps[place.0].kind {
            NodeKind::Kernel | NodeKind::Copy | NodeKind::Fill => Ok(place),
            kind => Err(Error::InvalidValue(format!("a node of kind {kind:?} is always enabled"))),
        }
    }
}
