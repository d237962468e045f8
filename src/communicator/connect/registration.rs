//! Registered buffers of a connected rank: registered, opened by the other ranks, and taken back.

use super::description::registration_window;
use super::host_memory;
use super::rank::ConnectedRank;
use crate::bootstrap::agreement::{Value, signature};
use crate::communicator::state::{
    ExportedMemory, Imported, LOCAL_FIRST, Launcher, PortPlace, RankBuffer, RegisteredBuffer,
    RegisteredRange, SharedFile, file_bytes,
};
use crate::error::{Error, Result};
use crate::gpu::{Allocation, Current, Export, GpuRange, HostMemory, Import};
use crate::id::{EngineKind, Rank, Registration};
use crate::plan::Side;
use crate::shared::PeerRange;
use std::sync::Arc;
use std::time::Duration;

impl ConnectedRank {
    /// Registers the range of device memory at `address`, which `allocation` holds. Does not wait
    /// for the other ranks.
    ///
    /// # Errors
    /// [`Error::Argument`] for memory that the driver does not share with other processes;
    /// [`Error::Disagreement`] where another rank registered another size.
    pub fn register(
        &self,
        address: u64,
        bytes: u64,
        allocation: Allocation,
    ) -> Result<Registration> {
        let process = &self.process;
        let mut launcher = self.launcher();
        let number = launcher.routes.next_registration();
        let rank = self.rank().0;
        let _span = tracing::debug_span!("registration", rank, number, bytes).entered();
        // Nobody needs anybody's memory where all data is staged.
        let staged = !process.writes_registered_buffers();
        let export = match self.opens_memory() && !staged {
            true => Some(ExportedMemory::from(self.export(address)?)),
            false => None,
        };
        let others = match staged || !self.settings.remedies.open_pools {
            true => Vec::new(),
            false => process.other_devices(&self.state.context),
        };
        Current::bind(&self.state.context)?.open_pool(address, &others)?;
        self.engine().add_registration(number, address, bytes)?;
        let post = || {
            let region = match self.inter_node.as_ref().filter(|_| !staged) {
                Some(adapters) => Some(adapters.register(number, self.kept(address, bytes)?)?),
                None => None,
            };
            let buffer = RankBuffer { address, bytes, export, host: None, region };
            self.places.add(number, registration_window(number), buffer.clone());
            process.registrations.post(self.rank(), self.rank_count(), number, buffer, None)
        };
        post().inspect_err(|_| drop(self.forget(number)))?;
        launcher.routes.add(RegisteredRange { address, bytes, allocation: allocation.id });
        Ok(Registration(number))
    }

    /// Registers `bytes` of pinned host memory, as this rank's part of the next registration; other
    /// ranks' parts may be GPU memory. Does not wait for the other ranks. The memory is kept until
    /// all of them are gone.
    ///
    /// # Errors
    /// [`Error::System`] where the system has no such memory, [`Error::Cuda`] where the driver does
    /// not pin it; else as [`register`](Self::register).
    pub fn register_host(&self, bytes: u64) -> Result<(Registration, Arc<HostMemory>)> {
        let process = &self.process;
        let context = &self.state.context;
        let mut launcher = self.launcher();
        let number = launcher.routes.next_registration();
        let _span = tracing::debug_span!("host window", rank = self.rank().0, number).entered();
        let (memory, file) = match self.opens_memory() {
            true => host_memory::create(context, file_bytes(bytes))
                .map(|(memory, file)| (memory, Some(file))),
            false => {
                host_memory::anonymous(context, file_bytes(bytes)).map(|memory| (memory, None))
            }
        }?;
        let address = memory.address();
        if self.inter_node.is_some() && address != memory.region().base_address() {
            // An adapter knows it by the host's address, and a transfer names one.
            let expected = "a driver that maps it for GPUs where it is for the host";
            return Err(Error::argument("pinned host memory", expected, "another address"));
        }
        let memory = Arc::new(memory);
        self.engine().add_registration(number, address, bytes)?;
        let post = |file: Option<SharedFile>| {
            let region = match &self.inter_node {
                Some(adapters) => Some(adapters.register_host(number, memory.region())?),
                None => None,
            };
            let host = file.as_ref().map(SharedFile::name);
            let buffer = RankBuffer { address, bytes, export: None, host, region };
            process.registrations.post(self.rank(), self.rank_count(), number, buffer, file)
        };
        post(file).inspect_err(|_| drop(self.forget(number)))?;
        launcher.routes.add(RegisteredRange { address, bytes, allocation: 0 });
        self.state.memory.registered().keep(memory.clone());
        Ok((Registration(number), memory))
    }

