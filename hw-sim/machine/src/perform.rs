//! Commands at work: what each does when its turn has come, in a stream or in a graph.

use crate::client::{Client, Head};
use crate::command::{Command, Place, Progress};
use crate::context_state::ContextState;
use crate::copy::{self, Bulk};
use crate::error::Sticky;
use crate::scheduler::WaitFor;
use std::sync::Arc;

/// Remembers what takes the client's work so long.
fn later(client: &Arc<dyn Client>, head: Head) -> Progress {
    client.note_head(head);
    Progress::Later
}

/// Starts a command for a client, in a context.
pub(crate) fn perform(
    context: &Arc<ContextState>,
    client: &Arc<dyn Client>,
    command: Command,
) -> Progress {
    let machine = &context.machine;
    let dropped = context.has_failed();
    match command {
        Command::Record(event, number) => event.complete(number, machine.clock.now()),
        Command::Free(address) => {
            // The address was checked when the call was made; a second free was refused then.
            let _ = machine.memory.free(address);
        }
        Command::EndReserved(reservation) => reservation.end(),
        Command::HostCall(call) => {
            let step = later(client, Head::CallsHost);
            let (client, context) = (Arc::clone(client), Arc::clone(context));
            machine.callbacks.call(Box::new(move || {
                call(context.check());
                client.head_done();
            }));
            return step;
        }
        // A graph drops its commands by itself: its events are recorded in any case.
        Command::Graph(task) => {
            let step = later(client, Head::RunsGraph);
            if task.start(client) == Progress::Later {
                return step;
            }
        }
        _ if dropped => {}
        Command::BeginReserved(reservation) => {
            if let Err(error) = reservation.begin() {
                client.fail_copy(&error);
            }
        }
        Command::Bulk(bulk) => return start_bulk(context, client, bulk),
        Command::Copy2d(transfer) => {
            if let Err(error) = copy::rows(&machine.memory, &transfer) {
                client.fail_copy(&error);
            }
        }
        Command::Staged { destination, bytes } => {
            if let Err(error) = copy::staged(&machine.memory, destination, &bytes) {
                client.fail_copy(&error);
            }
        }
        Command::Kernel(run) => {
            let step = later(client, Head::Runs);
            machine.scheduler.start(run);
            return step;
        }
        Command::WaitEvent(event, number) => {
            let step = later(client, Head::WaitsForEvent);
            if !event.complete_or_notify(number, Arc::clone(client)) {
                return step;
            }
        }
        Command::WaitStream(other, count) => {
            let step = later(client, Head::WaitsForStream);
            if !other.completed_or_notify(count, Arc::clone(client)) {
                return step;
            }
        }
        Command::WaitValue(wait) => {
            if !wait.is_met(&machine.memory) {
                let step = later(client, Head::WaitsForWord);
                machine.scheduler.poll(WaitFor::Word(wait), Arc::clone(client));
                return step;
            }
        }
        Command::Until(time) => {
            let step = later(client, Head::Copies);
            machine.scheduler.poll(WaitFor::Time(time), Arc::clone(client));
            return step;
        }
        // Taken out by the stream; none is inside of another.
        Command::Placed(..) => {}
        Command::WriteValue(write) => {
            let lost = machine.loses(context.gpu, write.address);
            if !lost && let Err(error) = write.run(&machine.memory) {
                client.fail_copy(&error);
            }
        }
    }
    Progress::Done
}

fn start_bulk(context: &ContextState, client: &Arc<dyn Client>, bulk: Bulk) -> Progress {
    let machine = &context.machine;
    let mut local = None;
    if machine.has_odd_copies {
        if machine.loses_copy(&bulk) {
            return Progress::Done;
        }
        local = machine.local_copy(&bulk);
    }
    if bulk.bytes > copy::INLINE_BYTES_MAX || local.is_some() {
        let step = later(client, Head::Copies);
        machine.scheduler.bulk(bulk, Arc::clone(client), local);
        return step;
    }
    if let Err(error) = bulk.run(&machine.memory, 0, bulk.bytes) {
        client.fail_copy(&error);
    }
    Progress::Done
}

impl Place for ContextState {
    fn context(&self) -> (u64, usize) {
        (self.id, self.gpu)
    }

    fn perform(self: Arc<Self>, client: &Arc<dyn Client>, command: Command) -> Progress {
        perform(&self, client, command)
    }

    fn resume(&self, client: Arc<dyn Client>) {
        self.machine.scheduler.resume_stream(client);
    }

    fn has_failed(&self) -> bool {
        Self::has_failed(self)
    }

    fn fail(&self, reason: Sticky) {
        Self::fail(self, reason);
    }

    fn next_grid_id(&self) -> u64 {
        self.machine.next_grid_id()
    }
}
