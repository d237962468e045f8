//! Each key of the virtual driver's profile (hw-sim/README.md) has a test that the library survives
//! the behaviour, and one that shows the failure for which it stands where the library's remedy is
//! switched off.

use std::collections::BTreeSet;
use std::path::Path;

/// A key, the test of the library as it is, and that of the failure, as FILE::TEST; where there is
/// nothing to switch off, why.
const TESTS: [[&str; 3]; 20] = [
    [
        "context-lock",
        "drivers::the_first_launch_waits_for_nothing_else_on_its_gpu",
        "drivers::without_eager_loading_the_first_launch_waits_for_itself",
    ],
    [
        "connections",
        "drivers::few_hardware_queues_are_enough",
        "drivers::without_a_context_of_their_own_copies_stand_behind_collectives",
    ],
    [
        "launch-queue",
        "drivers::a_caller_that_runs_ahead_is_held_back",
        "drivers::without_a_bound_a_caller_that_runs_ahead_blocks_its_engine",
    ],
    [
        "capture",
        "drivers::engines_do_not_invalidate_captures",
        "drivers::engines_that_count_for_captures_invalidate_them_and_fail",
    ],
    [
        "resident-blocks",
        "shared_gpu::more_ranks_than_there_is_room_for_blocks_are_refused",
        "shared_gpu::without_the_check_ranks_without_room_hang",
    ],
    [
        "time-slicing",
        "shared_gpu::processes_that_share_a_gpu_take_turns_and_are_told",
        "the same: the library can only warn",
    ],
    [
        "local-copies",
        "shared_gpu::copies_within_a_full_gpu_find_room",
        "shared_gpu::without_the_check_copies_within_a_full_gpu_hang",
    ],
    [
        "memops",
        "drivers::signals_reach_peers_where_memory_operations_do_not",
        "drivers::without_the_probe_signals_are_lost",
    ],
    [
        "pools",
        "drivers::registered_memory_of_pools_is_opened_to_peers",
        "drivers::without_rights_engines_do_not_reach_memory_of_pools",
    ],
    [
        "lazy-dma",
        "drivers::uploads_are_complete_before_anybody_reads_them",
        "drivers::without_pinned_uploads_kernels_read_what_has_not_come",
    ],
    [
        "iomemory",
        "drivers::a_bar_that_the_driver_does_not_register_is_named",
        "the same: the library can only say what to do",
    ],
    [
        "broken-peer",
        "drivers::a_pair_that_loses_writes_goes_through_host_memory",
        "drivers::without_the_probe_a_pair_that_loses_writes_hangs",
    ],
    [
        "no-peer",
        "no_peer_access::every_collective_whatever_is_withheld",
        "drivers::without_host_memory_what_is_withheld_is_an_error",
    ],
    [
        "ipc",
        "no_peer_access::every_collective_between_processes_whatever_is_withheld",
        "no_peer_access::processes_that_share_no_memory_need_that_of_the_host",
    ],
    [
        "dma-buf",
        "no_peer_access::every_collective_between_processes_whatever_is_withheld",
        "none: adapters take plain addresses then, or slots lie in host memory",
    ],
    [
        "memory-pools",
        "no_peer_access::every_collective_whatever_is_withheld",
        "none: the library takes no memory of pools",
    ],
    [
        "virtual-memory",
        "no_peer_access::every_collective_whatever_is_withheld",
        "none: the library maps no memory itself",
    ],
    [
        "jit-delay",
        "drivers::code_is_compiled_when_a_communicator_is_made",
        "drivers::without_eager_loading_a_collective_waits_for_the_compiler",
    ],
    [
        "place-out-of-order",
        "verbs_order::data_is_there_when_the_receiver_raises_its_signal",
        "verbs_order::written_signals_pass_their_data_on_an_adapter_that_keeps_no_order",
    ],
    [
        "adapter-words",
        "nodes::low_latency_messages_go_between_nodes_where_adapters_write_whole_words",
        "doctor::adapters_that_write_words_in_halves_are_found",
    ],
];

/// If this fails, a behaviour of drivers has no test that shows what it does to a program, or a
/// test that is named here is gone.
#[test]
fn every_key_has_its_tests() {
    let readme = include_str!("../hw-sim/README.md");
    let table = readme.split("<!-- driver profile: ").nth(1).expect("the table of keys");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let keys: BTreeSet<_> = rows.collect();
    assert!(keys.len() >= 18, "{keys:?}");
    let confirmed = include_str!("../benches/README.md");
    for key in &keys {
        let named = confirmed.contains(&format!("`{key}`"));
        assert!(named, "benches/README.md does not say which driver has confirmed `{key}`");
    }
    let tested: BTreeSet<_> = TESTS.iter().map(|[key, ..]| *key).collect();
    assert_eq!(tested, keys);
    for name in TESTS.iter().flat_map(|[_, survives, fails]| [survives, fails]) {
        let Some((file, test)) = name.split_once("::") else {
            assert!(name.contains(": "), "{name}: expected FILE::TEST, or a reason");
            continue;
        };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let text = std::fs::read_to_string(folder.join(file).with_extension("rs")).unwrap();
        assert!(text.contains(&format!("#[test]\nfn {test}()")), "{file}.rs has no test {test}");
    }
}
