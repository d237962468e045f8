//! Special registers by name.

use crate::ast::ScalarType;
use crate::exec::program::{LaneMask, Special};
use crate::kernel::RESERVED_SHARED_BYTES;

/// The special register of a name, with its type.
pub fn find(name: &str) -> Option<(Special, ScalarType)> {
    use ScalarType::{U32, U64};
    let (base, axis) = match name.rsplit_once('.') {
        Some((base, "x")) => (base, 0),
        Some((base, "y")) => (base, 1),
        Some((base, "z")) => (base, 2),
        _ => (name, 0),
    };
    let axes = base.len() != name.len();
    let which = match base {
        "%tid" if axes => Special::ThreadIndex(axis),
        "%ntid" if axes => Special::BlockShape(axis),
        "%ctaid" if axes => Special::BlockIndex(axis),
        "%nctaid" if axes => Special::GridShape(axis),
        "%clusterid" if axes => Special::ClusterIndex(axis),
        "%nclusterid" if axes => Special::Clusters(axis),
        "%cluster_ctaid" if axes => Special::ClusterBlock(axis),
        "%cluster_nctaid" if axes => Special::ClusterShape(axis),
        "%cluster_ctarank" => Special::ClusterRank,
        "%cluster_nctarank" => Special::ClusterBlocks,
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%smid" => Special::Multiprocessor,
        "%nsmid" => Special::Multiprocessors,
        "%gridid" => return Some((Special::Grid, U64)),
        "%lanemask_eq" => Special::LaneMask(LaneMask::Equal),
        "%lanemask_lt" => Special::LaneMask(LaneMask::Less),
        "%lanemask_le" => Special::LaneMask(LaneMask::LessEqual),
        "%lanemask_gt" => Special::LaneMask(LaneMask::Greater),
        "%lanemask_ge" => Special::LaneMask(LaneMask::GreaterEqual),
        "%clock" => Special::Clock,
        "%clock_hi" => Special::ClockHigh,
        "%clock64" => return Some((Special::Clock, U64)),
        "%globaltimer" => return Some((Special::Timer, U64)),
        "%globaltimer_lo" => Special::Timer,
        "%globaltimer_hi" => Special::TimerHigh,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%envreg1" => Special::WorkspaceHigh,
        "%envreg2" => Special::Workspace,
        "%total_smem_size" | "%aggr_smem_size" => Special::TotalShared,
        // Cooperative groups keep what they share from `_1` on.
        "%reserved_smem_offset_begin" | "%reserved_smem_offset_0" => Special::ReservedShared(0),
        "%reserved_smem_offset_1" => Special::ReservedShared(RESERVED_SHARED_BYTES / 4),
        "%reserved_smem_offset_end" => Special::ReservedShared(RESERVED_SHARED_BYTES),
        "%reserved_smem_offset_cap" => Special::Fixed(RESERVED_SHARED_BYTES),
        _ => {
            let number: u32 = base.strip_prefix("%envreg")?.parse().ok()?;
            (number < 32).then_some(Special::Fixed(0))?
        }
    };
    Some((which, U32))
}
