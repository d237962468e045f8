//! Structures of `libibverbs` as C lays them out on 64-bit Linux. Public ones are those of
//! `infiniband/verbs.h`; of its private ones only what a provider must know.

use super::allocators::{Allocate, Free};
use super::completion_queue::QueueObject;
use super::domains::{DomainObject, ThreadDomain};
use super::memory::{RegionObject, WindowObject};
use super::pointer::{Object, Source, Target};
use super::xrc::XrcDomainObject;
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

/// Bytes of a name in sysfs.
const NAME_BYTES: usize = 64;

/// `struct ibv_device`, up to the name.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvDevice {
    pub operations: [usize; 2],
    pub node_type: u32,
    pub transport: u32,
    pub name: [u8; NAME_BYTES],
}

/// Bytes of `struct verbs_device`, and where it holds what the core supports.
pub(super) const VERBS_DEVICE_BYTES: usize = 712;
pub(super) const CORE_SUPPORT_OFFSET: usize = 704;

/// `struct ibv_context`. The library puts a header in front of it that grows with versions.
#[repr(C)]
pub(super) struct IbvContext {
    pub device: Source<IbvDevice>,
    pub operations: [usize; 32],
    pub command_fd: c_int,
    pub async_fd: c_int,
    pub completion_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: usize,
}

/// `struct ibv_pd`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvPd {
    pub context: Target<IbvContext>,
    pub handle: u32,
}

/// `struct ibv_td`.
#[repr(C)]
pub(super) struct IbvTd {
    pub context: Target<IbvContext>,
}

/// `struct ibv_td_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvTdInitAttr {
    pub comp_mask: u32,
}

/// `struct ibv_parent_domain_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvParentDomainInitAttr {
    pub pd: Object<DomainObject>,
    pub td: Object<ThreadDomain>,
    pub comp_mask: u32,
    pub allocate: Option<Allocate>,
    pub free: Option<Free>,
    pub pd_context: usize,
}

/// `struct verbs_mr`: `struct ibv_mr` and two private fields.
#[repr(C)]
pub(super) struct VerbsMr {
    pub context: Target<IbvContext>,
    pub pd: usize,
    pub address: u64,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
    /// The public structure ends here, with padding.
    pub end: u32,
    /// 0 memory, 3 dma-buf.
    pub kind: u32,
    pub access: c_int,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvCompChannel {
    pub context: Target<IbvContext>,
    pub fd: c_int,
    pub references: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(super) struct IbvCq {
    pub context: Target<IbvContext>,
    pub channel: Target<IbvCompChannel>,
    pub cq_context: usize,
    pub handle: u32,
    pub capacity: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub condition: libc::pthread_cond_t,
    pub events_completed: u32,
    pub async_events_completed: u32,
}

/// `struct ibv_cq_ex`: a queue, and the functions that read its completions.
#[repr(C)]
pub(super) struct IbvCqEx {
    pub base: IbvCq,
    pub comp_mask: u32,
    pub status: u32,
    pub id: u64,
    pub functions: [usize; 18],
}

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvCqInitAttrEx {
    pub capacity: u32,
    pub cq_context: usize,
    pub channel: Source<IbvCompChannel>,
    pub vector: u32,
    pub completion_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    // The parent domain follows, which older programs do not have.
}

/// `struct ibv_poll_cq_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvPollCqAttr {
    pub comp_mask: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
pub(super) struct IbvMw {
    pub context: Target<IbvContext>,
    pub pd: Object<DomainObject>,
    pub key: u32,
    pub handle: u32,
    pub kind: u32,
}

/// `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvMwBindInfo {
    pub region: Object<RegionObject>,
    pub address: u64,
    pub length: u64,
    pub access: u32,
}

/// `struct ibv_mw_bind`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvMwBind {
    pub id: u64,
    pub flags: u32,
    pub info: IbvMwBindInfo,
}

/// `struct ibv_srq`, with room for the private fields that follow it.
#[repr(C)]
pub(super) struct IbvSrq {
    pub context: Target<IbvContext>,
    pub srq_context: usize,
    pub pd: Target<IbvPd>,
    pub handle: u32,
    pub mutex: libc::pthread_mutex_t,
    pub condition: libc::pthread_cond_t,
    pub events_completed: u32,
    pub private: [u64; 8],
}

