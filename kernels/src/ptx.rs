//! The compiled device code: PTX text, generated from `kernels/cuda` and committed, so that
//! building ringdove needs no CUDA toolchain. `kernels/generate` makes it anew.

/// One module, compiled from one source for all GPUs and once more for newer ones. Both give the
/// same bits, and have the same accesses and fences that order memory, in the same order.
#[derive(Clone, Copy, Debug)]
pub struct Variants {
    /// For GPUs of every compute capability that the library takes.
    pub sm_70: &'static str,
    /// For compute capability 8.0 and later: with conversions to bf16.
    pub sm_80: &'static str,
}

impl Variants {
    /// The text for a GPU of this compute capability, major and minor.
    pub fn text(&self, capability: (i32, i32)) -> &'static str {
        if capability >= (8, 0) { self.sm_80 } else { self.sm_70 }
    }
}

/// The executor kernel, entry `ringdove_execute`. Its one parameter is a
/// [`LaunchArguments`](crate::launch::LaunchArguments), by value.
pub const EXECUTOR: &str = include_str!("../ptx/executor.ptx");
/// Entry of the executor kernel.
pub const EXECUTOR_ENTRY: &str = "ringdove_execute";

/// An example of a user's kernel that puts, signals and waits by itself
/// (`kernels/cuda/example_exchange.cu`), entry `example_exchange`.
pub const EXAMPLE_EXCHANGE: &str = include_str!("../ptx/example_exchange.ptx");
/// Entry of the example kernel.
pub const EXAMPLE_EXCHANGE_ENTRY: &str = "example_exchange";

/// Kernels of a support vector machine (`kernels/cuda/example_svm.cu`), entries `svm_extremes`,
/// `svm_publish`, `svm_spread`, `svm_step`, `svm_restart` and `svm_rebuild`.
pub const EXAMPLE_SVM: &str = include_str!("../ptx/example_svm.ptx");

/// A stencil in one persistent kernel, whose ranks exchange halos (`kernels/cuda/example_halo.cu`),
/// entry `example_halo`.
pub const EXAMPLE_HALO: &str = include_str!("../ptx/example_halo.ptx");

/// What `examples/gpu_report.rs` measures a GPU with (`kernels/cuda/example_report.cu`), entries
/// `report_atomic`, `report_push`, `report_trip`, `report_step` and `report_product`.
pub const EXAMPLE_REPORT: &str = include_str!("../ptx/example_report.ptx");

/// A matrix product whose tiles are put to all ranks as they are computed
/// (`kernels/cuda/example_tile.cu`), entry `example_tile`.
pub const EXAMPLE_TILE: &str = include_str!("../ptx/example_tile.ptx");

/// Dispatch and combine of expert parallelism (`kernels/cuda/experts.cu`). The one parameter of
/// each entry is an [`ExpertsCall`](crate::experts::ExpertsCall), by value.
pub const EXPERTS: Variants = Variants {
    sm_70: include_str!("../ptx/experts.ptx"),
    sm_80: include_str!("../ptx/experts.sm_80.ptx"),
};
/// Entries of the kernels of experts: `Group` launches them by their places.
pub const EXPERTS_ENTRIES: [&str; 11] = [
    "experts_route",
    "experts_send",
    "experts_await",
    "experts_receive",
    "experts_return",
    "experts_await_returns",
    "experts_combine",
    "experts_await_relayed",
    "experts_relay",
    "experts_await_gathered",
    "experts_gather",
];

/// The kernel of resident programs (`kernels/cuda/program.cu`), entry [`PROGRAM_ENTRY`]. Its one
/// parameter is a [`ProgramArguments`](crate::program::ProgramArguments), by value.
pub const PROGRAM: Variants = Variants {
    sm_70: include_str!("../ptx/program.ptx"),
    sm_80: include_str!("../ptx/program.sm_80.ptx"),
};
/// Entry of the kernel of resident programs.
pub const PROGRAM_ENTRY: &str = "ringdove_program";

/// Watches words that an adapter writes (`kernels/cuda/words.cu`), entry `ringdove_words`. Its one
/// parameter is a [`WordsCall`](crate::words::WordsCall), by value.
pub const WORDS: &str = include_str!("../ptx/words.ptx");

/// Marks that a launch runs, and holds its stream (`kernels/cuda/mark.cu`), entry [`MARK_ENTRY`].
/// Its one parameter is a [`MarkCall`](crate::mark::MarkCall), by value.
pub const MARK: &str = include_str!("../ptx/mark.ptx");
/// Entry of the kernel that marks.
pub const MARK_ENTRY: &str = "ringdove_mark";

/// Applies gradients to parameters (`kernels/cuda/optimizer.cu`), entry [`OPTIMIZER_ENTRY`]. Its
/// one parameter is an [`OptimizerCall`](crate::optimizer::OptimizerCall), by value.
pub const OPTIMIZER: &str = include_str!("../ptx/optimizer.ptx");
/// Entry of the kernel that applies gradients.
pub const OPTIMIZER_ENTRY: &str = "ringdove_optimizer";

/// One-sided transfers between windows (`kernels/cuda/window.cu`). The one parameter of each entry
/// is a [`WindowCall`](crate::window::WindowCall), by value.
pub const WINDOW: &str = include_str!("../ptx/window.ptx");
/// Entries of the kernels of one-sided transfers: threads copy, or one thread asks an engine.
pub const WINDOW_ENTRIES: [&str; 2] = ["window_copy", "window_call"];

/// Makes the calls of `ringdove.cuh` that a list names (`kernels/cuda/test_calls.cu`), entry
/// `test_calls`. For tests.
pub const TEST_CALLS: &str = include_str!("../ptx/test_calls.ptx");

/// Users' own tasks of resident programs (`kernels/cuda/test_task.cu`), functions `test_largest`
/// and `test_late`. For tests.
pub const TEST_TASK: &str = include_str!("../ptx/test_task.ptx");

/// Pushes descriptors from all threads (`kernels/cuda/test_push.cu`), entry `test_push`. For tests.
pub const TEST_PUSH: &str = include_str!("../ptx/test_push.ptx");

/// Kernels of a small training loop (`kernels/cuda/example_train.cu`), entries `train_forward`,
/// `train_loss`, `train_gradients`, `train_backward` and `train_descend`.
pub const EXAMPLE_TRAIN: &str = include_str!("../ptx/example_train.ptx");

/// Router and experts of a small mixture of experts (`kernels/cuda/example_moe.cu`), entries
/// `moe_scores`, `moe_choose`, `moe_activate`, `moe_results`, `moe_deltas`, `moe_backward`,
/// `moe_gradients`, `moe_router_deltas`, `moe_output_gradients`, `moe_input_deltas` and
/// `moe_descend`.
pub const EXAMPLE_MOE: &str = include_str!("../ptx/example_moe.ptx");
