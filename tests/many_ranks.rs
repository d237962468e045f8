//! Communicators of more ranks than have every plan proved before it runs: several nodes of eight
//! GPUs each, in small staging memory.

mod hardware;

use hardware::perf::{assert_right, on_real_hardware, perf};

/// Staging memory of a rank: slots of a few KiB.
const SMALL: &str = "export RINGDOVE_BLOCKS=1 RINGDOVE_SLOTS=2 RINGDOVE_SLOT_BYTES=65536 \
                     RINGDOVE_STAGING_BYTES=2097152";

/// If this fails, ranks that build their own programs alone do not fit together, or messages of few
/// hops do not.
#[test]
fn seventy_two_ranks_on_nine_nodes_get_right_results() {
    if on_real_hardware() {
        return;
    }
    for operation in ["all-reduce", "all-gather", "broadcast", "all-to-all"] {
        let line = format!("{operation} -g 8 -b 8K -e 8K -n 1 -w 0");
        assert_right(&line, &perf(("dgx-a100 x 9", 9), "", SMALL, &line));
    }
}
