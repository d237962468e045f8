//! Devices: which there are, which is a thread's own, limits, peers.

use crate::call::{In, Out, runtime_calls};
use crate::driver;
use crate::error::{INVALID_VALUE, NO_DEVICE, Outcome};
use crate::properties::{Layout, properties};
use crate::state;
use std::ffi::{c_char, c_int, c_uint};

/// `cudaDeviceScheduleMask`, and the flags that are always on or have no effect any more.
const FLAGS: c_uint = 0x1f;

fn attribute(value: Out<c_int>, attribute: c_int, device: c_int) -> Outcome {
    state::check_device(device)?;
    driver::cuDeviceGetAttribute(value, attribute, device)
}

runtime_calls! {
    with call;

    fn cudaGetDeviceCount(count: Out<c_int>) {
        count.require()?;
        let found = state::device_count();
        count.set(found.unwrap_or(0))?;
        if found? == 0 { Err(NO_DEVICE) } else { Ok(()) }
    }

    fn cudaSetDevice(device: c_int) {
        state::set_device(device)
    }

    fn cudaInitDevice(device: c_int, flags: c_uint, _options: c_uint) {
        state::check_device(device)?;
        if flags != 0 {
            driver::cuDevicePrimaryCtxSetFlags_v2(device, flags & FLAGS)?;
        }
        state::primary(device).map(drop)
    }

    fn cudaGetDevice(device: Out<c_int>) {
        device.require()?.set(state::device()?)
    }

    fn cudaDeviceReset() {
        state::reset()
    }

    fn cudaThreadExit() {
        state::reset()
    }

    fn cudaSetValidDevices(devices: In<c_int>, count: c_int) {
        // A preference for threads that choose none: the first of them is taken.
        match count {
            0 => Ok(()),
            _ => state::check_device(devices.get()?),
        }
    }

    fn cudaChooseDevice(device: Out<c_int>, _wanted: u64) {
        state::check_device(0)?;
        device.set(0)
    }

    fn cudaSetDeviceFlags(flags: c_uint) {
        if flags & !FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        driver::cuDevicePrimaryCtxSetFlags_v2(state::device()?, flags)
    }

    fn cudaGetDeviceFlags(flags: Out<c_uint>) {
        let mut active = 0;
        driver::cuDevicePrimaryCtxGetState(state::device()?, flags, Out::to(&mut active))
    }

    fn cudaDeviceGetAttribute(value: Out<c_int>, number: c_int, device: c_int) {
        attribute(value, number, device)
    }

    fn cudaGetDeviceProperties(to: Out<u8>, device: c_int) {
        properties(to, device, Layout::of_interface())
    }

    fn cudaGetDeviceProperties_v2(to: Out<u8>, device: c_int) {
        properties(to, device, Layout::V12)
    }

    fn cudaDeviceGetByPCIBusId(device: Out<c_int>, id: In<c_char>) {
        state::initialise()?;
        driver::cuDeviceGetByPCIBusId(device, id)
    }

    fn cudaDeviceGetPCIBusId(id: Out<c_char>, bytes: c_int, device: c_int) {
        state::check_device(device)?;
        driver::cuDeviceGetPCIBusId(id, bytes, device)
    }

    fn cudaDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        state::check_device(device)?;
        state::check_device(peer)?;
        driver::cuDeviceCanAccessPeer(can, device, peer)
    }

    fn cudaDeviceGetP2PAttribute(value: Out<c_int>, number: c_int, from: c_int, to: c_int) {
        state::check_device(from)?;
        state::check_device(to)?;
        driver::cuDeviceGetP2PAttribute(value, number, from, to)
    }
}

mod current {
    //! Calls on the device of the current context.

    use super::*;

    runtime_calls! {
        with device_call;

        fn cudaDeviceSynchronize() {
            driver::cuCtxSynchronize()
        }

        fn cudaThreadSynchronize() {
            driver::cuCtxSynchronize()
        }

        fn cudaDeviceGetLimit(value: Out<usize>, limit: c_int) {
            driver::cuCtxGetLimit(value, limit)
        }

        fn cudaThreadGetLimit(value: Out<usize>, limit: c_int) {
            driver::cuCtxGetLimit(value, limit)
        }

        fn cudaDeviceSetLimit(limit: c_int, value: usize) {
            driver::cuCtxSetLimit(limit, value)
        }

        fn cudaThreadSetLimit(limit: c_int, value: usize) {
            driver::cuCtxSetLimit(limit, value)
        }

        fn cudaDeviceGetCacheConfig(config: Out<c_int>) {
            driver::cuCtxGetCacheConfig(config)
        }

        fn cudaThreadGetCacheConfig(config: Out<c_int>) {
            driver::cuCtxGetCacheConfig(config)
        }

        fn cudaDeviceSetCacheConfig(config: c_int) {
            driver::cuCtxSetCacheConfig(config)
        }

        fn cudaThreadSetCacheConfig(config: c_int) {
            driver::cuCtxSetCacheConfig(config)
        }

        fn cudaDeviceGetSharedMemConfig(config: Out<c_int>) {
            driver::cuCtxGetSharedMemConfig(config)
        }

        fn cudaDeviceSetSharedMemConfig(config: c_int) {
            driver::cuCtxSetSharedMemConfig(config)
        }

        fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) {
            driver::cuCtxEnablePeerAccess(state::primary(peer)?, flags)
        }

        fn cudaDeviceDisablePeerAccess(peer: c_int) {
            driver::cuCtxDisablePeerAccess(state::primary(peer)?)
        }

        fn cudaDeviceFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) {
            driver::cuFlushGPUDirectRDMAWrites(target, scope)
        }

        fn cudaCtxResetPersistingL2Cache() {
            driver::cuCtxResetPersistingL2Cache()
        }
    }
}
