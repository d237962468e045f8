//! One launch of a graph on its way.

use super::executable::Step;
use super::user_object::Held;
use super::work::Work;
use crate::client::{Client, Origin};
use crate::command::{Command, Place, Progress, Task};
use crate::error::Sticky;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A launch. Steps start when all before them have ended, those of different branches beside each
/// other.
pub(crate) struct GraphRun {
    steps: Arc<Vec<Step>>,
    /// The number of the record of each step that records an event or waits for one.
    numbers: Vec<u64>,
    /// The steps before each that have not ended.
    waits: Vec<AtomicUsize>,
    /// The steps that have not ended.
    left: AtomicUsize,
    /// Where steps run that are of no context of their own.
    place: Arc<dyn Place>,
    /// Who waits for the end.
    client: OnceLock<Arc<dyn Client>>,
    /// Objects that must not end before the launch.
    held: Arc<Held>,
}

/// A step on its way: the client of its commands.
struct NodeRun {
    run: Arc<GraphRun>,
    step: usize,
    place: Arc<dyn Place>,
    origin: Origin,
    commands: Mutex<VecDeque<Command>>,
    /// Graphs of a conditional node that have begun.
    rounds: AtomicUsize,
}

impl GraphRun {
    /// A launch of these steps. Its records of events are the latest from now on.
    pub(super) fn new(steps: Arc<Vec<Step>>, place: Arc<dyn Place>, held: Arc<Held>) -> Arc<Self> {
        let number = |step: &Step| match &step.work {
            Work::Record(records) => records.add(),
            Work::Wait(records) => records.latest(),
            _ => 0,
        };
        let numbers = steps.iter().map(number).collect();
        let waits = steps.iter().map(|step| AtomicUsize::new(step.waits)).collect();
        let left = AtomicUsize::new(steps.len());
        Arc::new(Self { numbers, waits, left, steps, place, client: OnceLock::new(), held })
    }

    /// Starts steps, and those that can start when short ones among them have ended.
    fn start_all(self: &Arc<Self>, mut ready: Vec<usize>) {
        while let Some(step) = ready.pop() {
            if let Some(node) = NodeRun::start(self, step)
                && node.go_through() == Progress::Later
            {
                continue;
            }
            self.ended(step, &mut ready);
        }
    }

    /// A step has ended: adds those that can start to `ready`.
    fn ended(&self, step: usize, ready: &mut Vec<usize>) {
        for &dependent in &self.steps[step].dependents {
            // AcqRel: who starts a step sees what all steps before it did.
            if self.waits[dependent].fetch_sub(1, Ordering::AcqRel) == 1 {
                ready.push(dependent);
            }
        }
        // AcqRel: who goes on after the graph sees what all steps did.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(client) = self.client.get()
        {
            Arc::clone(client).head_done();
        }
    }
}

impl Task for GraphRun {
    fn start(self: Arc<Self>, client: &Arc<dyn Client>) -> Progress {
        if self.steps.is_empty() {
            return Progress::Done;
        }
        // Once: a launch is one command of one stream.
        let _ = self.client.set(Arc::clone(client));
        for step in self.steps.iter() {
            if let Work::Conditional(conditional) = &step.work
                && let Err(error) = conditional.condition.begin()
            {
                client.fail_copy(&error);
            }
        }
        let first = (0..self.steps.len()).filter(|&step| self.steps[step].waits == 0);
        let mut first: Vec<usize> = first.collect();
        // The earliest is taken from the end.
        first.reverse();
        self.start_all(first);
        Progress::Later
    }
}

impl NodeRun {
    /// A step with its commands; none if it has none.
    fn start(run: &Arc<GraphRun>, index: usize) -> Option<Arc<Self>> {
        let step = &run.steps[index];
        if !step.enabled {
            return None;
        }
        let place = match &step.work {
            Work::Kernel(launch) => Arc::clone(&launch.origin.place),
            _ => Arc::clone(&run.place),
        };
        let commands: VecDeque<Command> = step.work.commands(run.numbers[index]).into();
        let is_made_later = matches!(step.work, Work::Kernel(_) | Work::Conditional(_));
        if commands.is_empty() && !is_made_later {
            return None;
        }
        let (context, gpu) = place.context();
        let base = run.client.get()?.origin();
        let origin = Origin { context, gpu, ..base };
        let (commands, rounds) = (Mutex::new(commands), AtomicUsize::new(0));
        let run = Arc::clone(run);
        let node = Arc::new(Self { run, step: index, place, origin, commands, rounds });
        let step = &node.run.steps[index];
        if let Work::Kernel(launch) = &step.work {
            let workspace = step.workspace.as_ref().map_or(0, |workspace| workspace.address);
            let kernel = launch.run(node.clone(), workspace);
            node.push(Command::Kernel(Arc::new(kernel)));
        }
        Some(node)
    }

    fn push(&self, command: Command) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push_back(command);
    }

    /// Starts its commands, one after the other, until one takes longer.
    fn go_through(self: &Arc<Self>) -> Progress {
        let client: Arc<dyn Client> = self.clone();
        loop {
            let next = self.commands.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(command) = next.or_else(|| self.next_body()) else { return Progress::Done };
            let is_graph = matches!(command, Command::Graph(_));
            if Arc::clone(&self.place).perform(&client, command) == Progress::Later {
                return Progress::Later;
            }
            if is_graph {
                // An empty one: others have their turn before the condition is asked again.
                self.place.resume(client);
                return Progress::Later;
            }
        }
    }

    /// The graph of a conditional node that comes next.
    fn next_body(&self) -> Option<Command> {
        let step = &self.run.steps[self.step];
        let Work::Conditional(conditional) = &step.work else { return None };
        if self.place.has_failed() {
            return None;
        }
        // Relaxed: one thread at a time drives a node.
        let body = conditional.next(self.rounds.fetch_add(1, Ordering::Relaxed))?;
        let steps = Arc::clone(&step.bodies[body]);
        let (place, held) = (Arc::clone(&self.run.place), Arc::clone(&self.run.held));
        Some(Command::Graph(GraphRun::new(steps, place, held)))
    }

    /// Goes on with what comes after a command that has ended.
    fn advance(self: &Arc<Self>) {
        if self.go_through() == Progress::Done {
            let mut ready = Vec::new();
            self.run.ended(self.step, &mut ready);
            self.run.start_all(ready);
        }
    }
}

impl Client for NodeRun {
    fn origin(&self) -> Origin {
        self.origin
    }

    fn has_failed(&self) -> bool {
        self.place.has_failed()
    }

    fn fail(&self, reason: Sticky) {
        self.place.fail(reason);
    }

    fn head_done(self: Arc<Self>) {
        let place = Arc::clone(&self.place);
        place.resume(self);
    }

    fn resume(self: Arc<Self>) {
        self.advance();
    }

    fn go_on(self: Arc<Self>) {
        self.advance();
    }
}
