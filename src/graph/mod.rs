//! A data-flow graph over ranks, and what its tensors need to get from one to another.
//!
//! ```text
//! file ──read──▶ Graph ──analyse──▶ TransferPlan ──first iteration──▶ corrected TransferPlan
//! ```
//!
//! * A [`Graph`] comes in as data: tensors with types and shapes, as far as they are known, and
//!   operators placed on ranks, in a small JSON form ([`Graph::read`]) or, with the feature `onnx`,
//!   in ONNX (`Graph::read_onnx`, with a [`Placement`] or ranks in its metadata). Shapes that
//!   follow from others are inferred, those that disagree refused.
//! * [`TransferPlan::of`] finds the tensors that cross ranks. Those of known shape get a place in
//!   the receiver's registered memory and one in the producer's, so that each is written from where
//!   it is computed to where it is read: no copy on either side. Those of unknown shape get room
//!   for metadata, which the producer writes, and are read by the receiver.
//! * A [`Trace`] of a first iteration corrects what shapes do not show
//!   ([`TransferPlan::corrected`]): operators that write in place share a place with what they
//!   overwrite, and wait until it was sent; buffers outside of registered memory are staged.
//! * [`TransferPlan::explain`] prints the plan; `ringdove graph explain FILE --svg F` draws it.
//!
//! * A [`Runner`] runs it on one rank. The plan's places are offsets in one
//!   [`Window`](crate::window::Window) on each rank, and its steps are calls of
//!   [`Windows`](crate::window::Windows): write with a signal, wait, read. Operators are run by
//!   whoever implements [`Compute`]. Between two iterations ranks meet in a barrier, since the next
//!   one writes the same places.
//!
//! This is the method of Xue et al., *Fast Distributed Deep Learning over RDMA* (EuroSys 2019).
//!
//! A [`program`](crate::program) is another thing: one rank's tiles, blocks and waits for one
//! resident kernel, whose collectives are the only way between ranks. This graph says what runs on
//! which rank and what moves between; how a rank computes is not its subject. A program for each
//! rank may be built from it later: put and wait as tasks of programs are planned.
//!
//! Planned: places that are used again when their tensors are dead. Of the crates that read ONNX
//! `prost` alone is used, with the few messages that a graph needs: `onnx-ir` is a pre-release,
//! `tract-onnx` and `candle-onnx` bring engines that run models, `onnx-extractor` needs `protoc`,
//! `onnx-protobuf` has another licence, and `rten-onnx` takes memory as lengths in a file ask for.

mod attributes;
mod build;
mod error;
mod explain;
mod file;
mod model;
#[cfg(feature = "onnx")]
mod onnx;
mod placement;
mod plan;
mod run;
mod shapes;

pub use error::GraphError;
pub use model::{
    Attributes, Extent, Graph, Kind, Memory, Operator, OperatorNumber, Sliding, Tensor,
    TensorNumber,
};
pub use placement::Placement;
pub use plan::{
    ALIGN_BYTES, Edge, METADATA_BYTES, Method, Place, Step, Trace, TraceError, TracedBuffer,
    TransferPlan, Use, Why,
};
pub use run::{Buffer, Compute, Runner};
