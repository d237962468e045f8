//! Groups: what a thread calls between `ncclGroupStart` and the outermost `ncclGroupEnd` happens at
//! that end. A call outside of a group is a group of one.

use crate::abi::Status;
use crate::communicator::{Communicator, Handle, Join, Ready, lock};
use crate::memory::{self, Asked, Window};
use crate::result::{Failure, Result};
use crate::variables;
use ringdove::gpu::StreamHandle as Stream;
use ringdove::{CollectiveSpec, Communicator as Ranks, DataType};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// The group of one thread.
#[derive(Default)]
struct Group {
    depth: u32,
    jobs: Vec<Job>,
    /// The first call that was refused. Then nothing of the group happens.
    failed: Option<Failure>,
}

/// What was asked for.
pub enum Job {
    /// A rank joins.
    Join { communicator: Arc<Communicator>, join: Join, is_blocking: bool },
    /// A rank joins a communicator that is made of its own, whose handle goes to `target`.
    Derive { ready: Arc<Ready>, as_what: Derived, target: *mut Handle },
    /// Memory becomes a window.
    Window { communicator: Arc<Communicator>, ready: Arc<Ready>, asked: Asked },
    /// A window ends.
    EndOfWindow { ready: Arc<Ready>, window: Window },
    /// A call on a communicator that has joined.
    Call { ready: Arc<Ready>, call: Call, stream: Stream },
}

/// A communicator that is made of another one.
#[derive(Clone)]
pub enum Derived {
    /// Of the ranks with one color, in the order of their keys.
    Split { color: Option<u32>, key: i32 },
    /// Without these ranks.
    Shrunk(Vec<u32>),
    /// With new ranks, so many in all.
    Grown(u32),
}

/// Work for a stream.
#[derive(Clone, Copy)]
pub enum Call {
    Collective { spec: CollectiveSpec, buffers: [u64; 2], count: usize },
    Send { address: u64, count: usize, data_type: DataType, peer: u32 },
    Receive { address: u64, count: usize, data_type: DataType, peer: u32 },
}

/// Begins a group, or one inside of it.
pub fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Is the thread inside of a group?
pub fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

/// Ends a group; the outermost runs what was collected.
pub fn end() -> Result<Status> {
    leave()?.map_or(Ok(Status::Success), run)
}

/// Ends a group; the outermost runs what was collected, but for calls on communicators. Nothing of
/// the group happens where `check` refuses.
pub fn end_without_calls(check: impl FnOnce() -> Result<()>) -> Result<Status> {
    let Some(mut jobs) = leave()? else { return Ok(Status::Success) };
    check()?;
    jobs.retain(|job| !matches!(job, Job::Call { .. }));
    run(jobs)
}

/// Leaves a group. What the outermost has collected, if nothing of it was refused.
fn leave() -> Result<Option<Vec<Job>>> {
    GROUP.with_borrow_mut(|group| {
        match group.depth.checked_sub(1) {
            None => return Err(Failure::usage("ncclGroupEnd without ncclGroupStart")),
            Some(0) => {}
            Some(depth) => {
                group.depth = depth;
                return Ok(None);
            }
        }
        let Group { jobs, failed, .. } = std::mem::take(group);
        failed.map_or(Ok(Some(jobs)), Err)
    })
}

/// Adds what `job` makes, or runs it where no group is open. A refusal is kept for the group's end.
pub fn add(job: impl FnOnce() -> Result<Job>) -> Result<Status> {
    let job = job();
    if !is_open() {
        return run(vec![job?]);
    }
    GROUP.with_borrow_mut(|group| match job {
        Ok(job) => {
            group.jobs.push(job);
            Ok(Status::Success)
        }
        Err(failure) => {
            group.failed.get_or_insert_with(|| failure.clone());
            Err(failure)
        }
    })
}