    /// Registers memory for this rank alone: what it sends from there is not copied, nor what it
    /// receives there, where the other rank knows it by then. Nobody waits for anybody.
    ///
    /// # Errors
    /// As [`register`](Self::register), but for what others do.
    pub fn register_local(
        &self,
        address: u64,
        bytes: u64,
        allocation: Allocation,
    ) -> Result<Registration> {
        self.register_for_itself(&mut self.launcher(), address, bytes, allocation.id)
    }

    /// The same, where the launcher is locked.
    ///
    /// # Errors
    /// As [`register_local`](Self::register_local).
    pub fn register_for_itself(
        &self,
        launcher: &mut Launcher,
        address: u64,
        bytes: u64,
        allocation: u64,
    ) -> Result<Registration> {
        let process = &self.process;
        let number = launcher.routes.next_local();
        let staged = !process.writes_registered_buffers();
        let _span = tracing::debug_span!("local registration", rank = self.rank().0).entered();
        if !staged {
            let others = match self.settings.remedies.open_pools {
                true => process.other_devices(&self.state.context),
                false => Vec::new(),
            };
            Current::bind(&self.state.context)?.open_pool(address, &others)?;
            // What the driver does not share can be read here all the same.
            let export = match self.opens_memory().then(|| self.export(address)) {
                Some(Ok(export)) => Some(ExportedMemory::from(export)),
                Some(Err(error)) => {
                    tracing::debug!(%error, rank = self.rank().0, "registered for sends alone");
                    None
                }
                None => None,
            };
            let window =
                self.engine().add_local_registration(number - LOCAL_FIRST, address, bytes)?;
            let adapters = self.inter_node.as_ref();
            let region =
                adapters.map(|adapters| adapters.register(number, self.kept(address, bytes)?));
            let region = region.transpose().inspect_err(|_| self.engine().remove_window(window))?;
            self.places.add(
                number,
                window,
                RankBuffer { address, bytes, export, host: None, region },
            );
        }
        launcher.routes.add_local(number, RegisteredRange { address, bytes, allocation });
        Ok(Registration(number))
    }

    /// Takes a local registration back: waits, at most `limit`, until this rank's launches have
    /// ended, and the other ranks have forgotten the memory.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] where they do not; [`Error::Argument`] for another registration.
    pub fn deregister_local(&self, registration: Registration, limit: Duration) -> Result<()> {
        let number = registration.0;
        let mut launcher = self.launcher();
        if number < LOCAL_FIRST || launcher.routes.range(number).is_none() {
            let expected = "a local one of this communicator, in use";
            return Err(Error::argument("registration", expected, number));
        }
        if !launcher.wait(limit) {
            return Err(Error::HostWaitExpired {
                what: format!("the launches of {} before a deregistration", self.rank()),
                expected: "all ended".into(),
                seen: "some that wait for other ranks".into(),
                waited: limit,
            });
        }
        if self.process.writes_registered_buffers() {
            if self.check().is_ok() {
                self.engine().wait_idle(self.state.memory.head()?, limit)?;
            }
            let withdrawn =
                self.places.withdraw(number).and_then(|()| self.places.forgotten(number, limit));
            // After a failure nobody puts anything any more, and nobody need answer.
            withdrawn.or_else(|error| self.check().err().map_or(Err(error), |_| Ok(())))?;
        }
        self.forget_local(&mut launcher, number)
    }

    /// Takes back a local registration that nobody uses; other ranks are told, and not waited for.
    ///
    /// # Errors
    /// Those of engine and adapter.
    pub fn forget_unused(&self, launcher: &mut Launcher, number: usize) -> Result<()> {
        self.places.withdraw(number)?;
        self.forget_local(launcher, number)
    }

