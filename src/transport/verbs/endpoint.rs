//! This side of the connection to one peer: a few queue pairs and one completion queue.

use super::adapter::{Adapter, refused};
use super::address::{CreditAddress, EndpointAddress, QUEUE_PAIRS_MAX, QueueAddress};
use super::queue::{Depths, QueuePair};
use super::receive::Receiver;
use super::region::{MemoryRegion, RemoteAccess, RemoteRegion};
use super::settings::RETRIES;
use crate::error::{Error, Result};
use crate::settings::VerbsOrder;
use crate::shared::Region;
use crate::topology::LinkLayer;
use ibverbs_sys as sys;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Codes of the specification. A receiver that is not ready asks the sender to wait 0.64 ms; the
/// sender obeys 7 - 1 times (7 itself would mean for ever).
const RNR_TIMER: u8 = 12;
const RNR_RETRIES: u8 = 6;
/// `IBV_WR_RDMA_WRITE`.
const RDMA_WRITE: u32 = 0;
/// Bytes between words that different queue pairs of the peer write.
const CREDIT_STRIDE: usize = 64;
/// Routers that a packet may pass.
const HOP_LIMIT: u8 = 64;

/// The queue pairs towards one peer.
pub struct Endpoint {
    // Queue pairs go before the completion queue that they report to.
    pub(super) queues: Vec<QueuePair>,
    completions: CompletionQueue,
    connected: bool,
    /// Words in which the peer counts immediates, and how many this side takes.
    credits: Option<(Arc<MemoryRegion>, u32)>,
}

/// A completion queue, destroyed on drop.
struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    adapter: Arc<Adapter>,
}

// SAFETY: completion queues may be used from any thread.
unsafe impl Send for CompletionQueue {}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: created by `Endpoint::create`, destroyed only here, after its queue pairs.
        unsafe { (self.adapter.context().functions.destroy_cq)(self.raw.as_ptr()) };
    }
}

