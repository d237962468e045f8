//! Places in registered memory (R15): what this rank puts from, without a copy, and what others
//! have granted it to put into.
//!
//! A receiver *offers* a buffer to the sender the first time that it receives there from it. The
//! sender opens the memory, gives the grant a number, adds its routes, and answers; from then on
//! the receiver's calls grant the place, and until then data is staged. So nobody waits for
//! anybody, in no call, and a peer that never answers costs copies.
//!
//! ```text
//! receiver: offer(registration, where it lies) ──▶ sender: opens it, adds routes
//!           may grant                          ◀── known(registration, number, generation)
//!           withdraw(registration)             ──▶ removes the routes, closes it
//!           may free the memory                ◀── gone(registration)
//! ```
//!
//! Between ranks of one process these are calls, else notes of the control plane.

mod tables;

use super::description::PLACE_NOTE;
use super::inter_node::part_of;
use super::on_demand::Connector;
use super::single_routes::{Destination, EngineRoutes};
use crate::bootstrap::ControlPlane;
use crate::communicator::state::{
    Offer, PlaceTaker, PortPlace, ProcessState, RankBuffer, RankState, RouteNumbers, lock,
};
use crate::engine::RegionDescriptor;
use crate::error::{Error, Result};
use crate::gpu::{Import, discard, outside_captures};
use crate::id::Rank;
use crate::lived::Lived;
use crate::plan::{Direction, Lane, LaneEnd, LaneKind, Side};
use crate::shared::{PeerRange, Region};
use crate::transport::verbs::RemoteRegion;
use ringdove_kernels::launch::place::{self, GENERATION_MAX, GRANTS_MAX, SOURCES_MAX};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use tables::{Grant, Inner, Note, Offered, Source};

/// An offer that nobody has answered for so long is made again: its receiver may not have been
/// there yet.
const OFFER_AGAIN: Duration = Duration::from_secs(1);
/// The number of the source that is the staging memory.
const STAGING_SOURCE: u32 = 0;

/// What a rank's places are made of.
pub(super) struct Parts {
    pub engine: EngineRoutes,
    pub numbers: RouteNumbers,
    pub plane: Option<Arc<ControlPlane>>,
    pub connector: Option<Arc<Connector>>,
    /// Memory of other processes is opened while kernels run.
    pub open_beside_kernels: bool,
}

/// Places of one rank.
pub(in crate::communicator) struct Places {
    process: Weak<ProcessState>,
    state: Arc<RankState>,
    table: Region,
    engine: EngineRoutes,
    numbers: RouteNumbers,
    plane: Weak<ControlPlane>,
    connector: Option<Arc<Connector>>,
    open_beside_kernels: bool,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Sends and receives that were planned without copies.
    sent: AtomicU64,
    received: AtomicU64,
}

impl Drop for Places {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        let grants = std::mem::take(&mut inner.grants);
        // Closing them may wait for the device.
        discard(grants.into_values().filter_map(|grant| grant.import).collect::<Vec<_>>());
    }
}

impl Places {
    /// No places yet; answers offers of other ranks from now on.
    pub(super) fn new(
        process: &Arc<ProcessState>,
        state: &Arc<RankState>,
        parts: Parts,
    ) -> Result<Arc<Self>> {
        let Parts { engine, numbers, plane, connector, open_beside_kernels } = parts;
        let staging = state.memory.endpoint().staging;
        let length_bytes = state.memory.layout.staging_bytes();
        let source = Source {
            registration: None,
            region: RegionDescriptor { base: staging, length_bytes },
            slots: 0,
            ports: BTreeSet::new(),
            is_captured: false,
        };
        let inner = Inner { sources: [(STAGING_SOURCE, source)].into(), ..Inner::default() };
        let places = Arc::new(Self {
            process: Arc::downgrade(process),
            state: state.clone(),
            table: state.memory.sources()?,
            engine,
            numbers,
            plane: plane.as_ref().map_or(Weak::new(), Arc::downgrade),
            connector,
            open_beside_kernels,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        });
        let taker: Arc<dyn PlaceTaker> = places.clone();
        process.add_places(state.rank, Arc::downgrade(&taker));
        if let Some(plane) = plane {
            let receiver = Arc::downgrade(&places);
            plane.on_note(move |from, bytes| {
                let Some((&PLACE_NOTE, bytes)) = bytes.split_first() else { return };
                if let Some(places) = receiver.upgrade() {
                    places.receive(from, bytes);
                }
            });
        }
        Ok(places)
    }

