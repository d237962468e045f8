//! Stream capture.

use super::call::{In, Out, driver_calls};
use super::code::{INVALID_VALUE, NOT_SUPPORTED, Outcome, refuse};
use super::graph::{EdgeData, check_edges, forget, graph, graph_handle, node_handle, numbers};
use super::handles::Handle;
use super::state;
use hwsim_machine::driver::capture::{CaptureInfo, CaptureStatus, Mode, exchange_mode};
use hwsim_machine::graph::{Graph, NodeId};
use std::cell::RefCell;
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

fn begin(stream: Handle, mode: c_int, into: Option<(Arc<Graph>, Vec<NodeId>)>) -> Outcome {
    require()?;
    let mode = mode_of(mode)?;
    Ok(state::stream(stream)?.begin_capture(mode, into)?)
}

fn info(stream: Handle, status: Out<c_int>, id: Out<u64>) -> Outcome<Option<CaptureInfo>> {
    let stream = state::stream(stream)?;
    let (state, capture) = stream.capture_status();
    status.set(state as c_int)?;
    id.set_if(capture);
    Ok(stream.capture_info().filter(|_| state == CaptureStatus::Active))
}

thread_local! {
    /// What the last call of the thread pointed a program to: nodes, and their edges' data.
    static DEPENDENCIES: RefCell<(Vec<Handle>, Vec<EdgeData>)> = RefCell::default();
}

/// Where a program finds what its stream's next node comes after.
struct Asked {
    graph: Out<Handle>,
    dependencies: Out<u64>,
    edges: Out<u64>,
    count: Out<usize>,
}

impl Asked {
    fn answer(&self, info: Option<CaptureInfo>) -> Outcome {
        let driver = state::driver()?;
        let Some(info) = info else { return Ok(()) };
        if self.graph.address() != 0 {
            self.graph.set_if(graph_handle(driver, &info.graph));
        }
        let handle = |number: &NodeId| node_handle(driver, &info.graph, *number);
        let nodes: Vec<Handle> = info.after.iter().map(handle).collect();
        let edges = vec![EdgeData::default(); nodes.len()];
        self.count.set_if(nodes.len());
        let (nodes, edges) = DEPENDENCIES.with_borrow_mut(|kept| {
            *kept = (nodes, edges);
            (kept.0.as_ptr() as u64, kept.1.as_ptr() as u64)
        });
        self.dependencies.set_if(nodes);
        self.edges.set_if(edges);
        Ok(())
    }
}

fn update(stream: Handle, nodes: In<Handle>, count: usize, flags: c_uint) -> Outcome {
    let stream = state::stream(stream)?;
    let alone = match flags {
        0 => false,
        1 => true,
        _ => return refuse(INVALID_VALUE, format!("dependency flags {flags:#x}")),
    };
    let nodes = match stream.capture_info() {
        Some(info) => numbers(&info.graph, nodes, count)?,
        // The stream says what is wrong with it.
        None => Vec::new(),
    };
    Ok(stream.capture_after(&nodes, alone)?)
}

/// Ends a capture. Of one that failed no graph is left, unless it was the program's. A program
/// that has given the graph need not take it: NVIDIA's sample graphConditionalNodes does not.
fn end(stream: Handle, to: Out<Handle>) -> Outcome {
    require()?;
    let (driver, stream) = (state::driver()?, state::stream(stream)?);
    let before = stream.capture_info();
    if !before.as_ref().is_some_and(|info| info.is_programs) {
        to.require()?;
    }
    to.set_if(0);
    let ended = stream.end_capture();
    if let (Err(_), Some(info)) = (&ended, before)
        && !info.graph.is_capturing()
        && !info.is_programs
    {
        forget(driver, &info.graph);
    }
    to.set_if(graph_handle(driver, &ended?));
    Ok(())
}

driver_calls! {
    #[per_thread(cuStreamBeginCapture_ptsz)]
    fn cuStreamBeginCapture(stream: Handle) {
        begin(stream, Mode::Global as c_int, None)
    }

    #[per_thread(cuStreamBeginCapture_v2_ptsz)]
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) {
        begin(stream, mode, None)
    }

    #[per_thread(cuStreamBeginCaptureToGraph_ptsz)]
    fn cuStreamBeginCaptureToGraph(
        stream: Handle, into: Handle, nodes: In<Handle>, data: In<EdgeData>, count: usize,
        mode: c_int,
    ) {
        let into = graph(into)?;
        check_edges(data, count)?;
        if into.is_capturing() {
            return refuse(INVALID_VALUE, "a stream capture adds nodes to the graph already");
        }
        let after = numbers(&into, nodes, count)?;
        begin(stream, mode, Some((into, after)))
    }

    #[per_thread(cuStreamEndCapture_ptsz)]
    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        end(stream, graph)
    }

    #[per_thread(cuStreamIsCapturing_ptsz)]
    fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) {
        info(stream, status, Out::from_address(0)).map(drop)
    }

    #[per_thread(cuStreamGetCaptureInfo_ptsz)]
    fn cuStreamGetCaptureInfo(stream: Handle, status: Out<c_int>, id: Out<u64>) {
        info(stream, status, id).map(drop)
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
        let edges = Out::from_address(0);
        Asked { graph, dependencies, edges, count }.answer(info(stream, status, id)?)
    }

    #[per_thread(cuStreamGetCaptureInfo_v3_ptsz)]
    fn cuStreamGetCaptureInfo_v3(
        stream: Handle,
        status: Out<c_int>,
        id: Out<u64>,
        graph: Out<Handle>,
        dependencies: Out<u64>,
        edges: Out<u64>,
        count: Out<usize>,
    ) {
        Asked { graph, dependencies, edges, count }.answer(info(stream, status, id)?)
    }

    #[per_thread(cuStreamUpdateCaptureDependencies_ptsz)]
    fn cuStreamUpdateCaptureDependencies(
        stream: Handle, nodes: In<Handle>, count: usize, flags: c_uint,
    ) {
        update(stream, nodes, count, flags)
    }

    #[per_thread(cuStreamUpdateCaptureDependencies_v2_ptsz)]
    fn cuStreamUpdateCaptureDependencies_v2(
        stream: Handle, nodes: In<Handle>, data: In<EdgeData>, count: usize, flags: c_uint,
    ) {
        check_edges(data, count)?;
        update(stream, nodes, count, flags)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        let wanted = mode.get()?;
        let old = exchange_mode(mode_of(wanted as c_int)?);
        mode.set(old as c_uint)
    }
}
