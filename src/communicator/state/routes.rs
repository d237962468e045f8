//! This rank's registered buffers, and the routes from one of them to the peers' parts of another.

use super::sync::lock;
use crate::error::{Error, Result};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// A registered buffer of this rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisteredRange {
    /// Device address.
    pub address: u64,
    pub bytes: u64,
    /// The allocation that held it when it was registered.
    pub allocation: u64,
}

/// An allocation that the library has registered by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedRange {
    pub registration: usize,
    /// Address of its first byte.
    pub start: u64,
    /// The driver's number of it.
    pub allocation: u64,
}

/// Where a range lies in the registered buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RegisteredPlace {
    /// Number of the registration.
    pub registration: usize,
    /// Bytes from its start.
    pub offset: u64,
}

/// Memory at a registered address that is not what was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stale {
    pub registration: usize,
    /// The allocation that was registered.
    pub registered: u64,
}

/// Numbers of the routes that are added while a communicator runs. Clones give of the same ones.
#[derive(Clone, Debug)]
pub(crate) struct RouteNumbers(Arc<Mutex<Numbers>>);

#[derive(Debug)]
struct Numbers {
    next: u32,
    /// First numbers of what was given back, by how many they are.
    free: BTreeMap<u32, Vec<u32>>,
}

impl RouteNumbers {
    fn new(first: u32) -> Self {
        Self(Arc::new(Mutex::new(Numbers { next: first, free: BTreeMap::new() })))
    }

    /// The first of `count` numbers in a row.
    ///
    /// # Errors
    /// [`Error::Argument`] where no descriptor could name them.
    pub fn take(&self, count: u32) -> Result<u32> {
        let mut numbers = lock(&self.0);
        if let Some(first) = numbers.free.get_mut(&count).and_then(Vec::pop) {
            return Ok(first);
        }
        let (first, most) = (numbers.next, ringdove_kernels::descriptor::ROUTE_MAX);
        if count > most - first.min(most) {
            let expected = format!("at most {most} routes for all registered buffers");
            return Err(Error::argument("registered buffers", expected, first + count));
        }
        numbers.next += count;
        Ok(first)
    }

    /// Numbers that no route has any more.
    pub fn give_back(&self, first: u32, count: u32) {
        lock(&self.0).free.entry(count).or_default().push(first);
    }
}

/// Registrations that a rank made without the others have numbers from here on. They are used
/// again.
pub(crate) const LOCAL_FIRST: usize = 1 << 40;

/// Registered buffers of one rank, and the routes between them.
#[derive(Debug)]
pub(crate) struct Routes {
    /// Those that this rank has registered for itself.
    local: BTreeMap<usize, RegisteredRange>,
    /// By number; those that were taken back are missing.
    registered: BTreeMap<usize, RegisteredRange>,
    next_registration: usize,
    /// The first route of a pair of registrations: source and destination.
    bases: HashMap<(usize, usize), u32>,
    /// Single routes between parts of registrations: registration and rank of each end.
    parts: HashMap<[(usize, u32); 2], u32>,
    /// Those that graphs hold: their numbers are never used again, so that a graph which outlives a
    /// registration is refused.
    captured: HashSet<u32>,
    /// Routes of one pair.
    count: u32,
    numbers: RouteNumbers,
}

impl Routes {
    /// No buffers yet. A pair of registrations takes `count` routes; `first` is the number of the
    /// first route of all.
    pub fn new(first: u32, count: u32) -> Self {
        Self {
            local: BTreeMap::new(),
            registered: BTreeMap::new(),
            next_registration: 0,
            bases: HashMap::new(),
            parts: HashMap::new(),
            captured: HashSet::new(),
            count,
            numbers: RouteNumbers::new(first),
        }
    }

    /// What gives routes their numbers.
    pub fn numbers(&self) -> &RouteNumbers {
        &self.numbers
    }

    /// The number that a local registration gets next.
    pub fn next_local(&self) -> usize {
        let mut number = LOCAL_FIRST;
        while self.local.contains_key(&number) {
            number += 1;
        }
        number
    }

    /// Adds a buffer that this rank registers for itself.
    pub fn add_local(&mut self, number: usize, range: RegisteredRange) {
        self.local.insert(number, range);
    }

    /// Takes a local registration back, if there is one.
    pub fn remove_local(&mut self, number: usize) -> Option<RegisteredRange> {
        self.local.remove(&number)
    }

    /// Is any buffer registered?
    pub fn has_any(&self) -> bool {
        !(self.registered.is_empty() && self.local.is_empty())
    }

    /// Where `wanted` lies in this rank's registered buffers, whoever registered them; memory that
    /// has taken the place of what was registered is not.
    pub fn find_any(&self, wanted: RegisteredRange) -> Option<RegisteredPlace> {
        self.registered.iter().chain(&self.local).find_map(|(&registration, range)| {
            let offset = wanted.address.checked_sub(range.address)?;
            let inside = offset <= range.bytes && wanted.bytes <= range.bytes - offset;
            (inside && range.allocation == wanted.allocation)
                .then_some(RegisteredPlace { registration, offset })
        })
    }

    /// Number of the next registration. Numbers are not used again.
    pub fn next_registration(&self) -> usize {
        self.next_registration
    }

    /// This rank's buffer of registration `number`, if it was not taken back.
    pub fn range(&self, number: usize) -> Option<RegisteredRange> {
        self.registered.get(&number).or_else(|| self.local.get(&number)).copied()
    }