    fn rank(&self) -> Rank {
        self.state.rank
    }

    /// The send ports of all lanes with slots to `peer`: messages go on the first, and blocks of
    /// collectives on one each.
    fn ports(&self, peer: Rank) -> impl Iterator<Item = PortPlace> {
        let sends = |place: &PortPlace| {
            place.end.side == Side::Send && place.end.lane.kind == LaneKind::Slots
        };
        self.state.memory.layout.ports_of(peer).filter(sends)
    }

    /// The send port of the lane on which messages to `peer` go.
    fn port(&self, peer: Rank) -> Option<PortPlace> {
        let lane = Lane { from: self.rank().0, to: peer.0, index: 0, kind: LaneKind::Slots };
        self.state.memory.layout.port(LaneEnd { lane, side: Side::Send })
    }

    fn write_entry(&self, source: u32, grant: u32, entry: u32) -> Result<()> {
        let index = place::source_entry(source, grant) as usize;
        // Release: the route is there before. Pairs with the grant's credit, R15.
        self.table.word32(index * size_of::<u32>())?.store(entry, Ordering::Release);
        Ok(())
    }

    /// The number of the source that is `registration`, memory `region` of this rank, with routes
    /// for all messages to `peer`. `None` where there are too many sources. What is `captured`
    /// keeps its number to itself.
    ///
    /// # Errors
    /// Those of the engine, and where there are too many routes.
    pub fn source(
        &self,
        registration: usize,
        region: RegionDescriptor,
        peer: Rank,
        captured: bool,
    ) -> Result<Option<u32>> {
        let Some(first) = self.port(peer) else { return Ok(None) };
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        let known = inner.sources.iter().find(|(_, it)| it.registration == Some(registration));
        let number = match known {
            Some((&number, _)) => number,
            None => {
                let is_free = |number: &u32| {
                    !inner.sources.contains_key(number) && !inner.retired.contains(number)
                };
                let free = (1..SOURCES_MAX).find(is_free);
                let Some(number) = free else { return Ok(None) };
                let slots = self.numbers.take(self.state.memory.layout.port_count())?;
                let (registration, ports) = (Some(registration), BTreeSet::new());
                let source = Source { registration, region, slots, ports, is_captured: false };
                inner.sources.insert(number, source);
                for (&grant, entry) in &mut inner.grants {
                    self.join(number, region, grant, entry)?;
                }
                self.write_entry(number, 0, slots)?;
                number
            }
        };
        let source = inner.sources.get_mut(&number).expect("found or made");
        source.is_captured |= captured;
        // The first port comes last: where it has a route, all have one, and calls look no further.
        if !source.ports.contains(&first.number) {
            let ports: Vec<_> = self.ports(peer).collect();
            for port in ports.into_iter().rev() {
                if !source.ports.contains(&port.number) {
                    let to = self.engine.slots(&port);
                    self.engine.add(source.slots + port.number, port.number, region, &to)?;
                    source.ports.insert(port.number);
                }
            }
        }
        Ok(Some(number))
    }

    /// Adds the route from a source to granted memory.
    fn join(
        &self,
        source: u32,
        region: RegionDescriptor,
        number: u32,
        grant: &mut Grant,
    ) -> Result<()> {
        let route = self.numbers.take(1)?;
        let added = self.engine.add(route, grant.lane, region, &grant.destination);
        added.inspect_err(|_| self.numbers.give_back(route, 1))?;
        grant.routes.insert(source, route);
        self.write_entry(source, number, place::entry(route, grant.generation))
    }