fn run(jobs: Vec<Job>) -> Result<Status> {
    let (mut joins, mut derived, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    let (mut windows, mut ends) = (Vec::new(), Vec::new());
    for job in jobs {
        match job {
            Job::Join { communicator, join, is_blocking } => {
                joins.push((communicator, join, is_blocking));
            }
            Job::Derive { ready, as_what, target } => derived.push((ready, as_what, target)),
            Job::Window { communicator, ready, asked } => {
                windows.push((communicator, ready, asked));
            }
            Job::EndOfWindow { ready, window } => ends.push((ready, window)),
            Job::Call { ready, call, stream } => calls.push((ready, call, stream)),
        }
    }
    // Both begin before either is waited for: new ranks join while others grow.
    let (joining, status) = begin_to_join(joins)?;
    let deriving = begin_to_derive(derived);
    // All are waited for: a rank that fails ends the others, which say why.
    let joined: Vec<Result<()>> = joining.into_iter().map(end_of).collect();
    let derived = derive(deriving);
    joined.into_iter().collect::<Result<()>>()?;
    derived?;
    for (communicator, ready, asked) in windows {
        memory::register(&communicator, &ready, asked)?;
    }
    enqueue(calls)?;
    for (ready, Window { registration, .. }) in ends {
        registration.map_or(Ok(()), |registration| memory::deregister(&ready, registration))?;
    }
    Ok(status)
}

/// Lets all ranks join at once: each waits for the others. Gives the threads that are waited for.
fn begin_to_join(
    joins: Vec<(Arc<Communicator>, Join, bool)>,
) -> Result<(Vec<Result<Thread<()>>>, Status)> {
    let (mut threads, mut status) = (Vec::new(), Status::Success);
    if joins.is_empty() {
        return Ok((threads, status));
    }
    variables::start_log();
    let settings = variables::settings()?;
    for (communicator, join, is_blocking) in joins {
        let settings = settings.clone();
        let thread = begin("nccl join", move || communicator.join(&join, &settings));
        match is_blocking {
            true => threads.push(thread),
            false => {
                thread?;
                status = Status::InProgress;
            }
        }
    }
    Ok((threads, status))
}

/// A rank that joins another communicator than its own.
struct Deriving {
    ready: Arc<Ready>,
    thread: Result<Thread<Option<Ranks>>>,
    target: *mut Handle,
}

/// Lets all ranks join at once: each waits for the others.
fn begin_to_derive(jobs: Vec<(Arc<Ready>, Derived, *mut Handle)>) -> Vec<Deriving> {
    let begin = |(ready, as_what, target): (Arc<Ready>, Derived, _)| {
        let parent = ready.clone();
        let body = move || {
            let ranks = match as_what {
                Derived::Split { color, key } => parent.ranks.split(color, key),
                Derived::Shrunk(excluded) => parent.ranks.shrink(&excluded).map(Some),
                Derived::Grown(rank_count) => parent.ranks.grow(rank_count).map(Some),
            };
            ranks.map_err(Failure::from)
        };
        Deriving { ready, thread: begin("nccl derive", body), target }
    };
    jobs.into_iter().map(begin).collect()
}

/// Waits for all, whatever becomes of one, and hands out their handles.
fn derive(jobs: Vec<Deriving>) -> Result<()> {
    let end = |Deriving { ready, thread, target }| (ready, end_of(thread), target);
    let ended: Vec<_> = jobs.into_iter().map(end).collect();
    ended.into_iter().try_for_each(|(ready, ranks, target): (Arc<Ready>, _, *mut Handle)| {
        let handle = match ranks? {
            Some(ranks) => Communicator::joined_by(ranks, ready.ranks.context())?,
            None => std::ptr::null_mut(),
        };
        // SAFETY: the caller's place for a handle, until the end of the group: NCCL's contract.
        unsafe { target.write(handle) };
        Ok(())
    })
}

type Thread<T> = JoinHandle<Result<T>>;

/// Begins what one rank does while others do the same.
fn begin<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<Thread<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(|cause| Failure {
        status: Status::SystemError,
        message: format!("{name}: a thread for a rank: {cause}"),
    })
}

/// Waits for such a thread.
fn end_of<T>(thread: Result<Thread<T>>) -> Result<T> {
    thread?.join().unwrap_or_else(|_| {
        let message = "a rank's thread panicked".to_owned();
        Err(Failure { status: Status::InternalError, message })
    })
}

/// The calls on one communicator.
struct Queue {
    ready: Arc<Ready>,
    collectives: VecDeque<(Call, Stream)>,
    point_to_point: Vec<(Call, Stream)>,
}

/// Enqueues the calls: those of a communicator in groups, the collectives in their order, as many
/// with one launch as the library takes, and the sends and receives with the last of them,
/// together, for their order must not matter. One thread may drive several ranks, and a rank that
/// is far ahead is held back: so the first few calls of all communicators, then the next, ...
fn enqueue(calls: Vec<(Arc<Ready>, Call, Stream)>) -> Result<()> {
    let mut queues: Vec<Queue> = Vec::new();
    for (ready, call, stream) in calls {
        let known = queues.iter().position(|queue| Arc::ptr_eq(&queue.ready, &ready));
        let known = known.unwrap_or_else(|| {
            let (collectives, point_to_point) = (VecDeque::new(), Vec::new());
            queues.push(Queue { ready, collectives, point_to_point });
            queues.len() - 1
        });
        match call {
            Call::Collective { .. } => queues[known].collectives.push_back((call, stream)),
            _ => queues[known].point_to_point.push((call, stream)),
        }
    }
    for queue in &queues {
        let calls = queue.collectives.iter().chain(&queue.point_to_point);
        for &(_, stream) in calls {
            // SAFETY: the caller of NCCL names a stream of the communicator's device.
            unsafe { queue.ready.bridge.check(stream)? };
        }
    }
    loop {
        let mut is_done = true;
        for Queue { ready, collectives, point_to_point } in &mut queues {
            let count = collectives.len().min(ringdove::Group::LAUNCH_CALLS_MAX);
            let mut calls: Vec<_> = collectives.drain(..count).collect();
            match collectives.is_empty() {
                true => calls.append(point_to_point),
                false => is_done = false,
            }
            launch(ready, &calls)?;
        }
        if is_done {
            return Ok(());
        }
    }
}

/// Enqueues calls of one communicator together. With several streams it is as NCCL says: all of
/// them wait for all that was on any, and go on when all calls have ended.
fn launch(ready: &Ready, calls: &[(Call, Stream)]) -> Result<()> {
    if calls.is_empty() {
        return Ok(());
    }
    let mut streams: Vec<Stream> = Vec::new();
    let mut group = ready.ranks.group();
    // As in NCCL, where the result is not defined either.
    group.allow_overlap();
    for &(call, stream) in calls {
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        // SAFETY: memory stays until the stream has passed the group: NCCL's contract.
        unsafe {
            match call {
                Call::Send { address, count, data_type, peer } => {
                    group.send_raw(address, count, data_type, peer)?;
                }
                Call::Receive { address, count, data_type, peer } => {
                    group.receive_raw(address, count, data_type, peer)?;
                }
                Call::Collective { spec, buffers, count } => {
                    group.collective_raw(spec, buffers, count);
                }
            }
        }
    }
    let (bridge, _turn) = (&ready.bridge, lock(&ready.turn));
    for &stream in &streams {
        // SAFETY: a stream of the communicator's device: NCCL's contract.
        unsafe { bridge.enter(stream)? };
    }
    group.launch(bridge.stream())?;
    for &stream in &streams {
        // SAFETY: as above.
        unsafe { bridge.leave(stream)? };
    }
    Ok(())
}
