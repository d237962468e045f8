//! Host memory of a rank in which ranks of its node write that do not reach its GPU's: the slots of
//! lanes that lead to it, and the signals of lanes in both directions.
//!
//! A sender's engine copies from its GPU into the slots of the receiver, whose kernels read them
//! over PCI. What a rank sends lies on its device, so lanes to ranks that are reached and to ranks
//! that are not differ in the addresses at the far end alone.

use super::layout::{Layout, PortPlace};
use super::reach::HostPairs;
use crate::gpu::HostMemory;
use crate::id::Rank;
use crate::plan::{LaneKind, Side};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes between signal words, as in device memory.
const SIGNAL_STRIDE: u64 = 32;
/// Slots begin at a page, behind all signals.
const PAGE: u64 = 4096;

/// Where signals and slots of a rank's ports lie in its host memory. Offsets, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostLayout {
    places: HashMap<u32, HostPlace>,
    /// Where the slots begin.
    pub staging: u64,
    /// Size of it all.
    pub bytes: u64,
}

/// The place of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostPlace {
    /// The word that the peer's engine raises.
    pub signal: u64,
    /// The slots that it writes, of a receive port that has any.
    pub slots: Option<u64>,
}

impl HostLayout {
    /// Of `rank`, whose layout is `layout`.
    pub fn new(layout: &Layout, rank: Rank, pairs: &HostPairs) -> Self {
        let leads_through_host = |place: &PortPlace| {
            // Where there is such a pair, no plan uses lanes of stores.
            let is_used = place.end.lane.kind != LaneKind::Stores;
            is_used && pairs.obstacle(rank, place.peer()).is_some()
        };
        let through_host: Vec<_> = layout.ports().filter(leads_through_host).collect();
        let staging = (through_host.len() as u64 * SIGNAL_STRIDE).next_multiple_of(PAGE);
        let (mut places, mut end) = (HashMap::new(), staging);
        for (index, place) in (0..).zip(through_host) {
            let bytes = match place.end.side {
                Side::Send => 0,
                Side::Receive => place.slots_bytes(),
            };
            let slots = (bytes > 0).then_some(end);
            end += bytes;
            places.insert(place.number, HostPlace { signal: index * SIGNAL_STRIDE, slots });
        }
        Self { places, staging, bytes: end.next_multiple_of(PAGE) }
    }

    /// The place of port `number`, if it leads through host memory.
    pub fn place(&self, number: u32) -> Option<HostPlace> {
        self.places.get(&number).copied()
    }

    /// Bytes of the slots.
    pub fn staging_bytes(&self) -> u64 {
        self.bytes - self.staging
    }
}

/// A rank's host memory, as one context reaches it.
#[derive(Clone, Debug)]
pub(crate) struct HostLanes {
    pub layout: Arc<HostLayout>,
    pub memory: Arc<HostMemory>,
}

impl HostLanes {
    /// Addresses of the signal and, for a port that has some there, of the slots of port `number`.
    pub fn addresses(&self, number: u32) -> Option<(u64, Option<u64>)> {
        let at = |offset| self.memory.address() + offset;
        self.layout.place(number).map(|place| (at(place.signal), place.slots.map(at)))
    }

    /// Address of the slots.
    pub fn staging(&self) -> u64 {
        self.memory.address() + self.layout.staging
    }
}

#[cfg(test)]
mod tests {
    use super::super::geometry::{Geometry, Nodes};
    use super::super::reach::Obstacle;
    use super::*;
    use crate::settings::Settings;

    /// If this fails, two engines write the same bytes of host memory, or beyond its end.
    #[test]
    fn places_are_apart_aligned_and_inside() {
        let geometry = Geometry::new(6, Nodes::One, &Settings::default()).unwrap();
        let layout = Layout::new(&geometry, Rank(2));
        let mut rows = vec![Vec::new(); 6];
        rows[2] = vec![(Rank(0), Obstacle::NoPeerAccess), (Rank(5), Obstacle::NoPeerAccess)];
        let pairs = HostPairs::of(rows.iter(), |_, _| false).unwrap();
        let host = HostLayout::new(&layout, Rank(2), &pairs);
        let mut taken = Vec::new();
        for port in layout.ports() {
            let place = host.place(port.number);
            let is_used = port.end.lane.kind != LaneKind::Stores;
            assert_eq!(place.is_some(), is_used && [Rank(0), Rank(5)].contains(&port.peer()));
            let Some(place) = place else { continue };
            taken.push((place.signal, place.signal + 8));
            let receives = port.end.side == Side::Receive && port.slots_bytes() > 0;
            assert_eq!(place.slots.is_some(), receives);
            taken.extend(place.slots.map(|slots| (slots, slots + port.slots_bytes())));
            assert!(place.slots.is_none_or(|slots| slots % 16 == 0 && slots >= host.staging));
        }
        assert!(taken.len() > 8);
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{taken:?}");
        assert!(taken.last().unwrap().1 <= host.bytes);
    }
}
