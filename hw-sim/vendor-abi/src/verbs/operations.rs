//! The table of operations that a provider hands to `libibverbs`. Versions of the library have
//! tables of different lengths, always sorted by name: each name here says since when it is there.

use super::{
    address_handle, completion_queue, context, domains, memory, objects, post, query, queue_pair,
    xrc,
};

/// All operations, sorted, with the interface version (35 and 36: within interface 34) that brought
/// them.
const OPERATIONS: [(&str, u32); 83] = [
    ("advise_mr", 34),
    ("alloc_buf", 64),
    ("alloc_dm", 34),
    ("alloc_dmah", 59),
    ("alloc_mw", 34),
    ("alloc_null_mr", 34),
    ("alloc_parent_domain", 34),
    ("alloc_pd", 34),
    ("alloc_td", 34),
    ("async_event", 34),
    ("attach_counters_point_flow", 34),
    ("attach_mcast", 34),
    ("bind_mw", 34),
    ("close_xrcd", 34),
    ("cq_event", 34),
    ("create_ah", 34),
    ("create_counters", 34),
    ("create_cq", 34),
    ("create_cq_ex", 34),
    ("create_flow", 34),
    ("create_flow_action_esp", 34),
    ("create_qp", 34),
    ("create_qp_ex", 34),
    ("create_rwq_ind_table", 34),
    ("create_srq", 34),
    ("create_srq_ex", 34),
    ("create_wq", 34),
    ("dealloc_dmah", 59),
    ("dealloc_mw", 34),
    ("dealloc_pd", 34),
    ("dealloc_td", 34),
    ("dereg_mr", 34),
    ("destroy_ah", 34),
    ("destroy_counters", 34),
    ("destroy_cq", 34),
    ("destroy_flow", 34),
    ("destroy_flow_action", 34),
    ("destroy_qp", 34),
    ("destroy_rwq_ind_table", 34),
    ("destroy_srq", 34),
    ("destroy_wq", 34),
    ("detach_mcast", 34),
    ("dm_export_dmabuf_fd", 64),
    ("free_buf", 64),
    ("free_context", 34),
    ("free_dm", 34),
    ("get_srq_num", 34),
    ("import_dm", 35),
    ("import_mr", 34),
    ("import_pd", 34),
    ("modify_cq", 34),
    ("modify_flow_action_esp", 34),
    ("modify_qp", 34),
    ("modify_qp_rate_limit", 34),
    ("modify_srq", 34),
    ("modify_wq", 34),
    ("open_qp", 34),
    ("open_xrcd", 34),
    ("poll_cq", 34),
    ("post_recv", 34),
    ("post_send", 34),
    ("post_srq_ops", 34),
    ("post_srq_recv", 34),
    ("query_device_ex", 34),
    ("query_ece", 34),
    ("query_port", 34),
    ("query_port_speed", 64),
    ("query_qp", 34),
    ("query_qp_data_in_order", 36),
    ("query_rt_values", 34),
    ("query_srq", 34),
    ("read_counters", 34),
    ("reg_dm_mr", 34),
    ("reg_dmabuf_mr", 34),
    ("reg_mr", 34),
    ("reg_mr_ex", 59),
    ("req_notify_cq", 34),
    ("rereg_mr", 34),
    ("resize_cq", 34),
    ("set_ece", 34),
    ("unimport_dm", 35),
    ("unimport_mr", 34),
    ("unimport_pd", 34),
];

