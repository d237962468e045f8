//! ARK's Fig. 8 as numbers, and the model's errors against them.
//!
//! Read off the paper's vector figure (about 1 %), and written down with as many digits as are
//! given here. The model is compared after rounding to the same digits: 64 B at 2.565 us are
//! 0.02495 GB/s, and the reference says 0.02.

use crate::machine::{Edge, Graph, LinkKind, Machine, Network};
use crate::p2p::{Stream, measure};
use crate::profile::Profile;
use crate::world::{Engine, ModelError, Setup};

/// Which of the figure's curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// Throughput in GB/s of the software engine.
    SoftwareThroughput,
    /// Throughput in GB/s of the hardware engine.
    HardwareThroughput,
    /// Latency in us under CPU control.
    CpuLatency,
    /// Latency in us of the software engine.
    SoftwareLatency,
    /// Latency in us of the hardware engine.
    HardwareLatency,
}

impl Curve {
    /// All, in the order of [`FIGURE_8`].
    pub const ALL: [Self; 5] = [
        Self::SoftwareThroughput,
        Self::HardwareThroughput,
        Self::CpuLatency,
        Self::SoftwareLatency,
        Self::HardwareLatency,
    ];

    /// The engine of the model.
    pub fn engine(self) -> Engine {
        match self {
            Self::SoftwareThroughput | Self::SoftwareLatency => Engine::Proxy,
            Self::HardwareThroughput | Self::HardwareLatency => Engine::Device,
            Self::CpuLatency => Engine::CpuDriven,
        }
    }

    /// GB/s, else us.
    pub fn is_throughput(self) -> bool {
        matches!(self, Self::SoftwareThroughput | Self::HardwareThroughput)
    }

    /// A name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::SoftwareThroughput => "S, GB/s",
            Self::HardwareThroughput => "H, GB/s",
            Self::CpuLatency => "C, us",
            Self::SoftwareLatency => "S, us",
            Self::HardwareLatency => "H, us",
        }
    }
}

/// One size, with the published values in the order of [`Curve::ALL`], as they were written down.
pub type Row = (u64, [&'static str; 5]);

/// All fifty points.
pub const FIGURE_8: [Row; 10] = [
    (64, ["0.02", "0.30", "40.6", "11.1", "4.3"]),
    (1 << 10, ["0.40", "4.85", "42.0", "11.6", "4.6"]),
    (2 << 10, ["0.81", "8.98", "38.3", "11.2", "4.8"]),
    (4 << 10, ["1.59", "12.41", "41.4", "11.4", "5.2"]),
    (8 << 10, ["3.22", "12.49", "39.4", "11.8", "6.2"]),
    (16 << 10, ["6.44", "12.60", "39.6", "12.4", "7.9"]),
    (64 << 10, ["10.46", "12.63", "42.5", "16.1", "12.8"]),
    (256 << 10, ["12.38", "12.65", "60.8", "31.2", "28.3"]),
    (1 << 20, ["12.98", "12.66", "123", "91.0", "90.4"]),
    (4 << 20, ["13.14", "12.66", "368", "330", "341"]),
];

/// A published point and the model's.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Bytes of a message.
    pub bytes: u64,
    /// Which curve.
    pub curve: Curve,
    /// As published.
    pub published: f64,
    /// As modelled, before rounding.
    pub modelled: f64,
    /// As modelled, with the digits of the published value.
    pub rounded: f64,
}

impl Comparison {
    /// Relative error after rounding, with its sign.
    pub fn error(&self) -> f64 {
        self.rounded / self.published - 1.0
    }
}

/// The machine of the figure: two GPUs below one switch, PCIe 3.0 x16.
pub fn machine(profile: &Profile) -> Machine {
    let rate = 16.0 * 128.0 / 130.0;
    let edge = |gpu| Edge { ends: [gpu, 2], kind: LinkKind::Pcie, count: 1, gb_per_s: rate };
    let graph = Graph {
        name: "two V100 on PCIe 3.0".into(),
        gpu_count: 2,
        points: ["gpu0", "gpu1", "switch0"].map(String::from).to_vec(),
        edges: vec![edge(0), edge(1)],
    };
    Machine::new(&graph, 1, Network::default(), profile).expect("the figures are in range")
}

/// Messages in flight: the paper does not say; enough for every curve's steady state.
pub const WINDOW: u32 = 64;

/// Models all fifty points with one profile.
///
/// # Errors
/// A profile that lacks what an engine needs.
pub fn compare(profile: &Profile) -> Result<Vec<Comparison>, ModelError> {
    let machine = machine(profile);
    let mut points = Vec::new();
    for (bytes, published) in FIGURE_8 {
        let stream = Stream { from: 0, to: 1, bytes, count: 1, window: WINDOW, contiguous: false };
        for (curve, text) in Curve::ALL.into_iter().zip(published) {
            let point = measure(Setup::new(&machine, profile, curve.engine()), stream)?;
            let modelled = if curve.is_throughput() { point.gb_per_s } else { point.latency.us() };
            let digits = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
            let rounded = format!("{modelled:.digits$}").parse().expect("a number");
            let published = text.parse().expect("a number");
            points.push(Comparison { bytes, curve, published, modelled, rounded });
        }
    }
    Ok(points)
}

/// What the paper's text claims of the figure, and the model's answer: name, published, modelled.
pub fn claims(points: &[Comparison]) -> [(&'static str, f64, f64); 3] {
    let value = |bytes: u64, curve: Curve| {
        let point = points.iter().find(|it| it.bytes == bytes && it.curve == curve);
        point.expect("a point of the figure").modelled
    };
    let peak = 4 << 20;
    let (software, hardware) = (Curve::SoftwareThroughput, Curve::HardwareThroughput);
    [
        ("throughput of H over S at 8 KB", 3.87, value(8192, hardware) / value(8192, software)),
        (
            "latency of C over H at its best",
            9.1,
            value(64, Curve::CpuLatency) / value(64, Curve::HardwareLatency),
        ),
        ("peak throughput of H over S", 0.9632, value(peak, hardware) / value(peak, software)),
    ]
}

/// Median and largest of the absolute relative errors.
pub fn errors(points: &[Comparison]) -> (f64, f64) {
    let mut errors: Vec<f64> = points.iter().map(|point| point.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    let middle = errors.len() / 2;
    let median = match errors.len() {
        0 => 0.0,
        count if count.is_multiple_of(2) => (errors[middle - 1] + errors[middle]) / 2.0,
        _ => errors[middle],
    };
    (median, errors.last().copied().unwrap_or(0.0))
}
