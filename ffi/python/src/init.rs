//! How ranks are made: all in one process, by an id, or as a launcher says.

use crate::errors::{self, exception};
use crate::rank::Rank;
use crate::wait::interruptible;
use cudarc::driver::CudaContext;
use pyo3::prelude::*;
use ringdove::bootstrap::{Launch, Root};
use ringdove::{Communicator, Settings, UniqueId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

fn settings(py: Python<'_>) -> PyResult<Settings> {
    Settings::from_env().map_err(|error| exception(py, &error))
}

/// How many GPUs this process sees.
#[pyfunction]
pub fn device_count(py: Python<'_>) -> PyResult<usize> {
    ringdove::device_count().map_err(|error| exception(py, &error))
}

/// Makes a GPU the current one of this thread, as the CUDA runtime does, until another one is.
#[pyfunction]
pub fn set_device(py: Python<'_>, device: usize) -> PyResult<()> {
    /// Memory and kernels of a context end with it, and a program that has no other library holds
    /// none.
    static KEPT: Mutex<BTreeMap<usize, Arc<CudaContext>>> = Mutex::new(BTreeMap::new());
    let set = || -> ringdove::Result<()> {
        // It is current on this thread from here on.
        let context = ringdove::open_device(device)?;
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).entry(device).or_insert(context);
        Ok(())
    };
    py.detach(set).map_err(|error| exception(py, &error))
}

/// One rank for each of `devices`, all of this process.
#[pyfunction]
pub fn init_all(py: Python<'_>, devices: Vec<usize>) -> PyResult<Vec<Rank>> {
    let settings = settings(py)?;
    let init = move || {
        let contexts = devices.into_iter().map(ringdove::open_device);
        let contexts = contexts.collect::<ringdove::Result<Vec<_>>>()?;
        let ranks = Communicator::init_all(&contexts, &settings)?;
        ranks.into_iter().map(Rank::new).collect()
    };
    interruptible(py, init, || ())
}

/// A name under which ranks of several processes meet. The process that makes it serves them.
#[pyfunction]
pub fn unique_id(py: Python<'_>) -> PyResult<Vec<u8>> {
    let settings = settings(py)?;
    let root = Root::open(&settings).map_err(|error| exception(py, &error))?;
    let id = root.id();
    root.detach();
    Ok(id.as_bytes().to_vec())
}

/// Rank `rank` of `size`, on GPU `device`; all pass the same id.
#[pyfunction]
pub fn init_rank(py: Python<'_>, id: &[u8], rank: u32, size: u32, device: usize) -> PyResult<Rank> {
    let Ok(bytes) = <[u8; UniqueId::BYTES]>::try_from(id) else {
        let expected = format!("{} bytes of ringdove.unique_id()", UniqueId::BYTES);
        return Err(errors::argument(py, "unique_id", &expected, &id.len().to_string()));
    };
    let settings = settings(py)?;
    let init = move || {
        let context = ringdove::open_device(device)?;
        let id = UniqueId::from_bytes(bytes);
        Rank::new(Communicator::init_rank(&context, &id, rank, size, &settings)?)
    };
    interruptible(py, init, || ())
}

fn launch(py: Python<'_>) -> PyResult<Launch> {
    let launch = Launch::from_env().map_err(|error| exception(py, &error))?;
    launch.ok_or_else(|| {
        errors::argument(
            py,
            "environment",
            "variables of torchrun, mpirun, srun, or RINGDOVE_RANK and its like",
            "none of them",
        )
    })
}

/// The rank that a launcher has given this process, on GPU `device`, or on that of its number on
/// its node.
#[pyfunction]
#[pyo3(signature = (device=None))]
pub fn init_launched(py: Python<'_>, device: Option<usize>) -> PyResult<Rank> {
    let (launch, settings) = (launch(py)?, settings(py)?);
    let init = move || {
        let device = match device {
            Some(device) => device,
            // A process that sees some GPUs only sees its own ones.
            None => {
                let count = ringdove::device_count()?.max(1);
                launch.local_rank.unwrap_or(launch.rank) as usize % count
            }
        };
        let context = ringdove::open_device(device)?;
        let (id, root) = launch.rendezvous(&settings)?;
        let (rank, size) = (launch.rank, launch.rank_count);
        let joined = Communicator::init_rank(&context, &id, rank, size, &settings);
        root.iter().for_each(|root| root.wait_for_late(&joined));
        let communicator = joined?;
        root.into_iter().for_each(Root::detach);
        Rank::new(communicator)
    };
    interruptible(py, init, || ())
}
