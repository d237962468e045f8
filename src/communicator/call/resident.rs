//! Calls that a resident program makes again and again: agreed on, planned, connected and bound
//! once, as calls in a captured graph are. The program launches nothing: its own blocks run the
//! plans.

use super::request::Call;
use super::{agree, bind, check, connect, place, plan};
use crate::communicator::connect::ConnectedRank;
use crate::error::{Error, Result};
use cudarc::driver::CudaStream;
use ringdove_kernels::launch::CallArguments;
use std::sync::Arc;

/// What a program keeps of its calls: as of captured launches, for as long as the communicator
/// lives. The number stands for all programs; no capture of a driver has it.
const KEPT: Option<u64> = Some(u64::MAX);

/// Calls that a program may run by itself.
#[derive(Debug, Default)]
pub(crate) struct ResidentCalls {
    /// In their order.
    pub arguments: Vec<CallArguments>,
    /// Blocks that run them, at least.
    pub blocks: u32,
    /// Threads of each, at least.
    pub threads: u32,
}

/// Prepares collectives, on all ranks alike. The copies of their plans are enqueued on `stream`.
///
/// # Errors
/// Those of [`enqueue`](super::enqueue).
pub(in crate::communicator) fn resident_calls(
    rank: &ConnectedRank,
    calls: &[Call],
    stream: &Arc<CudaStream>,
) -> Result<ResidentCalls> {
    rank.check()?;
    let mut launcher = rank.launcher();
    launcher.check_free("a resident program")?;
    launcher.plans.check_kept_room()?;
    let mut found = ResidentCalls::default();
    for call in calls {
        if call.is_empty() || place::as_messages(rank, call).is_some() {
            let expected = "a collective of some elements that one plan runs";
            return Err(Error::argument("call of a program", expected, call.shape.count));
        }
        let checked = check::collective(rank, call, stream)?;
        let registered = check::registered(rank, &launcher, call, &checked)?;
        agree::collective(rank, &mut launcher, call, registered)?;
        let mut prepare = || {
            let request = call.request(rank.rank().0, rank.rank_count(), registered.is_some());
            let source = place::input(rank, &launcher, &request, registered, KEPT);
            let request = match source {
                None if request.may_send_from_input() => request.staged(),
                _ => request,
            };
            let prepared = plan::collective(rank, &launcher, &request, KEPT)?;
            let plan = launcher.plans.resident(prepared, stream, KEPT)?;
            let routes = connect::collective(rank, &mut launcher, registered, KEPT)?;
            let scratch = launcher.scratch(plan.shape.scratch_bytes);
            let mut arguments = bind::collective(call, registered, routes, source, &scratch);
            let reached = (registered, &plan.shape);
            bind::peers(rank, &mut launcher, &mut arguments, reached, (stream, KEPT))?;
            found.arguments.push(CallArguments { plan: plan.address, ..arguments });
            found.blocks = found.blocks.max(plan.shape.blocks);
            found.threads = found.threads.max(plan.shape.threads);
            Ok(())
        };
        // All ranks have agreed on the call and would wait for this one.
        prepare().map_err(|error| rank.fail(error))?;
    }
    launcher.expect_user_kernels();
    rank.engine().announce(launcher.announced());
    Ok(found)
}
