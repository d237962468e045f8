//! Memory: device, pinned, managed, shared with other processes; what a pointer is.

use crate::call::{In, Out, Stream, runtime_calls, stream};
use crate::driver::{self, IpcHandle};
use crate::error::{INVALID_VALUE, Outcome};
use crate::{Interface, interface};
use std::ffi::{c_int, c_uint};

/// `cudaPitchedPtr`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Pitched {
    pub address: u64,
    pub pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// `cudaExtent`
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Extent {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// `cudaMemLocation`, by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// `cudaPointerAttributes`. Version 13 has reserved words behind it, which it leaves alone.
#[repr(C)]
struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: u64,
    host_pointer: u64,
}

/// `cudaMemoryTypeUnregistered`, `Host`, `Device`, `Managed`
const UNREGISTERED: c_int = 0;
const MANAGED: c_int = 3;
/// `cudaInvalidDeviceId`
const NO_DEVICE_ID: c_int = -2;
/// `cudaCpuDeviceId`, which is the driver's `CU_DEVICE_CPU`.
const CPU: c_int = -1;
/// Elements of pitched memory: the driver wants to know how wide, and 16 bytes suit all.
const ELEMENT_BYTES: c_uint = 16;

/// Allocates; nothing is a null pointer.
fn allocate(address: Out<u64>, bytes: usize) -> Outcome {
    if bytes == 0 { address.set(0) } else { driver::cuMemAlloc_v2(address.require()?, bytes) }
}

fn allocate_host(pointer: Out<u64>, bytes: usize, flags: c_uint) -> Outcome {
    if bytes == 0 {
        return pointer.set(0);
    }
    driver::cuMemHostAlloc(pointer.require()?, bytes, flags)
}

fn pitched(width: usize, height: usize) -> Outcome<(u64, usize)> {
    let (mut address, mut pitch) = (0, 0);
    if width > 0 && height > 0 {
        let (to, row) = (Out::to(&mut address), Out::to(&mut pitch));
        driver::cuMemAllocPitch_v2(to, row, width, height, ELEMENT_BYTES)?;
    }
    Ok((address, pitch))
}

/// Where a location of version 13 is, as a device's number.
fn device_of(location: Location) -> Outcome<c_int> {
    match location.kind {
        // cudaMemLocationTypeDevice
        1 => Ok(location.id),
        // Host, host NUMA node, current NUMA node.
        2..=4 => Ok(CPU),
        _ => Err(INVALID_VALUE),
    }
}

/// The second word of a location in a register: version 12 passes a device's number there.
fn location(word: u64) -> Outcome<c_int> {
    match interface() {
        Interface::V12 => Ok(word as c_int),
        Interface::V13 => {
            device_of(Location { kind: word as u32 as c_int, id: (word >> 32) as c_int })
        }
    }
}

fn pointer_attributes(pointer: u64) -> Outcome<PointerAttributes> {
    // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, IS_MANAGED, DEVICE_ORDINAL
    let attributes: [c_int; 5] = [2, 3, 4, 8, 9];
    let (mut kind, mut device_pointer, mut host_pointer) = (0u32, 0u64, 0u64);
    let (mut managed, mut device) = (0u32, NO_DEVICE_ID);
    let places = [
        (&raw mut kind) as u64,
        (&raw mut device_pointer) as u64,
        (&raw mut host_pointer) as u64,
        (&raw mut managed) as u64,
        (&raw mut device) as u64,
    ];
    let count = attributes.len() as c_uint;
    driver::cuPointerGetAttributes(count, In::of(&attributes[0]), In::of(&places[0]), pointer)?;
    let kind = match kind {
        0 => {
            let (kind, device_pointer, host_pointer) = (UNREGISTERED, 0, pointer);
            return Ok(PointerAttributes {
                kind,
                device: NO_DEVICE_ID,
                device_pointer,
                host_pointer,
            });
        }
        _ if managed & 0xff != 0 => MANAGED,
        kind => kind as c_int,
    };
    Ok(PointerAttributes { kind, device, device_pointer, host_pointer })
}

