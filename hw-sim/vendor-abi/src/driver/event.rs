//! Events.

use super::call::{Out, driver_calls};
use super::code::{INVALID_VALUE, NOT_READY, Outcome, refuse};
use super::handles::Handle;
use super::peer::{IpcBytes, explain};
use super::{gate, state};
use hwsim_machine::Event;
use std::ffi::c_uint;

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_INTERPROCESS`
const INTERPROCESS: c_uint = 4;
/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`: a node of the graph that a capture
/// makes.
const EXTERNAL: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC` and the others.
const FLAGS: c_uint = 7;

fn destroy(event: Handle) -> Outcome {
    state::driver()?.events.remove(event).map(drop)
}

pub(super) fn elapsed(milliseconds: Out<f32>, start: Handle, end: Handle) -> Outcome {
    let driver = state::driver()?;
    let (start, end) = (driver.events.get(start)?, driver.events.get(end)?);
    end.context.check()?;
    milliseconds.set(end.elapsed_ms(&start)?)
}

fn record(event: Handle, stream: Handle) -> Outcome {
    let event = state::driver()?.events.get(event)?;
    Ok(event.record(&state::stream(stream)?)?)
}

/// Refuses to ask for an event of a capture, and otherwise what a capture forbids. Either way
/// captures that mind become invalid; but for such an event there is an error of its own.
fn check_capture(event: &Event) -> Outcome {
    let forbidden = gate::check_unsafe_call();
    event.refuse_if_captured()?;
    forbidden
}

driver_calls! {
    fn cuEventCreate(event: Out<Handle>, flags: c_uint) {
        let (driver, context) = state::current()?;
        event.require()?;
        let timing = flags & DISABLE_TIMING == 0;
        if flags & !FLAGS != 0 || (flags & INTERPROCESS != 0 && timing) {
            return refuse(INVALID_VALUE, format!("event flags {flags:#x}"));
        }
        let made = match flags & INTERPROCESS {
            0 => Event::new(context, timing),
            _ => Event::interprocess(context)?,
        };
        event.set(driver.events.add(made))
    }

    fn cuIpcGetEventHandle(handle: Out<IpcBytes>, event: Handle) {
        let event = state::driver()?.events.get(event)?;
        handle.require()?;
        handle.set(IpcBytes(event.export()?.to_bytes()))
    }

    fn cuIpcOpenEventHandle(event: Out<Handle>, handle: IpcBytes) {
        let (driver, context) = state::current()?;
        event.require()?;
        let handle = handle.decode()?;
        let opened = Event::open(context, &handle);
        event.set(driver.events.add(opened.inspect_err(|e| explain("cuIpcOpenEventHandle", e))?))
    }

    fn cuEventDestroy(event: Handle) { destroy(event) }
    fn cuEventDestroy_v2(event: Handle) { destroy(event) }

    #[per_thread(cuEventRecord_ptsz)]
    fn cuEventRecord(event: Handle, stream: Handle) {
        record(event, stream)
    }

    #[per_thread(cuEventRecordWithFlags_ptsz)]
    fn cuEventRecordWithFlags(
        event: Handle,
        stream: Handle,
        flags: c_uint,
    ) {
        match flags {
            0 => record(event, stream),
            EXTERNAL => {
                let (event, stream) =
                    (state::driver()?.events.get(event)?, state::stream(stream)?);
                Ok(event.record_in_graph(&stream)?)
            }
            _ => refuse(INVALID_VALUE, format!("record flags {flags:#x}")),
        }
    }

    fn cuEventQuery(event: Handle) {
        let event = state::driver()?.events.get(event)?;
        event.context.check()?;
        check_capture(&event)?;
        if event.is_complete() { Ok(()) } else { Err(NOT_READY.into()) }
    }

    fn cuEventSynchronize(event: Handle) {
        let event = state::driver()?.events.get(event)?;
        check_capture(&event)?;
        event.synchronize();
        Ok(event.context.check()?)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(milliseconds, start, end)
    }

    #[per_thread(cuStreamWaitEvent_ptsz)]
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) {
        let event = state::driver()?.events.get(event)?;
        let stream = state::stream(stream)?;
        match flags {
            0 => Ok(event.wait(&stream)?),
            EXTERNAL => Ok(event.wait_in_graph(&stream)?),
            _ => refuse(INVALID_VALUE, format!("wait flags {flags:#x}")),
        }
    }
}
