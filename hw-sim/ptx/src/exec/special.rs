//! Special registers.

/// Special registers; the number is an axis, x to z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// `%tid`
    ThreadIndex(u8),
    /// `%ntid`
    BlockShape(u8),
    /// `%ctaid`
    BlockIndex(u8),
    /// `%nctaid`
    GridShape(u8),
    /// `%clusterid`
    ClusterIndex(u8),
    /// `%nclusterid`
    Clusters(u8),
    /// `%cluster_ctaid`
    ClusterBlock(u8),
    /// `%cluster_nctaid`
    ClusterShape(u8),
    /// `%cluster_ctarank`
    ClusterRank,
    /// `%cluster_nctarank`
    ClusterBlocks,
    /// `%is_explicit_cluster`, as 0 or 1
    ExplicitCluster,
    /// `%laneid`
    Lane,
    /// `%warpid`
    Warp,
    /// `%nwarpid`
    Warps,
    /// `%smid`
    Multiprocessor,
    /// `%nsmid`
    Multiprocessors,
    /// `%gridid`
    Grid,
    /// `%lanemask_eq` and its kin
    LaneMask(LaneMask),
    /// `%clock`, `%clock64`
    Clock,
    /// `%clock_hi`
    ClockHigh,
    /// `%globaltimer`
    Timer,
    /// `%globaltimer_hi`
    TimerHigh,
    /// `%dynamic_smem_size`
    DynamicShared,
    /// `%total_smem_size`
    TotalShared,
    /// `%reserved_smem_offset_begin` and its kin: so many bytes behind the block's own memory.
    ReservedShared(u32),
    /// `%envreg2`: the grid's workspace, low half.
    Workspace,
    /// `%envreg1`: its high half.
    WorkspaceHigh,
    /// A value that never changes here: other `%envreg*`.
    Fixed(u32),
}

/// Which lanes a lane mask names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are PTX's own.
pub enum LaneMask {
    Equal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}