/// `struct ibv_qp`.
#[repr(C)]
pub(super) struct IbvQp {
    pub context: Target<IbvContext>,
    pub qp_context: usize,
    pub pd: usize,
    pub send_cq: usize,
    pub receive_cq: usize,
    pub srq: usize,
    pub handle: u32,
    pub number: u32,
    pub state: u32,
    pub kind: u32,
    pub mutex: libc::pthread_mutex_t,
    pub condition: libc::pthread_cond_t,
    pub events_completed: u32,
}

/// `struct ibv_qp_ex`: the functions of the work request interface.
#[repr(C)]
pub(super) struct IbvQpEx {
    pub base: IbvQp,
    pub comp_mask: u64,
    pub id: u64,
    pub flags: u32,
    pub functions: [usize; 20],
    /// Two more functions in newer versions, then the private field that says "this is an
    /// `ibv_qp_ex`". Where that lies depends on the version, within rdma-core's own ABI 34 even; so
    /// all three places say so, and the two functions are never called: queue pairs that ask for
    /// them are not made.
    pub by_version: [u64; 3],
    pub private: [u64; 4],
}

/// What [`IbvQpEx::by_version`] holds for queue pairs with the work request interface.
pub(super) const IS_EXTENDED: u64 = 2;

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvSge {
    pub address: u64,
    pub length: u32,
    pub key: u32,
}

/// `struct ibv_send_wr`, with its unions as reliable connections use them. A datagram has its
/// address handle in `remote_address`, and its queue pair below its queue key in `key_or_operand`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvSendWr {
    pub id: u64,
    pub next: Source<IbvSendWr>,
    pub pieces: Source<IbvSge>,
    pub piece_count: c_int,
    pub opcode: u32,
    pub flags: u32,
    pub immediate: u32,
    pub remote_address: u64,
    /// The key for reads and writes; the operand of atomics.
    pub key_or_operand: u64,
    pub swap: u64,
    pub atomic_key: u32,
    pub shared_receive_queue: u64,
    /// The window to bind, and the key that it shall have.
    pub window: Object<WindowObject>,
    pub window_key: u32,
    pub binding: IbvMwBindInfo,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvRecvWr {
    pub id: u64,
    pub next: Source<IbvRecvWr>,
    pub pieces: Source<IbvSge>,
    pub piece_count: c_int,
}

/// `struct ibv_ah`.
#[repr(C)]
pub(super) struct IbvAh {
    pub context: Target<IbvContext>,
    pub pd: usize,
    pub handle: u32,
}

