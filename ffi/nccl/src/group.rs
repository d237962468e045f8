//! Groups: what a thread calls between `ncclGroupStart` and the outermost `ncclGroupEnd` happens at
//! that end. A call outside of a group is a group of one.

use crate::abi::Status;
use crate::communicator::{Communicator, Handle, Join, Ready, lock};
use crate::result::{Failure, Result};
use crate::stream::Handle as Stream;
use crate::variables;
use ringdove::{CollectiveSpec, DataType};
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
    /// A rank joins the group of its color, whose handle goes to `target`.
    Split { ready: Arc<Ready>, color: Option<u32>, key: i32, target: *mut Handle },
    /// A call on a communicator that has joined.
    Call { ready: Arc<Ready>, call: Call, stream: Stream },
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
    let collected = GROUP.with_borrow_mut(|group| {
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
    })?;
    collected.map_or(Ok(Status::Success), run)
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
    let (mut joins, mut splits, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for job in jobs {
        match job {
            Job::Join { communicator, join, is_blocking } => {
                joins.push((communicator, join, is_blocking));
            }
            Job::Split { ready, color, key, target } => splits.push((ready, color, key, target)),
            Job::Call { ready, call, stream } => calls.push((ready, call, stream)),
        }
    }
    let status = join(joins)?;
    split(splits)?;
    enqueue(calls)?;
    Ok(status)
}

/// Lets all ranks join at once: each waits for the others.
fn join(joins: Vec<(Arc<Communicator>, Join, bool)>) -> Result<Status> {
    if joins.is_empty() {
        return Ok(Status::Success);
    }
    variables::start_log();
    let settings = variables::settings()?;
    let mut threads = Vec::new();
    let mut status = Status::Success;
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
    // All are waited for: a rank that fails ends the others, which say why.
    let ended: Vec<Result<()>> = threads.into_iter().map(end_of).collect();
    ended.into_iter().collect::<Result<()>>()?;
    Ok(status)
}

/// Lets all ranks join the groups of their colors at once: each waits for the others.
fn split(splits: Vec<(Arc<Ready>, Option<u32>, i32, *mut Handle)>) -> Result<()> {
    let threads = splits.into_iter().map(|(ready, color, key, target)| {
        let parent = ready.clone();
        let body = move || parent.ranks.split(color, key).map_err(Failure::from);
        (ready, begin("nccl split", body), target)
    });
    let threads: Vec<_> = threads.collect();
    // All are waited for, whatever becomes of one.
    let ended = threads.into_iter().map(|(ready, thread, target)| (ready, end_of(thread), target));
    let ended: Vec<_> = ended.collect();
    ended.into_iter().try_for_each(|(ready, ranks, target)| {
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

/// Enqueues the calls. One thread may drive several ranks, and a rank that is far ahead is held
/// back: so the first collective of all communicators, then the second, ...; at last the sends and
/// receives of each, together, for their order must not matter.
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
    while queues.iter().any(|queue| !queue.collectives.is_empty()) {
        for queue in &mut queues {
            if let Some((call, stream)) = queue.collectives.pop_front() {
                collective(&queue.ready, call, stream)?;
            }
        }
    }
    queues.iter().try_for_each(|queue| point_to_point(&queue.ready, &queue.point_to_point))
}

fn collective(ready: &Ready, call: Call, stream: Stream) -> Result<()> {
    let Call::Collective { spec, buffers, count } = call else {
        unreachable!("sends and receives are apart")
    };
    let (bridge, _turn) = (&ready.bridge, lock(&ready.turn));
    // SAFETY: NCCL's contract is the caller's: a stream of the communicator's device, and memory
    // that stays until the stream has passed the call.
    unsafe {
        bridge.enter(stream)?;
        ready.ranks.collective_raw(spec, buffers, count, bridge.stream())?;
        bridge.leave(stream)
    }
}

fn point_to_point(ready: &Ready, calls: &[(Call, Stream)]) -> Result<()> {
    if calls.is_empty() {
        return Ok(());
    }
    let mut streams: Vec<Stream> = Vec::new();
    let mut group = ready.ranks.group();
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
                Call::Collective { .. } => unreachable!("collectives are apart"),
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