runtime_calls! {
    with device_call;

    fn cudaMalloc(address: Out<u64>, bytes: usize) {
        allocate(address, bytes)
    }

    fn cudaMallocHost(pointer: Out<u64>, bytes: usize) {
        allocate_host(pointer, bytes, 0)
    }

    fn cudaHostAlloc(pointer: Out<u64>, bytes: usize, flags: c_uint) {
        allocate_host(pointer, bytes, flags)
    }

    fn cudaMallocManaged(address: Out<u64>, bytes: usize, flags: c_uint) {
        driver::cuMemAllocManaged(address.require()?, bytes, flags)
    }

    fn cudaMallocPitch(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize) {
        pitch.require()?;
        address.require()?;
        let (memory, row) = pitched(width, height)?;
        pitch.set(row)?;
        address.set(memory)
    }

    fn cudaMalloc3D(to: Out<Pitched>, extent: Extent) {
        to.require()?;
        let Extent { width, height, depth } = extent;
        let rows = height.checked_mul(depth).ok_or(INVALID_VALUE)?;
        let (address, pitch) = pitched(width, rows)?;
        to.set(Pitched { address, pitch, width, height })
    }

    fn cudaFree(address: u64) {
        if address == 0 { Ok(()) } else { driver::cuMemFree_v2(address) }
    }

    fn cudaFreeHost(pointer: u64) {
        if pointer == 0 { Ok(()) } else { driver::cuMemFreeHost(pointer) }
    }

    fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) {
        driver::cuMemGetInfo_v2(free, total)
    }

    fn cudaHostRegister(pointer: u64, bytes: usize, flags: c_uint) {
        driver::cuMemHostRegister_v2(pointer, bytes, flags)
    }

    fn cudaHostUnregister(pointer: u64) {
        driver::cuMemHostUnregister(pointer)
    }

    fn cudaHostGetDevicePointer(address: Out<u64>, pointer: u64, flags: c_uint) {
        driver::cuMemHostGetDevicePointer_v2(address, pointer, flags)
    }

    fn cudaHostGetFlags(flags: Out<c_uint>, pointer: u64) {
        driver::cuMemHostGetFlags(flags, pointer)
    }

    fn cudaPointerGetAttributes(to: Out<PointerAttributes>, pointer: u64) {
        to.require()?;
        to.set(pointer_attributes(pointer)?)
    }

    fn cudaIpcGetMemHandle(handle: Out<IpcHandle>, address: u64) {
        driver::cuIpcGetMemHandle(handle, address)
    }

    fn cudaIpcOpenMemHandle(address: Out<u64>, handle: IpcHandle, flags: c_uint) {
        driver::cuIpcOpenMemHandle_v2(address, handle, flags)
    }

    fn cudaIpcCloseMemHandle(address: u64) {
        driver::cuIpcCloseMemHandle(address)
    }

    fn cudaMemAdvise(address: u64, bytes: usize, advice: c_int, place: u64) {
        driver::cuMemAdvise(address, bytes, advice, location(place)?)
    }

    fn cudaMemAdvise_v2(address: u64, bytes: usize, advice: c_int, place: Location) {
        driver::cuMemAdvise(address, bytes, advice, device_of(place)?)
    }

    #[twin(cudaMemPrefetchAsync_v2_ptsz)]
    fn cudaMemPrefetchAsync_v2(
        address: u64, bytes: usize, place: Location, _flags: c_uint, on: Stream,
    ) {
        driver::cuMemPrefetchAsync(address, bytes, device_of(place)?, stream(on))
    }

    #[twin(cudaMemPrefetchAsync_ptsz)]
    fn cudaMemPrefetchAsync(address: u64, bytes: usize, place: u64, fourth: u64, fifth: u64) {
        // Version 13 has flags where version 12 has the stream.
        let on = match interface() {
            Interface::V12 => fourth,
            Interface::V13 => fifth,
        };
        driver::cuMemPrefetchAsync(address, bytes, location(place)?, stream(on))
    }

    fn cudaMemRangeGetAttribute(
        data: u64, bytes: usize, attribute: c_int, address: u64, count: usize,
    ) {
        driver::cuMemRangeGetAttribute(data, bytes, attribute, address, count)
    }

    fn cudaMemRangeGetAttributes(
        data: u64, sizes: u64, attributes: u64, count: usize, address: u64, bytes: usize,
    ) {
        driver::cuMemRangeGetAttributes(data, sizes, attributes, count, address, bytes)
    }
}
