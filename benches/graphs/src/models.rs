//! The models of this folder, with their placements.

use ringdove::graph::{Graph, Placement, TransferPlan};

/// A model, and where its operators run.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// As its file is called.
    pub name: &'static str,
    file: &'static [u8],
    placements: [(u32, &'static str); 2],
}

macro_rules! model {
    ($name:literal) => {
        Model {
            name: $name,
            file: include_bytes!(concat!("../models/", $name, ".onnx")),
            placements: [
                (2, include_str!(concat!("../models/", $name, ".2.json"))),
                (4, include_str!(concat!("../models/", $name, ".4.json"))),
            ],
        }
    };
}

/// All of them, by the size of what crosses ranks.
pub const MODELS: [Model; 3] = [model!("neumf"), model!("lstm"), model!("vgg16")];

impl Model {
    /// Its graph over one, two or four ranks.
    ///
    /// # Panics
    /// For other ranks, and for files that are no models.
    pub fn graph(&self, ranks: u32) -> Graph {
        let alone = r#"{"ringdove_placement": 1, "ranks": 1}"#;
        let placed = self.placements.iter().find(|(of, _)| *of == ranks);
        let text = if ranks == 1 { alone } else { placed.expect("two or four ranks").1 };
        let placement = Placement::read(self.name, text).unwrap();
        Graph::read_onnx(self.name, self.file.to_vec(), Some(&placement)).unwrap()
    }
}

/// Bytes of a tensor that crosses ranks, on average.
pub fn average_bytes(plan: &TransferPlan) -> u64 {
    let bytes: u64 = plan.edges.iter().filter_map(|edge| edge.bytes).sum();
    bytes / plan.edges.len().max(1) as u64
}