    /// The grant by which `peer` knows registration `number` of this rank; its number and
    /// generation. Where it does not, it is offered to it.
    pub fn grant(&self, peer: Rank, number: usize) -> Result<Option<(u32, u32)>> {
        let key = (peer, number as u64);
        let offer = {
            let mut inner = lock(&self.inner);
            match inner.offered.get(&key) {
                Some(&Offered::Known { grant, generation }) => {
                    return Ok(Some((grant, generation)));
                }
                Some(Offered::Asked { since }) if since.elapsed() < OFFER_AGAIN => return Ok(None),
                Some(Offered::Withdrawn) => return Ok(None),
                _ => {}
            }
            let Some(offer) = inner.own.get(&number).cloned() else { return Ok(None) };
            if self.needs_export(peer) && offer.buffer.export.is_none() {
                return Ok(None);
            }
            inner.offered.insert(key, Offered::Asked { since: Instant::now() });
            offer
        };
        match self.local(peer) {
            Some(taker) => {
                let Some((grant, generation)) = taker.take(self.rank(), &offer) else {
                    return Ok(None);
                };
                lock(&self.inner).offered.insert(key, Offered::Known { grant, generation });
                Ok(Some((grant, generation)))
            }
            None => self.send(peer, &Note::Offer(offer)).map(|()| None),
        }
    }