impl Endpoint {
    /// Queue pairs that wait for their peer, and the bytes that the peer wants to
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`Error::System`] with the adapter's answer; [`Error::Argument`] for settings out of range.
    pub fn create(adapter: &Arc<Adapter>) -> Result<(Self, Vec<u8>)> {
        let settings = adapter.settings();
        let (count, limits) = (settings.queue_pairs, adapter.limits());
        if !(1..=QUEUE_PAIRS_MAX).contains(&count) {
            return Err(Error::argument("queue pairs of a peer", "1 to 16", count));
        }
        if settings.queue_depth < 4 {
            return Err(Error::argument("queue depth", "4 or more", settings.queue_depth));
        }
        let by_immediate = settings.order != VerbsOrder::Write;
        // Sends, and as many receives.
        let kinds = 1 + usize::from(by_immediate);
        let completions_each = limits.completions / (count * kinds);
        let depth = settings.queue_depth.min(limits.queue_depth).min(completions_each).max(4);
        let completions = CompletionQueue::create(adapter, depth * count * kinds)?;
        let words = Region::host(count * CREDIT_STRIDE);
        let credits = match by_immediate {
            true => {
                let memory = adapter.register_host(&words, RemoteAccess::Write)?;
                Some((Arc::new(memory), depth as u32))
            }
            false => None,
        };
        let receive_depth = if by_immediate { depth } else { 0 };
        let mut endpoint = Self { queues: Vec::new(), completions, connected: false, credits };
        for index in 0..count {
            let packet_number = getrandom::u32().map_err(|error| Error::System {
                what: "drawing a packet number".into(),
                cause: error.to_string(),
            })?;
            let completions = endpoint.completions.raw;
            // SAFETY: the completion queue belongs to the endpoint, which drops it last.
            let mut queue = unsafe {
                let depths = Depths { send: depth, receive: receive_depth };
                QueuePair::create(adapter, completions, index, depths, packet_number)
            }?;
            if let Some((memory, _)) = &endpoint.credits {
                let word = words.word64(index * CREDIT_STRIDE)?;
                queue.receiver = Some(Receiver::new(index, depth, word, memory.clone()));
            }
            endpoint.queues.push(queue);
        }
        let bytes = endpoint.address().encode();
        Ok((endpoint, bytes))
    }

    /// Does the adapter promise that the data of RDMA writes on one queue pair is placed in order?
    /// Asked of queue pairs that are not connected.
    pub fn keeps_order(&self) -> bool {
        let Some(ask) = self.adapter().context().functions.query_qp_data_in_order else {
            return false;
        };
        // SAFETY: the queue pairs are alive; the call only asks.
        let promises = |queue: &QueuePair| unsafe { ask(queue.raw.as_ptr(), RDMA_WRITE, 0) } == 1;
        self.queues.iter().all(promises)
    }

    fn address(&self) -> EndpointAddress {
        let port = self.adapter().facts();
        EndpointAddress {
            link_layer: port.link_layer,
            mtu: port.mtu,
            lid: port.lid,
            gid: port.gid.raw,
            credits: self.credits.as_ref().map_or(CreditAddress::default(), |(memory, depth)| {
                let RemoteRegion { base, rkey, .. } = memory.remote();
                CreditAddress { address: base, key: rkey, depth: *depth }
            }),
            queues: self.queues.iter().map(QueuePair::address).collect(),
        }
    }

    /// Connects to the peer whose [`create`](Self::create) returned `remote`.
    ///
    /// # Errors
    /// [`Error::Argument`] if `remote` makes no sense, or does not match this side;
    /// [`Error::System`] with the adapter's answer.
    pub fn connect(&mut self, remote: &[u8]) -> Result<()> {
        let remote = EndpointAddress::decode(remote)?;
        let local = self.address();
        let differs = |what: &str, here: String, there: String| {
            Error::argument(what, format!("{here}, as on this side"), there)
        };
        if self.connected {
            return Err(Error::argument("endpoint", "one that is not connected", "connected"));
        }
        if remote.link_layer != local.link_layer {
            let (here, there) = (local.link_layer, remote.link_layer);
            return Err(differs("link layer of the peer", here.to_string(), there.to_string()));
        }
        if remote.queues.len() != local.queues.len() {
            let (here, there) = (local.queues.len(), remote.queues.len());
            return Err(differs("queue pairs of the peer", here.to_string(), there.to_string()));
        }
        let order = |depth| if depth == 0 { "written" } else { "immediate" };
        if (remote.credits.depth == 0) != (local.credits.depth == 0) {
            let (here, there) = (order(local.credits.depth), order(remote.credits.depth));
            return Err(differs("signals of the peer", here.into(), there.into()));
        }
        let adapter = self.adapter().clone();
        for (index, (queue, peer)) in self.queues.iter_mut().zip(&remote.queues).enumerate() {
            initialize(queue, &adapter)?;
            let address = remote.credits.address.wrapping_add((index * CREDIT_STRIDE) as u64);
            queue.prepare_receiver(CreditAddress { address, ..remote.credits })?;
            make_ready_to_receive(queue, &adapter, &remote, *peer)?;
            make_ready_to_send(queue, &adapter)?;
        }
        self.connected = true;
        Ok(())
    }

    /// True once `connect` has succeeded.
    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    pub(super) fn adapter(&self) -> &Arc<Adapter> {
        &self.completions.adapter
    }

    /// Takes completions into `buffer`, and says how many.
    ///
    /// # Errors
    /// The adapter's answer, if it cannot say.
    pub(super) fn poll(&self, buffer: &mut [sys::ibv_wc]) -> std::result::Result<usize, i32> {
        let raw = self.completions.raw;
        // SAFETY: the completion queue is alive, and the buffer has as many entries as it says.
        let count = unsafe {
            let context = &*raw.as_ref().context;
            let poll = context.ops.poll_cq.ok_or(nix::errno::Errno::ENOSYS as i32)?;
            poll(raw.as_ptr(), buffer.len() as i32, buffer.as_mut_ptr())
        };
        usize::try_from(count).map_err(|_| -count)
    }

    /// Puts every queue pair into the error state: what is posted ends with errors, and nothing
    /// more is sent or accepted.
    ///
    /// # Errors
    /// [`Error::System`] with the adapter's answer.
    pub fn break_off(&mut self) -> Result<()> {
        for queue in &mut self.queues {
            let mut attributes =
                sys::ibv_qp_attr { qp_state: sys::ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
            queue.modify("error", &mut attributes, sys::ibv_qp_attr_mask::IBV_QP_STATE)?;
        }
        Ok(())
    }
}

