//! Queries of a device and its port.

use super::context::open_device;
use super::layout::{IbvContext, IbvDeviceAttr, IbvPortAttr};
use super::pointer::Target;
use hwsim_machine::adapter::PortState;
use hwsim_machine::adapter::device::{
    COMPLETIONS_MAX, MESSAGE_MAX, PIECES_MAX, READS_MAX, REQUESTS_MAX,
};
use hwsim_machine::description::LinkLayer;
use std::ffi::{c_int, c_void};

/// RNR NAKs, system GUID, port events, current state in changes, resizable shared receive queues;
/// memory windows, of type 2B too, and invalidation; XRC.
const CAPABILITIES: u32 =
    1 << 12 | 1 << 11 | 1 << 10 | 1 << 7 | 1 << 13 | 1 << 17 | 1 << 24 | 1 << 21 | 1 << 20;
/// The vendor's IEEE number: all ones is nobody's. The kernel's software adapter says so, too.
const VENDOR: u32 = 0xff_ffff;
/// The only kind of virtual adapter.
const PART: u32 = 1;
/// Atomics among those of this adapter (`IBV_ATOMIC_HCA`), as real adapters say. These here are the
/// host's processors' own; but UCX 1.13 sends messages in their place where an adapter says that.
const ATOMICS_OF_ADAPTER: u32 = 1;
/// Where `struct ibv_device_attr_ex` counts ports again.
const PORTS_EX_OFFSET: usize = 396;
/// Partitions of the port: the default one.
const PARTITIONS: u16 = 1;

/// `query_device_ex`.
pub(super) extern "C" fn query_device(
    context: Target<IbvContext>,
    _input: *const c_void,
    attributes: Target<IbvDeviceAttr>,
    size: usize,
) -> c_int {
    let device = &open_device(context).device;
    let guid = device.endpoint.guid().to_be();
    let mut firmware = [0; 64];
    let version = concat!(env!("CARGO_PKG_VERSION"), " (virtual)").as_bytes();
    firmware[..version.len()].copy_from_slice(version);
    let many = 1 << 20;
    let answer = IbvDeviceAttr {
        firmware,
        node_guid: guid,
        system_guid: guid,
        region_max: u64::MAX,
        page_sizes: 0xffff_f000,
        vendor: VENDOR,
        part: PART,
        hardware: 0,
        queue_pairs: 1 << 16,
        requests: REQUESTS_MAX as c_int,
        capabilities: CAPABILITIES,
        pieces: PIECES_MAX as c_int,
        read_pieces: PIECES_MAX as c_int,
        queues: many,
        completions: COMPLETIONS_MAX as c_int,
        regions: many,
        domains: many,
        peer_reads: READS_MAX as c_int,
        ee_reads: 0,
        all_peer_reads: many,
        reads: READS_MAX as c_int,
        ee_own_reads: 0,
        atomics: ATOMICS_OF_ADAPTER,
        ee: 0,
        read_domains: 0,
        windows: many,
        none: [0; 5],
        address_handles: many,
        none_either: [0; 2],
        srqs: many,
        srq_requests: REQUESTS_MAX as c_int,
        srq_pieces: PIECES_MAX as c_int,
        partitions: PARTITIONS,
        ack_delay: 16,
        ports: 1,
    };
    let own = size_of::<IbvDeviceAttr>();
    for offset in own..size {
        Target::<u8>::from_address(attributes.address() + offset as u64).set(0);
    }
    attributes.set(answer);
    if size >= PORTS_EX_OFFSET + 4 {
        Target::<u32>::from_address(attributes.address() + PORTS_EX_OFFSET as u64).set(1);
    }
    0
}

/// `query_port`.
pub(super) extern "C" fn query_port(
    context: Target<IbvContext>,
    port: u8,
    attributes: Target<IbvPortAttr>,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    let device = &open_device(context).device;
    let layer = device.description.link_layer;
    let infiniband = layer == LinkLayer::InfiniBand;
    let (width, speed) = rate(device.description.gb_per_s);
    let state = device.port_state();
    attributes.set(IbvPortAttr {
        state: state as u32,
        max_mtu: device.mtu_code(),
        active_mtu: device.mtu_code(),
        gid_count: device.endpoint.gids(layer).len() as c_int,
        // On Ethernet: GIDs come from IP addresses; on InfiniBand: a communication manager.
        capabilities: if infiniband { 1 << 16 } else { 1 << 16 | 1 << 26 },
        message_max: MESSAGE_MAX as u32,
        bad_partition_keys: 0,
        bad_qkeys: 0,
        partition_count: PARTITIONS,
        lid: if infiniband { device.endpoint.lid() } else { 0 },
        // The subnet manager of a fabric that needs none: the first port.
        manager_lid: infiniband.into(),
        lid_mask: 0,
        lanes_max: 1,
        manager_level: 0,
        subnet_timeout: if infiniband { 18 } else { 0 },
        init_reply: 0,
        width,
        speed,
        physical_state: if state == PortState::Active { 5 } else { 3 },
        link_layer: if infiniband { 1 } else { 2 },
        flags: 0,
        capabilities2: 0,
    });
    0
}

/// Width and speed codes of a port with four lanes that come nearest to its rate from below.
fn rate(gb_per_s: f64) -> (u8, u8) {
    const FOUR_LANES: u8 = 2;
    // Gbit/s of a lane, and the code: SDR, DDR, QDR, FDR, EDR, HDR, NDR.
    const SPEEDS: [(f64, u8); 7] =
        [(2.5, 1), (5.0, 2), (10.0, 4), (14.0, 16), (25.0, 32), (50.0, 64), (100.0, 128)];
    let lane = gb_per_s * 8.0 / 4.0;
    let fitting = SPEEDS.iter().rev().find(|(rate, _)| *rate <= lane + 1e-9);
    (FOUR_LANES, fitting.map_or(1, |(_, code)| *code))
}