    fn forget_local(&self, launcher: &mut Launcher, number: usize) -> Result<()> {
        launcher.routes.remove_local(number);
        if self.process.writes_registered_buffers() {
            self.engine().remove_window(self.engine().local_window(number - LOCAL_FIRST));
            self.inter_node.as_ref().map_or(Ok(()), |adapters| adapters.deregister(number))?;
        }
        Ok(())
    }

    /// A registered buffer as a range. What keeps it frees it when the rank's state ends, at the
    /// earliest.
    fn kept(&self, address: u64, bytes: u64) -> Result<GpuRange> {
        GpuRange::kept_by(&self.state.context, address, bytes, self.state.clone())
    }

    /// Neither engine nor adapter of this rank know registration `number` any more.
    fn forget(&self, number: usize) -> Result<()> {
        self.engine().remove_registration(number);
        self.inter_node.as_ref().map_or(Ok(()), |adapters| adapters.deregister(number))
    }

    fn export(&self, address: u64) -> Result<Export> {
        Export::of(&self.state.context, address).map_err(|error| match error {
            Error::Cuda { name, .. } => Error::argument(
                "registered buffer",
                "memory that processes can share (cuMemAlloc, not a stream-ordered pool)",
                format!("{address:#x}, which the driver does not share: {name}"),
            ),
            other => other,
        })
    }

    /// Registration `number` as this rank's engine reaches it on every rank. Waits until every rank
    /// has registered.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`], [`Error::Bootstrap`] or [`Error::Disagreement`] where ranks have
    /// not registered the same; [`Error::PeerValue`] where a rank's memory cannot be opened.
    pub fn registered_buffer(&self, number: usize) -> Result<RegisteredBuffer> {
        let limit = self.settings.bootstrap_timeout;
        let planes = self.process.planes();
        let registrations = &self.process.registrations;
        let buffers = registrations.complete(number, limit, &planes)?;
        // Opening waits until the GPUs are idle. Whoever comes first opens the memory for all ranks
        // of the process: later, a kernel of this rank may wait for one that has not opened it.
        let _opening = registrations.opening();
        let is_open = |rank| registrations.opened(number, rank).is_some();
        let waits = self.settings.remedies.idle_opens;
        if waits && self.opens_memory() && !is_open(self.rank()) {
            // Opening waits for them with a lock of the driver that engines need: collectives that
            // run would never end.
            self.wait_for_gpus()?;
        }
        for rank in (0..self.rank_count()).map(Rank).filter(|rank| self.process.is_local(*rank)) {
            if !is_open(rank) {
                let (imports, addresses) = self.open(number, rank, &buffers)?;
                registrations.keep(number, rank, imports, addresses);
            }
        }
        registrations.close_files(number);
        let addresses = registrations.opened(number, self.rank());
        let addresses = addresses.ok_or_else(|| {
            Error::argument("registration", "one that is in use", format_args!("{number}"))
        })?;
        if let Some(adapters) = &self.inter_node {
            let moves = |place: &PortPlace| {
                place.end.side == Side::Send && place.end.lane.kind.moves_buffers()
            };
            let ports = self.state.memory.layout.ports().filter(moves);
            adapters.open(number, &ports.map(|place| place.peer()).collect(), &buffers)?;
        }
        Ok(RegisteredBuffer { bytes: buffers[0].bytes, addresses })
    }

    /// Does the first use of registration `number` still have to open memory of other processes?
    pub fn is_unopened(&self, number: usize) -> bool {
        let is_open = || self.process.registrations.opened(number, self.rank()).is_some();
        self.opens_memory() && !is_open()
    }

    /// Is registered memory of other processes opened here, and of this one there? Device engines
    /// find a peer's buffer by its number, and take no address for it.
    fn opens_memory(&self) -> bool {
        let is_device = self.process.geometry.engine == EngineKind::Device;
        !is_device && (0..self.rank_count()).any(|rank| self.shares_node(Rank(rank)))
    }

    /// Is the rank of another process, and of this node?
    fn shares_node(&self, rank: Rank) -> bool {
        let is_elsewhere = self.inter_node.as_ref().is_some_and(|others| others.leads_to(rank));
        !is_elsewhere && !self.process.is_local(rank)
    }

