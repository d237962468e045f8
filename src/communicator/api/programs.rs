//! What resident programs ask of a communicator.

use super::collective::CollectiveSpec;
use super::core::Communicator;
use crate::communicator::call::{self, Call, ResidentCalls};
use crate::error::Result;
use crate::gpu::DeviceMemory;
use crate::id::Registration;
use crate::plan::Collective;
use cudarc::driver::CudaStream;
use ringdove_kernels::element::{DataType, ReduceOp};
use std::sync::Arc;
use std::time::Duration;

/// A collective of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramCall {
    /// Which one.
    pub collective: Collective,
    /// Type of the elements.
    pub data_type: DataType,
    /// How they are combined, by collectives that do that.
    pub reduction: Option<ReduceOp>,
    /// Elements, as NCCL counts them.
    pub count: usize,
    /// Device addresses of input and output.
    pub buffers: [u64; 2],
}

impl ProgramCall {
    fn spec(&self) -> CollectiveSpec {
        let &Self { collective, data_type, reduction, .. } = self;
        CollectiveSpec { collective, data_type, reduction: reduction.map(Into::into) }
    }
}

impl Communicator {
    /// Prepares calls; all ranks make the same ones.
    pub(crate) fn prepare_program(
        &self,
        calls: &[ProgramCall],
        stream: &Arc<CudaStream>,
    ) -> Result<ResidentCalls> {
        let calls: Vec<Call> = calls
            .iter()
            .map(|call| Call { shape: call.spec().shape(call.count), buffers: call.buffers })
            .collect();
        call::resident_calls(&self.connected, &calls, stream)
    }

    /// Makes one of them as an ordinary call.
    pub(crate) fn call_of_program(
        &self,
        call: &ProgramCall,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        self.call_checked(call.spec(), call.count, call.buffers, stream)
    }

    /// Launches a program's kernel in the order of launches, or adds it to the graph that a capture
    /// of `stream` makes; see `Launcher::launch_other`.
    pub(crate) fn launch_program(
        &self,
        stream: &Arc<CudaStream>,
        launch: impl FnOnce(u64) -> Result<()>,
    ) -> Result<()> {
        let capture = call::capture(&self.connected, "a program", stream)?;
        self.connected.launcher().launch_other(stream, capture, launch)
    }

    /// A resident program takes the lanes, or gives them back.
    pub(crate) fn occupy(&self, is_occupied: bool) {
        self.connected.launcher().occupy(is_occupied);
    }

    /// Waits until all launches have ended; false after `limit`.
    pub(crate) fn wait_for_launches(&self, limit: Duration) -> bool {
        self.connected.launcher().wait(limit)
    }

    /// Registers the first bytes of a program's memory, which the communicator keeps from then on.
    pub(crate) fn register_program(
        &self,
        memory: &Arc<DeviceMemory>,
        bytes: u64,
    ) -> Result<Registration> {
        let registration = self.register_at(memory.address(), bytes)?;
        self.connected.state.memory.registered().keep(memory.clone());
        Ok(registration)
    }

    /// The device handle with one window; see [`Communicator::device_handle`].
    pub(crate) fn open_window(&self, window: Registration) -> Result<DeviceMemory> {
        call::device_handle(&self.connected, &[window], call::Rings::Anytime)
    }

    /// Device address of the `DeviceCommunicator`.
    pub(crate) fn device_communicator(&self) -> u64 {
        self.connected.state.memory.communicator()
    }

    /// How long a wait of the device may take.
    pub(crate) fn wait_timeout(&self) -> Duration {
        self.connected.settings.wait_timeout
    }
}
