//! Stream capture, and the graphs that it gives.

use super::call::{Out, driver_calls};
use super::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use super::handles::Handle;
use super::state;
use hwsim_machine::driver::capture::{Mode, exchange_mode};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// Refuses what only a driver with stream capture has.
fn require() -> Outcome {
    if state::driver()?.machine.description.driver.capture {
        return Ok(());
    }
    refuse(NOT_SUPPORTED, "stream capture: the driver's profile has `capture = \"off\"`")
}

fn mode_of(number: c_int) -> Outcome<Mode> {
    match u32::try_from(number).ok().and_then(Mode::from_number) {
        Some(mode) => Ok(mode),
        None => refuse(INVALID_VALUE, format!("capture mode {number}: expected 0 to 2")),
    }
}

fn info(stream: Handle, status: Out<c_int>, id: Out<u64>) -> Outcome {
    let (state, capture) = state::stream(stream)?.capture_status();
    status.set(state as c_int)?;
    id.set_if(capture);
    Ok(())
}

driver_calls! {
    #[per_thread(cuStreamBeginCapture_v2_ptsz)]
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) {
        require()?;
        let mode = mode_of(mode)?;
        Ok(state::stream(stream)?.begin_capture(mode)?)
    }

    #[per_thread(cuStreamEndCapture_ptsz)]
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        require()?;
        graph.require()?;
        let (driver, stream) = (state::driver()?, state::stream(stream)?);
        graph.set(0)?;
        graph.set(driver.graphs.add(Arc::new(stream.end_capture()?)))
    }

    #[per_thread(cuStreamIsCapturing_ptsz)]
    fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) {
        info(stream, status, Out::from_address(0))
    }

    #[per_thread(cuStreamGetCaptureInfo_ptsz)]
    fn cuStreamGetCaptureInfo(stream: Handle, status: Out<c_int>, id: Out<u64>) {
        info(stream, status, id)
    }

    #[per_thread(cuStreamGetCaptureInfo_v2_ptsz)]
    fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: Out<c_int>,
        id: Out<u64>,
        graph: Out<Handle>,
        dependencies: Out<u64>,
        count: Out<usize>,
    ) {
        // A graph under way has no handle, and its nodes have none.
        graph.set_if(0);
        dependencies.set_if(0);
        count.set_if(0);
        info(stream, status, id)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        let wanted = mode.get()?;
        let old = exchange_mode(mode_of(wanted as c_int)?);
        mode.set(old as c_uint)
    }

    fn cuGraphDestroy(graph: Handle) {
        state::driver()?.graphs.remove(graph).map(drop)
    }
}