/// An operation that is answered: its name in the table, its function, and the public verbs that
/// lead to it.
type Answered = (&'static str, *const (), &'static [&'static str]);

/// Operations that are refused in words. The library itself refuses the others that are not
/// answered.
const REFUSED: [(&str, *const ()); 2] = [
    ("attach_mcast", queue_pair::attach_mcast as *const ()),
    ("detach_mcast", queue_pair::attach_mcast as *const ()),
];

/// The operations that are answered.
pub(super) const ANSWERED: &[Answered] = &[
    ("alloc_mw", memory::alloc_mw as *const (), &["ibv_alloc_mw"]),
    (
        "alloc_parent_domain",
        domains::alloc_parent_domain as *const (),
        &["ibv_alloc_parent_domain"],
    ),
    ("alloc_pd", domains::alloc_pd as *const (), &["ibv_alloc_pd"]),
    ("alloc_td", domains::alloc_td as *const (), &["ibv_alloc_td"]),
    ("bind_mw", memory::bind_mw as *const (), &["ibv_bind_mw"]),
    ("close_xrcd", xrc::close_xrcd as *const (), &["ibv_close_xrcd"]),
    ("create_ah", address_handle::create_ah as *const (), &["ibv_create_ah"]),
    ("create_cq", completion_queue::create_cq as *const (), &["ibv_create_cq"]),
    (
        "create_cq_ex",
        completion_queue::create_cq_ex as *const (),
        &[
            "ibv_create_cq_ex",
            "ibv_start_poll",
            "ibv_next_poll",
            "ibv_end_poll",
            "ibv_wc_read_opcode",
            "ibv_wc_read_vendor_err",
            "ibv_wc_read_byte_len",
            "ibv_wc_read_imm_data",
            "ibv_wc_read_invalidated_rkey",
            "ibv_wc_read_qp_num",
            "ibv_wc_read_src_qp",
            "ibv_wc_read_wc_flags",
            "ibv_wc_read_slid",
            "ibv_wc_read_sl",
            "ibv_wc_read_dlid_path_bits",
        ],
    ),
    ("create_qp", queue_pair::create_qp as *const (), &["ibv_create_qp"]),
    (
        "create_qp_ex",
        queue_pair::create_qp_ex as *const (),
        &[
            "ibv_create_qp_ex",
            "ibv_wr_start",
            "ibv_wr_complete",
            "ibv_wr_abort",
            "ibv_wr_rdma_write",
            "ibv_wr_rdma_write_imm",
            "ibv_wr_rdma_read",
            "ibv_wr_send",
            "ibv_wr_send_imm",
            "ibv_wr_send_inv",
            "ibv_wr_set_ud_addr",
            "ibv_wr_set_xrc_srqn",
            "ibv_wr_bind_mw",
            "ibv_wr_local_inv",
            "ibv_wr_atomic_cmp_swp",
            "ibv_wr_atomic_fetch_add",
            "ibv_wr_set_sge",
            "ibv_wr_set_sge_list",
            "ibv_wr_set_inline_data",
            "ibv_wr_set_inline_data_list",
        ],
    ),
    ("create_srq", objects::create_srq as *const (), &["ibv_create_srq"]),
    ("create_srq_ex", objects::create_srq_ex as *const (), &["ibv_create_srq_ex"]),
    ("dealloc_mw", memory::dealloc_mw as *const (), &["ibv_dealloc_mw"]),
    ("dealloc_pd", domains::dealloc_pd as *const (), &["ibv_dealloc_pd"]),
    ("dealloc_td", domains::dealloc_td as *const (), &["ibv_dealloc_td"]),
    ("dereg_mr", memory::dereg_mr as *const (), &["ibv_dereg_mr"]),
    ("destroy_ah", address_handle::destroy_ah as *const (), &["ibv_destroy_ah"]),
    ("destroy_cq", completion_queue::destroy_cq as *const (), &["ibv_destroy_cq"]),
    ("destroy_qp", queue_pair::destroy_qp as *const (), &["ibv_destroy_qp"]),
    ("destroy_srq", objects::destroy_srq as *const (), &["ibv_destroy_srq"]),
    ("free_context", context::free_context as *const (), &["ibv_close_device"]),
    ("get_srq_num", objects::get_srq_num as *const (), &["ibv_get_srq_num"]),
    ("modify_qp", queue_pair::modify_qp as *const (), &["ibv_modify_qp"]),
    ("modify_srq", objects::modify_srq as *const (), &["ibv_modify_srq"]),
    ("open_qp", xrc::open_qp as *const (), &["ibv_open_qp"]),
    ("open_xrcd", xrc::open_xrcd as *const (), &["ibv_open_xrcd"]),
    ("poll_cq", post::poll_cq as *const (), &["ibv_poll_cq"]),
    ("post_recv", post::post_recv as *const (), &["ibv_post_recv"]),
    ("post_send", post::post_send as *const (), &["ibv_post_send"]),
    ("post_srq_recv", post::post_srq_recv as *const (), &["ibv_post_srq_recv"]),
    (
        "query_device_ex",
        query::query_device as *const (),
        &["ibv_query_device", "ibv_query_device_ex"],
    ),
    ("query_port", query::query_port as *const (), &["ibv_query_port"]),
    ("query_qp", queue_pair::query_qp as *const (), &["ibv_query_qp"]),
    (
        "query_qp_data_in_order",
        queue_pair::data_in_order as *const (),
        &["ibv_query_qp_data_in_order"],
    ),
    ("query_srq", objects::query_srq as *const (), &["ibv_query_srq"]),
    ("reg_dmabuf_mr", memory::reg_dmabuf_mr as *const (), &["ibv_reg_dmabuf_mr"]),
    ("reg_mr", memory::reg_mr as *const (), &["ibv_reg_mr", "ibv_reg_mr_iova"]),
    ("req_notify_cq", completion_queue::req_notify_cq as *const (), &["ibv_req_notify_cq"]),
    ("rereg_mr", memory::rereg_mr as *const (), &["ibv_rereg_mr"]),
    ("resize_cq", completion_queue::resize_cq as *const (), &["ibv_resize_cq"]),
];

/// The table for a version of the interface: addresses, and null where the library shall refuse.
pub(super) fn table(generation: u32) -> Vec<usize> {
    let address = |name: &str| {
        let answered = ANSWERED.iter().map(|(name, function, _)| (*name, *function));
        let mut known = answered.chain(REFUSED);
        known.find(|(known, _)| *known == name).map_or(0, |(_, function)| function as usize)
    };
    OPERATIONS
        .iter()
        .filter(|(_, since)| *since <= generation)
        .map(|(name, _)| address(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths are those of `struct verbs_context_ops` in rdma-core 34, 35, 36 to 58, 59 to 63
    /// and 64. One entry too many, and every function behind it stands for another.
    #[test]
    fn tables_have_the_lengths_of_the_versions() {
        let lengths = [34, 35, 36, 59, 64].map(|generation| table(generation).len());
        assert_eq!(lengths, [73, 75, 76, 79, 83]);
        assert!(OPERATIONS.is_sorted_by_key(|(name, _)| *name));
        let answered = ANSWERED.iter().map(|(name, ..)| *name);
        for name in answered.chain(REFUSED.iter().map(|(name, _)| *name)) {
            assert!(OPERATIONS.iter().any(|(known, _)| *known == name), "{name}");
        }
    }
}
