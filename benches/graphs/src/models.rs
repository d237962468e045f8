//! The models of this folder, with their placements.

use ringdove::graph::{Graph, Placement, TransferPlan};

/// A model, and where its operators run.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// As its file is called.
    pub name: &'static str,
    file: &'static [u8],
    placements: &'static [(u32, &'static str)],
}

macro_rules! model {
    ($name:literal, $($ranks:literal)*) => {
        Model {
            name: $name,
            file: include_bytes!(concat!("../models/", $name, ".onnx")),
            placements: &[
                $(($ranks, include_str!(concat!("../models/", $name, ".", $ranks, ".json")))),*
            ],
        }
    };
}

/// Those that are measured, by the size of what crosses ranks.
pub const MODELS: [Model; 3] = [model!("neumf", 2 4), model!("lstm", 2 4), model!("vgg16", 2 4)];
/// Small networks with many operators: they show that these are right.
pub const NETWORKS: [Model; 2] = [model!("convolutional", 2), model!("transformer", 2)];

impl Model {
    /// Its graph over one rank, or over as many as a placement of it has.
    ///
    /// # Panics
    /// For other ranks, and for files that are no models.
    pub fn graph(&self, ranks: u32) -> Graph {
        let alone = r#"{"ringdove_placement": 1, "ranks": 1}"#;
        let placed = self.placements.iter().find(|(of, _)| *of == ranks);
        let text = if ranks == 1 { alone } else { placed.expect("a placement").1 };
        let placement = Placement::read(self.name, text).unwrap();
        Graph::read_onnx(self.name, self.file.to_vec(), Some(&placement)).unwrap()
    }
}

/// Bytes of a tensor that crosses ranks, on average.
pub fn average_bytes(plan: &TransferPlan) -> u64 {
    let bytes: u64 = plan.edges.iter().filter_map(|edge| edge.bytes).sum();
    bytes / plan.edges.len().max(1) as u64
}