/// `struct ibv_data_buf`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvDataBuf {
    pub address: Source<u8>,
    pub length: usize,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvWc {
    pub id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_code: u32,
    pub length: u32,
    pub immediate: u32,
    pub queue_pair: u32,
    pub source: u32,
    pub flags: u32,
    pub partition: u16,
    pub source_lid: u16,
    pub service_level: u8,
    pub path_bits: u8,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvQpCap {
    pub send_requests: u32,
    pub receive_requests: u32,
    pub send_pieces: u32,
    pub receive_pieces: u32,
    pub inline: u32,
}

/// `struct ibv_qp_init_attr_ex`, up to what virtual adapters use; its beginning is
/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvQpInitAttr {
    pub qp_context: usize,
    pub send_cq: usize,
    pub receive_cq: usize,
    pub srq: usize,
    pub capacity: IbvQpCap,
    pub kind: u32,
    pub signal_all: c_int,
}

/// The fields that `struct ibv_qp_init_attr_ex` adds. Its first field lies in the padding of the
/// shorter structure.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvQpInitAttrEx {
    pub base: [u32; 15],
    pub comp_mask: u32,
    pub pd: usize,
    pub xrcd: usize,
    pub create_flags: u32,
    pub unused: [u32; 11],
    pub send_operations: u64,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvAhAttr {
    pub gid: [u64; 2],
    pub flow_label: u32,
    pub own_gid: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub lid: u16,
    pub service_level: u8,
    pub path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvQpAttr {
    pub state: u32,
    pub current_state: u32,
    pub mtu: u32,
    pub migration: u32,
    pub qkey: u32,
    pub receive_number: u32,
    pub send_number: u32,
    pub peer: u32,
    pub access: u32,
    pub capacity: IbvQpCap,
    pub route: IbvAhAttr,
    pub alternate: IbvAhAttr,
    pub partition: u16,
    pub alternate_partition: u16,
    pub drained_event: u8,
    pub draining: u8,
    pub reads: u8,
    pub peer_reads: u8,
    pub receiver_timer: u8,
    pub port: u8,
    pub timeout: u8,
    pub retries: u8,
    pub receiver_retries: u8,
    pub alternate_port: u8,
    pub alternate_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvSrqAttr {
    pub requests: u32,
    pub pieces: u32,
    pub limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvSrqInitAttr {
    pub srq_context: usize,
    pub attributes: IbvSrqAttr,
}

/// `struct ibv_srq_init_attr_ex`, up to the protection domain.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvSrqInitAttrEx {
    pub srq_context: usize,
    pub attributes: IbvSrqAttr,
    pub comp_mask: u32,
    pub kind: u32,
    pub pd: Object<DomainObject>,
}

/// What `struct ibv_srq_init_attr_ex` adds for queues of XRC domains.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvSrqInitAttrXrc {
    pub base: IbvSrqInitAttrEx,
    pub xrcd: Object<XrcDomainObject>,
    pub cq: Object<QueueObject>,
}

/// `struct ibv_xrcd`.
#[repr(C)]
pub(super) struct IbvXrcd {
    pub context: Target<IbvContext>,
}

/// `struct ibv_xrcd_init_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvXrcdInitAttr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub flags: c_int,
}

/// `struct ibv_qp_open_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvQpOpenAttr {
    pub comp_mask: u32,
    pub number: u32,
    pub xrcd: Object<XrcDomainObject>,
    pub qp_context: usize,
    pub kind: u32,
}

/// `struct ibv_port_attr`, as of rdma-core 34; newer ones append fields that are zero here.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvPortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_count: c_int,
    pub capabilities: u32,
    pub message_max: u32,
    pub bad_partition_keys: u32,
    pub bad_qkeys: u32,
    pub partition_count: u16,
    pub lid: u16,
    pub manager_lid: u16,
    pub lid_mask: u8,
    pub lanes_max: u8,
    pub manager_level: u8,
    pub subnet_timeout: u8,
    pub init_reply: u8,
    pub width: u8,
    pub speed: u8,
    pub physical_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub capabilities2: u16,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvDeviceAttr {
    pub firmware: [u8; 64],
    pub node_guid: u64,
    pub system_guid: u64,
    pub region_max: u64,
    pub page_sizes: u64,
    pub vendor: u32,
    pub part: u32,
    pub hardware: u32,
    pub queue_pairs: c_int,
    pub requests: c_int,
    pub capabilities: u32,
    pub pieces: c_int,
    pub read_pieces: c_int,
    pub queues: c_int,
    pub completions: c_int,
    pub regions: c_int,
    pub domains: c_int,
    pub peer_reads: c_int,
    pub ee_reads: c_int,
    pub all_peer_reads: c_int,
    pub reads: c_int,
    pub ee_own_reads: c_int,
    pub atomics: u32,
    pub ee: c_int,
    pub read_domains: c_int,
    pub windows: c_int,
    /// Raw and multicast: none.
    pub none: [c_int; 5],
    pub address_handles: c_int,
    /// Fast memory regions: none.
    pub none_either: [c_int; 2],
    pub srqs: c_int,
    pub srq_requests: c_int,
    pub srq_pieces: c_int,
    pub partitions: u16,
    pub ack_delay: u8,
    pub ports: u8,
}

/// `struct verbs_match_ent`.
#[repr(C)]
pub(super) struct VerbsMatch {
    pub driver_data: usize,
    pub modalias: *const c_char,
    pub vendor: u16,
    pub device: u16,
    pub kind: u8,
}

/// `struct verbs_device_ops`.
#[repr(C)]
pub(super) struct VerbsDeviceOps {
    pub name: *const c_char,
    pub abi_min: u32,
    pub abi_max: u32,
    pub matches: *const VerbsMatch,
    pub static_providers: usize,
    pub match_device: usize,
    pub alloc_context: extern "C" fn(Source<IbvDevice>, c_int, *mut c_void) -> *mut c_void,
    pub import_context: usize,
    pub alloc_device: extern "C" fn(*mut c_void) -> *mut c_void,
    pub uninit_device: extern "C" fn(*mut c_void),
}

