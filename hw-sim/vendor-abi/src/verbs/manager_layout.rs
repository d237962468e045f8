//! Structures of the kernel's interface to its communication manager (`rdma/rdma_user_cm.h`), which
//! `librdmacm` writes to `/dev/infiniband/rdma_cm`.

/// In front of each command.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub command: u32,
    /// Bytes behind it.
    pub input: u16,
    /// Room for the answer.
    pub output: u16,
}

/// Commands.
pub(super) mod command {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const BIND_IP: u32 = 2;
    pub const RESOLVE_IP: u32 = 3;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const QUERY_ROUTE: u32 = 5;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const GET_OPTION: u32 = 13;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const JOIN_IP_MCAST: u32 = 16;
    pub const LEAVE_MCAST: u32 = 17;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
}

/// `struct sockaddr_in6`, in which an address of IPv4 may lie as well. In network order.
pub(super) type SocketAddress = [u8; 28];

/// `struct rdma_ucm_create_id`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CreateId {
    pub tag: u64,
    pub response: u64,
    pub space: u16,
    pub kind: u8,
    pub reserved: [u8; 5],
}

/// `struct rdma_ucm_destroy_id`, and the beginning of others: an answer, and an identifier.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct OfId {
    pub response: u64,
    pub id: u32,
    /// A queue pair's state, or a descriptor.
    pub other: u32,
}

/// `struct rdma_ucm_bind_ip`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct BindIp {
    pub response: u64,
    pub address: SocketAddress,
    pub id: u32,
}

/// `struct rdma_ucm_resolve_ip`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ResolveIp {
    pub source: SocketAddress,
    pub destination: SocketAddress,
    pub id: u32,
    pub milliseconds: u32,
}

/// Commands of an identifier and a number: time, backlog, event.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IdAndNumber {
    pub id: u32,
    pub number: u32,
}

/// `struct ib_user_path_rec`; what is of two bytes is in network order.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PathRecord {
    pub destination_gid: [u8; 16],
    pub source_gid: [u8; 16],
    pub lids: [[u8; 2]; 2],
    pub raw_traffic: u32,
    pub flow_label: u32,
    pub reversible: u32,
    pub mtu: u32,
    pub partition: [u8; 2],
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub paths: u8,
    pub service_level: u8,
    pub mtu_selector: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub life_time_selector: u8,
    pub life_time: u8,
    pub preference: u8,
}

/// `struct rdma_ucm_query_route_resp`, without the adapter's index at its end, which older kernels
/// do not have.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RouteAnswer {
    pub guid: [u8; 8],
    pub paths: [PathRecord; 2],
    pub source: SocketAddress,
    pub destination: SocketAddress,
    pub count: u32,
    pub port: u8,
    pub reserved: [u8; 3],
}

/// `struct rdma_ucm_conn_param`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ConnectionParameters {
    pub queue_pair: u32,
    pub queue_key: u32,
    pub private: [u8; 256],
    pub private_length: u8,
    pub shared_receive: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retries: u8,
    pub receiver_retries: u8,
    pub valid: u8,
}

/// `struct rdma_ucm_connect`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Connect {
    pub parameters: ConnectionParameters,
    pub id: u32,
    pub reserved: u32,
    pub extended: [u32; 2],
}

/// `struct rdma_ucm_accept`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Accept {
    pub tag: u64,
    pub connect: Connect,
}

/// `struct rdma_ucm_reject`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Reject {
    pub id: u32,
    pub private_length: u8,
    pub reason: u8,
    pub reserved: [u8; 2],
    pub private: [u8; 256],
}

/// `struct ib_uverbs_ah_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AddressAttributes {
    pub gid: [u8; 16],
    pub flow_label: u32,
    pub own_gid: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub reserved: u8,
    pub lid: u16,
    pub service_level: u8,
    pub path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port: u8,
    pub reserved_too: u8,
}

/// `struct rdma_ucm_ud_param`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DatagramParameters {
    pub queue_pair: u32,
    pub queue_key: u32,
    pub address: AddressAttributes,
    pub private: [u8; 256],
    pub private_length: u8,
    pub reserved: [u8; 7],
}

/// `struct rdma_ucm_event_resp`, with parameters of a connection in the place of either kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct EventAnswer {
    pub tag: u64,
    pub id: u32,
    pub event: u32,
    pub status: u32,
    pub parameters: EventParametersAnswer,
    pub reserved: u32,
    pub extended: [u32; 2],
}

/// What an event says, of a connection or of datagrams.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union EventParametersAnswer {
    pub connection: ConnectionParameters,
    pub datagram: DatagramParameters,
}

/// `struct ib_uverbs_qp_attr`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct QueuePairAnswer {
    pub mask: u32,
    pub state: u32,
    pub current_state: u32,
    pub mtu: u32,
    pub migration: u32,
    pub queue_key: u32,
    pub receive_number: u32,
    pub send_number: u32,
    pub peer: u32,
    pub access: u32,
    pub address: AddressAttributes,
    pub alternate: AddressAttributes,
    pub capacity: [u32; 5],
    pub partitions: [u16; 2],
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
    pub reserved: [u8; 5],
}

/// `struct rdma_ucm_set_option`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SetOption {
    pub value: u64,
    pub id: u32,
    pub level: u32,
    pub name: u32,
    pub length: u32,
}

const _: () = {
    assert!(size_of::<BindIp>() == 40 && size_of::<ResolveIp>() == 64);
    assert!(size_of::<PathRecord>() == 64 && size_of::<RouteAnswer>() == 200);
    assert!(size_of::<ConnectionParameters>() == 272 && size_of::<Connect>() == 288);
    assert!(size_of::<Accept>() == 296 && size_of::<Reject>() == 264);
    assert!(size_of::<DatagramParameters>() == 304 && size_of::<EventAnswer>() == 336);
    assert!(size_of::<QueuePairAnswer>() == 144 && size_of::<SetOption>() == 24);
};
