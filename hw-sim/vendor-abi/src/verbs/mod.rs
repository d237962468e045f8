//! An rdma-core provider: the virtual adapters below an unmodified `libibverbs`.
//!
//! `libibverbs` loads this library as `NAME-rdmavVV.so` and takes a table of functions from it.
//! Everything here translates between its structures and `hwsim_machine::adapter`.

mod address_handle;
mod allocators;
mod channel;
mod completion_queue;
mod context;
mod domains;
mod hook;
mod layout;
mod manager;
mod manager_layout;
mod memory;
mod objects;
mod operations;
mod pointer;
mod poll_extended;
mod post;
mod query;
mod queue_pair;
mod register;
mod work_request;
mod xrc;

pub use register::PROVIDER_SUFFIXES;

/// The verbs that are answered, by their public names, sorted.
pub fn implemented() -> Vec<&'static str> {
    let mut names: Vec<_> =
        operations::ANSWERED.iter().flat_map(|(_, _, public)| public.iter().copied()).collect();
    // Answered by `libibverbs` itself out of what hwsim puts into sysfs and into the context.
    names.extend([
        "ibv_create_comp_channel",
        "ibv_get_async_event",
        "ibv_get_cq_event",
        "ibv_get_device_list",
        "ibv_open_device",
        "ibv_query_gid",
        "ibv_query_gid_table",
        "ibv_query_pkey",
    ]);
    names.sort_unstable();
    names
}