/// How many bytes longer than on x86-64 a lock of the C library is: 8 on aarch64. The other sizes
/// and offsets are those of every 64-bit machine.
const WIDER: usize = size_of::<libc::pthread_mutex_t>() - 40;

const _: () = {
    assert!(offset_of!(IbvDevice, name) == 24);
    assert!(size_of::<IbvContext>() == 328 + WIDER && offset_of!(IbvContext, command_fd) == 264);
    assert!(offset_of!(IbvContext, mutex) == 280);
    assert!(size_of::<IbvPd>() == 16);
    assert!(offset_of!(VerbsMr, lkey) == 36 && offset_of!(VerbsMr, kind) == 48);
    assert!(offset_of!(IbvCompChannel, fd) == 8);
    assert!(size_of::<IbvCq>() == 128 + WIDER && offset_of!(IbvCq, condition) == 72 + WIDER);
    assert!(
        offset_of!(IbvCqEx, status) == 132 + WIDER && offset_of!(IbvCqEx, functions) == 144 + WIDER
    );
    assert!(size_of::<IbvCqInitAttrEx>() == 48 && offset_of!(IbvCqInitAttrEx, vector) == 24);
    assert!(size_of::<IbvMw>() == 32 && size_of::<IbvMwBind>() == 48);
    assert!(
        offset_of!(IbvSrq, events_completed) == 120 + WIDER
            && offset_of!(IbvSrq, private) == 128 + WIDER
    );
    assert!(size_of::<IbvQp>() == 160 + WIDER && offset_of!(IbvQp, number) == 52);
    assert!(
        offset_of!(IbvQpEx, flags) == 176 + WIDER && offset_of!(IbvQpEx, functions) == 184 + WIDER
    );
    assert!(offset_of!(IbvQpEx, by_version) == 344 + WIDER);
    assert!(size_of::<IbvSge>() == 16 && size_of::<IbvRecvWr>() == 32);
    assert!(size_of::<IbvSendWr>() == 128 && offset_of!(IbvSendWr, atomic_key) == 64);
    assert!(offset_of!(IbvSendWr, window) == 80 && offset_of!(IbvSendWr, binding) == 96);
    assert!(size_of::<IbvWc>() == 48 && offset_of!(IbvWc, flags) == 36);
    assert!(size_of::<IbvQpInitAttr>() == 64 && offset_of!(IbvQpInitAttr, kind) == 52);
    assert!(size_of::<IbvQpInitAttrEx>() == 136 && offset_of!(IbvQpInitAttrEx, pd) == 64);
    assert!(offset_of!(IbvQpInitAttrEx, create_flags) == 80);
    assert!(offset_of!(IbvQpInitAttrEx, send_operations) == 128);
    assert!(size_of::<IbvParentDomainInitAttr>() == 48);
    assert!(size_of::<IbvAhAttr>() == 32 && offset_of!(IbvAhAttr, is_global) == 29);
    assert!(size_of::<IbvQpAttr>() == 144 && offset_of!(IbvQpAttr, route) == 56);
    assert!(offset_of!(IbvQpAttr, partition) == 120 && offset_of!(IbvQpAttr, rate_limit) == 136);
    assert!(size_of::<IbvSrqInitAttr>() == 24 && offset_of!(IbvSrqInitAttrEx, pd) == 32);
    assert!(offset_of!(IbvSrqInitAttrXrc, xrcd) == 40 && size_of::<IbvSrqInitAttrXrc>() == 56);
    assert!(size_of::<IbvQpOpenAttr>() == 32 && size_of::<IbvXrcdInitAttr>() == 12);
    assert!(size_of::<IbvPortAttr>() == 52 && offset_of!(IbvPortAttr, link_layer) == 46);
    assert!(size_of::<IbvDeviceAttr>() == 232 && offset_of!(IbvDeviceAttr, atomics) == 164);
    assert!(offset_of!(IbvDeviceAttr, ports) == 227);
    assert!(size_of::<VerbsMatch>() == 24 && offset_of!(VerbsMatch, kind) == 20);
    assert!(offset_of!(VerbsDeviceOps, alloc_context) == 40);
};