    /// All ranks' parts of registration `number` as `local`, a rank of this process, reaches them.
    fn open(
        &self,
        number: usize,
        local: Rank,
        buffers: &[RankBuffer],
    ) -> Result<(Vec<Imported>, Vec<u64>)> {
        let state = self.process.state(local)?;
        let opens = self.opens_memory();
        let mut imports = Vec::new();
        let mut addresses = Vec::new();
        for (rank, buffer) in (0..).map(Rank).zip(buffers) {
            if !opens || !self.shares_node(rank) {
                addresses.push(buffer.address);
                continue;
            }
            let what = format!("its part of registration {number}");
            let range = PeerRange { rank, what: &what, length_bytes: buffer.bytes, align: 1 };
            if buffer.host.is_some() {
                let file = self.process.registrations.file(number, rank)?;
                let memory = host_memory::pin(&state.context, &file)?;
                addresses.push(memory.address());
                imports.push(Imported::Host { _memory: memory });
                continue;
            }
            let exported = buffer.export.as_ref().ok_or_else(|| {
                let expected = "a handle, as of every rank of another process";
                Error::peer_value(rank, &what, expected, "none")
            })?;
            let export = exported.export(rank, &what)?;
            let (import, address) = Import::locate(&state.context, &export, &range)?;
            imports.push(Imported::Device { _import: import });
            addresses.push(address);
        }
        Ok((imports, addresses))
    }

    /// Takes a registration back: waits, at most `limit`, until this rank's launches have ended,
    /// and until the other processes use its memory no more.
    ///
    /// # Errors
    /// [`Error::HostWaitExpired`] where launches do not end, and the communicator stays usable. All
    /// others end it: [`Error::Disagreement`] where another rank makes another call.
    pub fn deregister(&self, registration: Registration, limit: Duration) -> Result<()> {
        self.check()?;
        let number = registration.0;
        let _span = tracing::debug_span!("deregistration", rank = self.rank().0, number).entered();
        let mut launcher = self.launcher();
        // A peer writes into a buffer only after a launch of this rank has granted it, and before
        // that launch ends.
        if !launcher.wait(limit) {
            return Err(Error::HostWaitExpired {
                what: format!("the launches of {} before a deregistration", self.rank()),
                expected: "all ended".into(),
                seen: "some that wait for other ranks".into(),
                waited: limit,
            });
        }
        let mut take_back = || {
            self.agree_on_deregistration(launcher.next_collective(), number)?;
            self.engine().wait_idle(self.state.memory.head()?, limit)?;
            self.places.withdraw(number)?;
            self.places.forgotten(number, limit)?;
            launcher.plans.forget_peers(number);
            self.engine().remove_routes(&launcher.routes.remove(number), limit)?;
            let (planes, local) = (self.process.planes(), self.process.local_count());
            let registrations = &self.process.registrations;
            let turn = registrations.withdraw(self.rank(), local, number, limit, &planes)?;
            if turn.has_imports() {
                self.wait_for_gpus()?;
            }
            turn.close(number, &planes)?;
            self.forget(number)?;
            // A wait that ended because the communicator failed says nothing of the peers.
            self.check()
        };
        take_back().map_err(|error| self.fail(error))
    }

    /// Waits until the GPUs of this process's ranks are idle. Closing memory of other processes
    /// waits for that, too, but with a lock of the driver that engines need, and without engines no
    /// kernel of ours ends.
    fn wait_for_gpus(&self) -> Result<()> {
        for rank in (0..self.rank_count()).map(Rank).filter(|rank| self.process.is_local(*rank)) {
            self.process.state(rank)?.wait_for_gpu()?;
        }
        Ok(())
    }

    /// A deregistration has its place among the collectives, and is compared like one.
    fn agree_on_deregistration(&self, call: u64, number: usize) -> Result<()> {
        let signature = signature([
            ("operation", Value::word("deregistration")),
            ("registration", Value::Number(number as u64)),
        ]);
        self.process.compare_calls(|calls| calls.collective(self.rank(), call, &signature))
    }
}