impl CompletionQueue {
    fn create(adapter: &Arc<Adapter>, entries: usize) -> Result<Self> {
        let context = adapter.context();
        // SAFETY: the context is open; there is no channel, since engines poll.
        let raw = unsafe {
            (context.functions.create_cq)(
                context.raw.as_ptr(),
                entries as i32,
                null_mut(),
                null_mut(),
                0,
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| {
            refused("ibv_create_cq", adapter.name(), &format!(" with {entries} entries"))
        })?;
        Ok(Self { raw, adapter: adapter.clone() })
    }
}

fn initialize(queue: &mut QueuePair, adapter: &Adapter) -> Result<()> {
    use sys::ibv_qp_attr_mask as mask;
    let access = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
        | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ;
    let mut attributes = sys::ibv_qp_attr {
        qp_state: sys::ibv_qp_state::IBV_QPS_INIT,
        port_num: adapter.port(),
        qp_access_flags: access.0,
        ..Default::default()
    };
    let wanted = mask::IBV_QP_STATE
        | mask::IBV_QP_PKEY_INDEX
        | mask::IBV_QP_PORT
        | mask::IBV_QP_ACCESS_FLAGS;
    queue.modify("INIT", &mut attributes, wanted)
}

fn make_ready_to_receive(
    queue: &mut QueuePair,
    adapter: &Adapter,
    remote: &EndpointAddress,
    peer: QueueAddress,
) -> Result<()> {
    use sys::ibv_qp_attr_mask as mask;
    let (port, settings) = (adapter.facts(), adapter.settings());
    // Within an InfiniBand subnet the LID is enough; all else needs the global header.
    let same_subnet = port.gid.raw[..8] == remote.gid[..8] && remote.lid != 0;
    let global = port.link_layer == LinkLayer::Ethernet || !same_subnet;
    let mut attributes = sys::ibv_qp_attr {
        qp_state: sys::ibv_qp_state::IBV_QPS_RTR,
        path_mtu: u32::from(port.mtu.min(remote.mtu)),
        dest_qp_num: peer.number,
        rq_psn: peer.packet_number,
        max_dest_rd_atomic: 1,
        min_rnr_timer: RNR_TIMER,
        ah_attr: sys::ibv_ah_attr {
            grh: sys::ibv_global_route {
                dgid: sys::ibv_gid { raw: remote.gid },
                flow_label: 0,
                sgid_index: port.gid.index,
                hop_limit: HOP_LIMIT,
                traffic_class: settings.traffic_class,
            },
            dlid: remote.lid,
            sl: settings.service_level,
            is_global: u8::from(global),
            port_num: port.number,
            ..Default::default()
        },
        ..Default::default()
    };
    let wanted = mask::IBV_QP_STATE
        | mask::IBV_QP_AV
        | mask::IBV_QP_PATH_MTU
        | mask::IBV_QP_DEST_QPN
        | mask::IBV_QP_RQ_PSN
        | mask::IBV_QP_MAX_DEST_RD_ATOMIC
        | mask::IBV_QP_MIN_RNR_TIMER;
    queue.peer_number = peer.number;
    queue.modify("RTR (ready to receive)", &mut attributes, wanted)
}

fn make_ready_to_send(queue: &mut QueuePair, adapter: &Adapter) -> Result<()> {
    use sys::ibv_qp_attr_mask as mask;
    let mut attributes = sys::ibv_qp_attr {
        qp_state: sys::ibv_qp_state::IBV_QPS_RTS,
        timeout: adapter.settings().timeout_exponent(),
        retry_cnt: RETRIES,
        rnr_retry: RNR_RETRIES,
        sq_psn: queue.packet_number,
        max_rd_atomic: 1,
        ..Default::default()
    };
    let wanted = mask::IBV_QP_STATE
        | mask::IBV_QP_TIMEOUT
        | mask::IBV_QP_RETRY_CNT
        | mask::IBV_QP_RNR_RETRY
        | mask::IBV_QP_SQ_PSN
        | mask::IBV_QP_MAX_QP_RD_ATOMIC;
    queue.modify("RTS (ready to send)", &mut attributes, wanted)
}