    /// One more send or receive needs no copy here.
    pub fn count(&self, direction: Direction) {
        let counter = match direction {
            Direction::Send => &self.sent,
            Direction::Receive => &self.received,
        };
        // Relaxed: a number for people.
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Sends that were planned without a copy.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Receives that were.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Registration `number` of this rank, which may be offered from now on.
    pub fn add(&self, number: usize, window: u64, buffer: RankBuffer) {
        let offer = Offer { number: number as u64, window, buffer };
        lock(&self.inner).own.insert(number, offer);
    }

    /// Tells everybody to forget registration `number`, which this rank's launches use no more.
    ///
    /// # Errors
    /// Those of the engine and of the control plane.
    pub fn withdraw(&self, number: usize) -> Result<()> {
        self.remove_source(number)?;
        let key = number as u64;
        let knowing: Vec<Rank> = {
            let mut inner = lock(&self.inner);
            inner.own.remove(&number);
            let of =
                |((peer, other), _): (&(Rank, u64), &Offered)| (*other == key).then_some(*peer);
            let peers: Vec<Rank> = inner.offered.iter().filter_map(of).collect();
            peers.iter().for_each(|&peer| {
                inner.offered.insert((peer, key), Offered::Withdrawn);
            });
            peers
        };
        for &peer in &knowing {
            match self.local(peer) {
                Some(taker) => {
                    taker.forget(self.rank(), key);
                    lock(&self.inner).offered.remove(&(peer, key));
                }
                None => self.send(peer, &Note::Withdraw { number: key })?,
            }
        }
        Ok(())
    }

    /// Waits, at most `limit`, until everybody has forgotten registration `number`.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] names a peer that has not answered.
    pub fn forgotten(&self, number: usize, limit: Duration) -> Result<()> {
        let key = number as u64;
        let mut lived = Lived::new();
        let process = self.process.upgrade();
        let failed = || process.as_ref().is_none_or(|process| process.failure().is_some());
        loop {
            let inner = lock(&self.inner);
            let left = inner.offered.keys().find(|(_, other)| *other == key).map(|(peer, _)| *peer);
            let Some(peer) = left else { return Ok(()) };
            if lived.look() >= limit || failed() {
                return Err(Error::HostWaitExpired {
                    what: format!("{peer} to forget a buffer of {}", self.rank()),
                    expected: "an answer over the control plane".into(),
                    seen: "none".into(),
                    waited: lived.time(),
                });
            }
            let nap = Duration::from_millis(20).min(limit);
            drop(self.changed.wait_timeout(inner, nap).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn remove_source(&self, registration: usize) -> Result<()> {
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        let known = inner.sources.iter().find(|(_, it)| it.registration == Some(registration));
        let Some((&number, _)) = known else { return Ok(()) };
        let source = inner.sources.remove(&number).expect("found");
        if source.is_captured {
            inner.retired.insert(number);
        }
        self.write_entry(number, 0, 0)?;
        for port in source.ports {
            self.engine.remove(source.slots + port)?;
        }
        self.numbers.give_back(source.slots, self.state.memory.layout.port_count());
        for (&grant, entry) in &mut inner.grants {
            if let Some(route) = entry.routes.remove(&number) {
                self.write_entry(number, grant, 0)?;
                self.engine.remove(route)?;
                self.numbers.give_back(route, 1);
            }
        }
        Ok(())
    }

    /// Opens what was offered while kernels ran; none run now.
    pub fn open_waiting(&self) {
        let waiting = std::mem::take(&mut lock(&self.inner).waiting);
        for (peer, offer) in waiting {
            let number = offer.number;
            if let Some((grant, generation)) = self.open_offer(peer, &offer) {
                let _ = self.send(peer, &Note::Known { number, grant, generation });
            }
        }
    }

    /// Are there offers for [`open_waiting`](Self::open_waiting)?
    pub fn has_waiting(&self) -> bool {
        !lock(&self.inner).waiting.is_empty()
    }

    /// Is the memory of this rank opened in the peer's process?
    fn needs_export(&self, peer: Rank) -> bool {
        let elsewhere = self.connector.as_ref().is_some_and(|connector| connector.reaches(peer));
        let local = self.process.upgrade().is_some_and(|process| process.is_local(peer));
        matches!(self.engine, EngineRoutes::Proxy { .. }) && !elsewhere && !local
    }

    fn local(&self, peer: Rank) -> Option<Arc<dyn PlaceTaker>> {
        self.process.upgrade().filter(|process| process.is_local(peer))?.places(peer)
    }

    fn send(&self, to: Rank, note: &Note) -> Result<()> {
        let mut bytes = vec![PLACE_NOTE];
        bytes.extend(postcard::to_allocvec(note).expect("writing to memory does not fail"));
        self.plane.upgrade().map_or(Ok(()), |plane| plane.send_note(to, &bytes))
    }

    /// A note of another rank. Runs on the I/O thread.
    fn receive(&self, from: Rank, bytes: &[u8]) {
        let Ok(note) = postcard::from_bytes(bytes) else {
            tracing::warn!(rank = self.rank().0, peer = from.0, "a note that makes no sense");
            return;
        };
        match note {
            Note::Offer(offer) => {
                if offer.buffer.export.is_some() && !self.open_beside_kernels {
                    let mut inner = lock(&self.inner);
                    inner.waiting.retain(|(peer, it)| (*peer, it.number) != (from, offer.number));
                    inner.waiting.push((from, offer));
                    return;
                }
                let number = offer.number;
                if let Some((grant, generation)) = self.open_offer(from, &offer) {
                    let _ = self.send(from, &Note::Known { number, grant, generation });
                }
            }
            Note::Known { number, grant, generation } => {
                let mut inner = lock(&self.inner);
                let known = inner.offered.get_mut(&(from, number));
                // What was withdrawn meanwhile stays so.
                if let Some(offered @ Offered::Asked { .. }) = known {
                    *offered = Offered::Known { grant, generation };
                }
            }
            Note::Withdraw { number } => {
                self.forget_grant(from, number);
                let _ = self.send(from, &Note::Gone { number });
            }
            Note::Gone { number } => {
                let mut inner = lock(&self.inner);
                if let Some(Offered::Withdrawn) = inner.offered.get(&(from, number)) {
                    inner.offered.remove(&(from, number));
                }
                drop(inner);
                self.changed.notify_all();
            }
        }
    }

    /// Opens what `peer` offers; logs why not.
    fn open_offer(&self, peer: Rank, offer: &Offer) -> Option<(u32, u32)> {
        let opened = outside_captures(|| self.try_open(peer, offer));
        opened.unwrap_or_else(|error| {
            let rank = self.rank().0;
            tracing::warn!(rank, peer = peer.0, %error, "messages to it are staged");
            None
        })
    }

    fn try_open(&self, peer: Rank, offer: &Offer) -> Result<Option<(u32, u32)>> {
        let Some(port) = self.port(peer) else { return Ok(None) };
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        let same = |grant: &Grant| (grant.peer, grant.registration) == (peer, offer.number);
        if let Some((&number, grant)) = inner.grants.iter().find(|(_, grant)| same(grant)) {
            return Ok(Some((number, grant.generation)));
        }
        let free = (1..GRANTS_MAX).find(|number| !inner.grants.contains_key(number));
        let Some(number) = free else { return Ok(None) };
        let (destination, import, remote) = self.reach(peer, offer)?;
        let generation = inner.generations.entry(number).or_default();
        *generation = *generation % GENERATION_MAX + 1;
        let mut grant = Grant {
            peer,
            registration: offer.number,
            lane: port.number,
            destination,
            generation: *generation,
            routes: BTreeMap::new(),
            import,
            remote,
        };
        for (&source, entry) in &inner.sources {
            self.join(source, entry.region, number, &mut grant)?;
        }
        let generation = grant.generation;
        tracing::debug!(
            rank = self.rank().0,
            peer = peer.0,
            offer.number,
            number,
            "may be granted"
        );
        inner.grants.insert(number, grant);
        Ok(Some((number, generation)))
    }

    /// The memory that `peer` offers, as this rank's engine reaches it.
    fn reach(
        &self,
        peer: Rank,
        offer: &Offer,
    ) -> Result<(Destination, Option<Arc<Import>>, Option<RemoteRegion>)> {
        let buffer = &offer.buffer;
        if let EngineRoutes::Device { .. } = self.engine {
            let number = offer.window;
            let window = Destination::Window { number, offset: 0, bytes: buffer.bytes };
            return Ok((window, None, None));
        }
        let memory =
            |base| Destination::Memory(RegionDescriptor { base, length_bytes: buffer.bytes });
        let is_local = self.process.upgrade().is_some_and(|process| process.is_local(peer));
        if is_local {
            return Ok((memory(buffer.address), None, None));
        }
        if let Some(connector) = self.connector.as_ref().filter(|it| it.reaches(peer)) {
            let region = part_of(peer, offer.number as usize, buffer)?;
            connector.add_remote(peer, region)?;
            return Ok((memory(buffer.address), None, Some(region)));
        }
        let what = format!("its registration {}", offer.number);
        let range = PeerRange { rank: peer, what: &what, length_bytes: buffer.bytes, align: 1 };
        let exported = buffer.export.as_ref().ok_or_else(|| {
            Error::peer_value(peer, &what, "a handle, as of every rank of another process", "none")
        })?;
        let export = exported.export(peer, &what)?;
        let (import, address) = Import::locate(&self.state.context, &export, &range)?;
        Ok((memory(address), Some(import), None))
    }

    /// Forgets what `peer` has offered; nothing is in flight there.
    fn forget_grant(&self, peer: Rank, registration: u64) {
        let mut inner = lock(&self.inner);
        inner.waiting.retain(|(from, offer)| (*from, offer.number) != (peer, registration));
        let same = |grant: &Grant| (grant.peer, grant.registration) == (peer, registration);
        let found = inner.grants.iter().find(|(_, grant)| same(grant)).map(|(&number, _)| number);
        let Some(number) = found else { return };
        let grant = inner.grants.remove(&number).expect("found");
        drop(inner);
        let forget = || -> Result<()> {
            for (&source, &route) in &grant.routes {
                self.write_entry(source, number, 0)?;
                self.engine.remove(route)?;
                self.numbers.give_back(route, 1);
            }
            match (&self.connector, grant.remote) {
                (Some(connector), Some(region)) => connector.remove_remote(peer, region),
                _ => Ok(()),
            }
        };
        if let Err(error) = forget() {
            tracing::warn!(rank = self.rank().0, peer = peer.0, %error, "routes stay");
        }
        discard(grant.import.into_iter().collect::<Vec<_>>());
    }
}

impl PlaceTaker for Places {
    fn take(&self, from: Rank, offer: &Offer) -> Option<(u32, u32)> {
        self.open_offer(from, offer)
    }

    fn forget(&self, from: Rank, number: u64) {
        self.forget_grant(from, number);
    }
}