    /// Adds this rank's buffer of the next registration.
    pub fn add(&mut self, range: RegisteredRange) {
        self.registered.insert(self.next_registration, range);
        self.next_registration += 1;
    }

    /// The route `base`, and those of its pair, are captured into a graph.
    pub fn capture(&mut self, base: u32) {
        self.captured.insert(base);
    }

    /// Takes registration `number` back. Gives the routes that lead from it or to it, whose numbers
    /// are then used again, unless graphs hold them.
    pub fn remove(&mut self, number: usize) -> Vec<u32> {
        self.registered.remove(&number);
        let concerned =
            |(source, destination): &(usize, usize)| *source == number || *destination == number;
        let bases: Vec<u32> =
            self.bases.extract_if(|pair, _| concerned(pair)).map(|(_, base)| base).collect();
        let free = bases.iter().filter(|base| !self.captured.contains(base));
        free.for_each(|&base| self.numbers.give_back(base, self.count));
        let ends = |ends: &[(usize, u32); 2]| ends.iter().any(|(part, _)| *part == number);
        let parts: Vec<u32> =
            self.parts.extract_if(|pair, _| ends(pair)).map(|(_, route)| route).collect();
        parts.iter().for_each(|&route| self.numbers.give_back(route, 1));
        bases.into_iter().flat_map(|base| base..base + self.count).chain(parts).collect()
    }

    /// The route from one rank's part of a registration to a rank's part of another. `add` is
    /// called with its number where the pair is new.
    ///
    /// # Errors
    /// As [`base`](Self::base).
    pub fn part(
        &mut self,
        ends: [(usize, u32); 2],
        add: impl FnOnce(u32) -> Result<()>,
    ) -> Result<u32> {
        if let Some(&route) = self.parts.get(&ends) {
            return Ok(route);
        }
        let route = self.numbers.take(1)?;
        add(route).inspect_err(|_| self.numbers.give_back(route, 1))?;
        self.parts.insert(ends, route);
        Ok(route)
    }

    /// Where `wanted` lies in the registered buffers, if it does.
    ///
    /// # Errors
    /// [`Stale`] where another allocation was registered at this address: routes lead there, and
    /// the memory that they lead to is gone.
    pub fn find(&self, wanted: RegisteredRange) -> Result<Option<RegisteredPlace>, Stale> {
        let mut stale = None;
        for (&registration, range) in &self.registered {
            let Some(offset) = wanted.address.checked_sub(range.address) else { continue };
            if offset > range.bytes || wanted.bytes > range.bytes - offset {
                continue;
            }
            if range.allocation == wanted.allocation {
                return Ok(Some(RegisteredPlace { registration, offset }));
            }
            stale = Some(Stale { registration, registered: range.allocation });
        }
        stale.map_or(Ok(None), Err)
    }

    /// The first route of a pair of registrations. `add` is called with its number where the pair
    /// is new, and adds the routes of the pair.
    ///
    /// # Errors
    /// Those of `add`; [`Error::Argument`] where there are too many pairs.
    pub fn base(
        &mut self,
        pair: (usize, usize),
        add: impl FnOnce(u32) -> Result<()>,
    ) -> Result<u32> {
        if let Some(&base) = self.bases.get(&pair) {
            return Ok(base);
        }
        let base = self.numbers.take(self.count)?;
        add(base).inspect_err(|_| self.numbers.give_back(base, self.count))?;
        self.bases.insert(pair, base);
        Ok(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(address: u64) -> RegisteredRange {
        RegisteredRange { address, bytes: 64, allocation: 1 }
    }

    /// If this fails, a program that registers and takes back runs out of routes, or a pair of
    /// buffers gets routes that lead to another one's memory.
    #[test]
    fn routes_of_a_registration_that_was_taken_back_are_used_again() {
        let mut routes = Routes::new(10, 3);
        for number in 0..4 {
            assert_eq!(routes.next_registration(), number);
            routes.add(range(number as u64 * 64));
        }
        let base = |routes: &mut Routes, pair| routes.base(pair, |_| Ok(())).unwrap();
        let pairs = [(0, 0), (0, 1), (1, 2), (2, 3)];
        assert_eq!(pairs.map(|pair| base(&mut routes, pair)), [10, 13, 16, 19]);
        let mut removed = routes.remove(1);
        removed.sort_unstable();
        assert_eq!(removed, [13, 14, 15, 16, 17, 18]);
        assert!(routes.range(1).is_none() && routes.range(2).is_some());
        assert_eq!(
            routes.find(RegisteredRange { bytes: 8, ..range(64) }),
            Ok(None),
            "nothing is registered there any more"
        );
        routes.add(range(64));
        let again = [(4, 4), (0, 4), (4, 2)].map(|pair| base(&mut routes, pair));
        assert_eq!(again.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
        assert!(again[..2].iter().all(|base| [13, 16].contains(base)), "{again:?}");
        assert_eq!(again[2], 22);
        assert_eq!(base(&mut routes, (0, 0)), 10, "others keep theirs");
    }

    /// If this fails, routes that could not be added are taken for added.
    #[test]
    fn a_pair_whose_routes_cannot_be_added_is_tried_again() {
        let mut routes = Routes::new(0, 2);
        let refused = Error::argument("route", "anything", "nothing");
        routes.base((0, 0), |_| Err(refused)).unwrap_err();
        let mut added = None;
        let base = routes.base((0, 0), |base| {
            added = Some(base);
            Ok(())
        });
        assert_eq!((base.unwrap(), added), (0, Some(0)));
    }
}
