//! A program on one rank: memory, mailbox, launches, and what is reported when it ends in failure.

mod access;
mod batches;
mod calls;
mod kept;
mod mailbox;
mod messages;
mod parameters;
mod report;
mod stamps;

use super::encode::{Layout, SERVICE_BLOCKS_MAX, Start, encode};
use super::function::dispatcher;
use super::plan::Program;
use super::task::Operator;
use super::verify::Verified;
use crate::communicator::{Communicator, ProgramCall, ResidentCalls};
use crate::error::{Error, Result};
use crate::gpu::{Captured, DeviceMemory, Kernels, OwnStream, Source, is_idle, link, text_for};
use crate::lived::Lived;
use batches::Batches;
use calls::calls;
pub(super) use calls::is_for;
use cudarc::driver::CudaStream;
use mailbox::HostMailbox;
use messages::Window;
use parameters::Bound;
use ringdove_kernels::program::{
    MAILBOX_ITERATIONS, PARAMETERS, ProgramArguments, ProgramMode, TaskKind,
};
use ringdove_kernels::ptx;
use stamps::Rings;
pub use stamps::Stamp;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The host looks at the mailbox so often while it waits.
const LOOK: Duration = Duration::from_micros(100);
/// Launches that wait their turn, at most: drivers take a thousand or so.
const LAUNCHES_AHEAD: usize = 256;

/// Who drives the iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driven {
    /// One kernel that stays.
    #[default]
    Resident,
    /// A launch for each operator, and an ordinary call for each collective: the reference.
    Launches,
    /// The same launches and calls, captured once in [`Resident::start`], and launched again for
    /// each iteration as a graph of the driver.
    Graphs,
}

/// How a program is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Who drives it.
    pub driven: Driven,
    /// Blocks of this program's size that must find room on the GPU beside it: what the caller runs
    /// there at the same time.
    pub blocks_beside: u32,
    /// Time stamps that each block keeps, of the tasks that it ran last: [`Resident::stamps`]. 0:
    /// none are taken.
    pub stamps: u32,
}

/// What may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The kernel does not run: not yet, or it pauses.
    Paused,
    Running,
    Stopped,
    /// The kernel has ended with a failure, amid an iteration.
    Failed,
}

/// A program that is ready on one rank.
///
/// All ranks make the same calls in the same order. While it runs, the communicator makes no other
/// calls: they are refused. It ends with [`Resident::stop`], or when it is dropped, which waits a
/// bounded time for the iterations that were granted.
pub struct Resident<'c> {
    communicator: &'c Communicator,
    program: Program,
    layout: Layout,
    driven: Driven,
    calls: Vec<ProgramCall>,
    shape: (u32, u32),
    stream: Arc<CudaStream>,
    copies: OwnStream,
    kernels: Option<Kernels<ProgramArguments>>,
    memory: Option<Arc<DeviceMemory>>,
    window: Option<Window>,
    stamps: Option<Rings>,
    mailbox: Option<HostMailbox>,
    phase: Phase,
    parameters: [f32; PARAMETERS],
    bounds: Vec<Bound>,
    batches: Batches,
    /// One iteration, of [`Driven::Graphs`]; made by the first start.
    graph: Option<Captured>,
    /// Iterations that were granted.
    granted: u64,
    /// Iterations whose results were taken out of the mailbox.
    taken: u64,
    results: VecDeque<Vec<f32>>,
    /// Resident launches that have ended.
    stops: u64,
    /// Shall the last failure be told again?
    failed: Option<Error>,
}

impl<'c> Resident<'c> {
    /// Makes a verified program ready: allocates its memory, plans its collectives, loads its
    /// module, and refuses what cannot be resident. Like all allocation this comes before work that
    /// waits for other ranks. All launches will be on `stream`.
    ///
    /// # Errors
    /// [`Error::Argument`] where more blocks are needed than run on this GPU at a time, and for a
    /// program of another number of ranks; as for collective calls.
    pub fn prepare(
        communicator: &'c Communicator,
        verified: &Verified,
        options: Options,
        stream: &Arc<CudaStream>,
    ) -> Result<Self> {
        let program = verified.program().clone();
        let ranks = communicator.rank_count();
        if let Some(expected) = verified.rank_count().filter(|count| *count != ranks) {
            let seen = format!("a communicator of {ranks}");
            return Err(Error::argument("program", format!("{expected} ranks"), seen));
        }
        let context = communicator.context();
        let layout = Layout::of(&program, verified.messages(), ranks);
        let memory = Arc::new(DeviceMemory::zeroed(context, layout.bytes)?);
        let mailbox = HostMailbox::new(context, program.results as usize)?;
        let kernels = load(communicator, &program)?;
        let calls = calls(&program, &layout, memory.address(), ranks)?;
        let prepared = match options.driven {
            Driven::Resident => communicator.prepare_program(&calls, stream)?,
            Driven::Launches | Driven::Graphs => ResidentCalls::default(),
        };
        let blocks = prepared.blocks + program.blocks.len() as u32;
        let stamps = Rings::new(context, blocks, options)?;
        let image = encode(
            &program,
            &layout,
            &Start {
                base: memory.address(),
                mailbox: mailbox.address(),
                calls: &prepared.arguments,
                service_blocks: prepared.blocks,
                stamps: stamps.as_ref().map_or((0, 0), Rings::place),
            },
        );
        let threads = program.threads.max(prepared.threads).next_multiple_of(32);
        check_fit(&kernels, &prepared, (blocks, threads), options)?;
        memory.write(layout.image, &image)?;
        let bounds = Bound::of(&program);
        let batches = Batches::of(&program);
        let window = Window::register(communicator, verified.messages(), &memory, layout.window)?;
        Ok(Self {
            communicator,
            program,
            layout,
            driven: options.driven,
            calls,
            shape: (blocks, threads),
            stream: stream.clone(),
            copies: OwnStream::new(context)?,
            kernels: Some(kernels),
            memory: Some(memory),
            window,
            stamps,
            mailbox: Some(mailbox),
            phase: Phase::Paused,
            parameters: [0.0; PARAMETERS],
            bounds,
            batches,
            graph: None,
            granted: 0,
            taken: 0,
            results: VecDeque::new(),
            stops: 0,
            failed: None,
        })
    }

    /// Blocks of the resident launch, and threads of each.
    pub fn shape(&self) -> (u32, u32) {
        self.shape
    }

    /// Sets a parameter of the iterations that are granted from now on.
    ///
    /// # Errors
    /// [`Error::Argument`] for a number that no iteration has.
    pub fn set_parameter(&mut self, number: u32, value: f32) -> Result<()> {
        let count = self.parameters.len();
        let place = self.parameters.get_mut(number as usize).ok_or_else(|| {
            Error::argument("parameter of a program", format!("less than {count}"), number)
        })?;
        *place = value;
        Ok(())
    }

    /// Launches the kernel: the last driver call before [`Self::pause`] or [`Self::stop`]. It waits
    /// for iterations to be granted.
    ///
    /// # Errors
    /// [`Error::Argument`] where it runs or was stopped; [`Error::Cuda`], also where the driver
    /// cannot capture and [`Driven::Graphs`] needs it.
    pub fn start(&mut self) -> Result<()> {
        self.in_phase("start", Phase::Paused)?;
        self.communicator.check()?;
        self.open()?;
        if self.driven == Driven::Resident {
            self.mailbox().set_stop(false)?;
            self.launch(ProgramMode::Resident, 0, self.shape.0)?;
            self.communicator.occupy(true);
        }
        if self.driven == Driven::Graphs && self.graph.is_none() {
            self.graph = Some(Captured::new(&self.stream, || self.launch_iteration())?);
        }
        self.phase = Phase::Running;
        Ok(())
    }

    /// As [`Self::start`], after a pause.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn resume(&mut self) -> Result<()> {
        self.start()
    }

    /// Grants `count` more iterations, with the parameters as they are set. It does not wait. As
    /// many iterations may be granted ahead as the mailbox has room for results that nobody has
    /// waited for.
    ///
    /// # Errors
    /// [`Error::Argument`] where it does not run, for too many iterations, for a parameter that a
    /// task cannot use, such as a length beyond what there is, and for a batch that was never set;
    /// what ended the communicator before.
    pub fn run(&mut self, count: u64) -> Result<()> {
        self.in_phase("run", Phase::Running)?;
        self.check()?;
        self.bounds.iter().try_for_each(|bound| bound.check(&self.parameters))?;
        self.take_results()?;
        let room = self.ahead_max() - (self.granted - self.taken);
        if count > room {
            let expected = format!("{room} at most until the program is waited for");
            return Err(Error::argument("iterations", expected, count));
        }
        let end = self.granted + count;
        let addresses = self.batches.addresses()?;
        for iteration in self.granted..end {
            self.mailbox().set_parameters(iteration, &self.parameters)?;
            self.mailbox().set_batches(iteration, &addresses)?;
        }
        self.batches.grant(end);
        match self.driven {
            Driven::Resident => self.mailbox().grant(end)?,
            Driven::Launches => {
                (0..count).try_for_each(|_| self.launch_iteration())?;
            }
            Driven::Graphs => {
                let graph = self.graph.as_mut().expect("made by `start`");
                (0..count).try_for_each(|_| graph.launch())?;
            }
        }
        self.granted = end;
        Ok(())
    }

    /// Waits until all granted iterations are done.
    ///
    /// # Errors
    /// [`Error::StuckTask`] names the task that waited in vain, and the tasks that it waited for;
    /// otherwise what ended the communicator.
    pub fn wait(&mut self) -> Result<()> {
        if self.phase == Phase::Stopped {
            return self.in_phase("wait", Phase::Running);
        }
        loop {
            let done = self.done()?;
            self.take_results()?;
            if done >= self.granted {
                return Ok(());
            }
            self.check()?;
            std::thread::sleep(LOOK);
        }
    }

    /// Iterations that all blocks have ended.
    ///
    /// # Errors
    /// None that can happen: the mailbox has its words.
    pub fn done(&self) -> Result<u64> {
        self.mailbox().done()
    }

    /// The results of the iterations that were done and waited for, the oldest first: as many
    /// values for each as the program reports.
    pub fn take(&mut self) -> Vec<Vec<f32>> {
        self.results.drain(..).collect()
    }

    /// Ends the kernel when the granted iterations are done, and waits for that. The GPU is free
    /// for others then, tensors may be read and written, and [`Self::resume`] goes on.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn pause(&mut self) -> Result<()> {
        self.in_phase("pause", Phase::Running)?;
        self.wait()?;
        self.end_launch()?;
        self.phase = Phase::Paused;
        Ok(())
    }

    /// As [`Self::pause`], for good: tensors may be read, and nothing else. Of a program that has
    /// failed, this ends the kernel and gives the failure; what [`Self::kept`] names can be read
    /// then.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn stop(&mut self) -> Result<()> {
        if self.phase == Phase::Running {
            self.pause().inspect_err(|_| self.end_failed())?;
        }
        self.in_phase("stop", Phase::Paused)?;
        self.phase = Phase::Stopped;
        Ok(())
    }

    /// What ended the program, if anything has.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn check(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Err(error) = self.communicator.check() else { return Ok(()) };
        let done = self.done()?;
        let error = report::named(error, &self.program, self.window.as_ref(), done);
        self.failed = Some(error.clone());
        Err(error)
    }

    /// How many iterations may be granted before their results are taken: as the mailbox has room;
    /// of launches, as a driver's queue takes, which blocks whoever fills it.
    fn ahead_max(&self) -> u64 {
        let most = MAILBOX_ITERATIONS as u64;
        match self.driven {
            Driven::Resident | Driven::Graphs => most,
            Driven::Launches => {
                let launches = self.program.operators.len() + 2;
                ((LAUNCHES_AHEAD / launches) as u64).clamp(1, most)
            }
        }
    }

    fn memory(&self) -> &DeviceMemory {
        self.memory.as_deref().expect("present until drop")
    }

    fn mailbox(&self) -> &HostMailbox {
        self.mailbox.as_ref().expect("present until drop")
    }

    fn in_phase(&self, call: &'static str, expected: Phase) -> Result<()> {
        if self.phase == expected {
            return Ok(());
        }
        let name = |phase| match phase {
            Phase::Paused => "a program that does not run",
            Phase::Running => "a program that runs",
            Phase::Stopped => "one that was stopped",
            Phase::Failed => "one that has failed",
        };
        Err(Error::argument(call, name(expected), name(self.phase)))
    }

    fn launch(&self, mode: ProgramMode, first_task: u32, blocks: u32) -> Result<()> {
        let arguments = ProgramArguments {
            program: self.memory().address() + self.layout.image as u64,
            communicator: self.communicator.device_communicator(),
            iteration: self.granted,
            stops: self.stops,
            mode: mode as u32,
            first_task,
            ..ProgramArguments::default()
        };
        let kernels = self.kernels.as_ref().expect("present until drop");
        self.communicator.launch_program(&self.stream, |sequence| {
            let arguments = ProgramArguments { sequence, ..arguments };
            kernels.launch(0, &self.stream, (blocks, self.shape.1), &arguments)
        })
    }

    /// One iteration as ordinary launches and calls. Which one it is they find on the device.
    fn launch_iteration(&self) -> Result<()> {
        self.launch(ProgramMode::Begin, 0, 1)?;
        let mut calls = self.calls.iter();
        for operator in &self.program.operators {
            let (first, _) = operator.tasks;
            if self.program.tasks[first as usize].kind == TaskKind::Collective {
                let call = calls.next().expect("one for each collective");
                self.communicator.call_of_program(call, &self.stream)?;
            } else {
                self.launch(ProgramMode::Tasks, first, operator.tiles())?;
            }
        }
        self.launch(ProgramMode::End, 0, 1)
    }

    /// Moves results out of the mailbox.
    fn take_results(&mut self) -> Result<()> {
        for iteration in self.taken..self.done()?.min(self.granted) {
            let values = self.mailbox().results(iteration)?;
            self.results.push_back(values);
            self.taken = iteration + 1;
        }
        self.batches.release(self.taken);
        Ok(())
    }

    /// Ends the kernel: what was granted ends, or fails by its deadlines, or is aborted. False: it
    /// does not end.
    fn end_or_abort(&self) -> bool {
        let limit = self.communicator.drop_timeout();
        let mut lived = Lived::new();
        let is_asked = self.mailbox().set_stop(true).is_ok();
        if is_asked && self.wait_for_launches(limit) {
            return true;
        }
        self.communicator.abort("a resident program did not end");
        let left = limit.saturating_sub(lived.look()).max(LOOK * 1000);
        self.wait_for_launches(left)
    }

    /// Waits until all launches have ended; false after `limit`.
    fn wait_for_launches(&self, limit: Duration) -> bool {
        if !self.communicator.wait_for_launches(limit) {
            return false;
        }
        // The communicator knows nothing of a graph's.
        let mut lived = Lived::new();
        while self.graph.is_some() && !is_idle(&self.stream) {
            if lived.look() >= limit {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Ends the kernel: all granted iterations are done.
    fn end_launch(&mut self) -> Result<()> {
        if self.driven == Driven::Resident {
            self.mailbox().set_stop(true)?;
        }
        let limit = self.communicator.wait_timeout();
        if !self.wait_for_launches(limit) {
            self.check()?;
            return Err(Error::argument("end of a program", format!("within {limit:?}"), "none"));
        }
        if self.driven == Driven::Resident {
            self.communicator.occupy(false);
            self.stops += 1;
        }
        Ok(())
    }
}

/// The kernel, with the users' functions of the program.
fn load(communicator: &Communicator, program: &Program) -> Result<Kernels<ProgramArguments>> {
    let (context, entries) = (communicator.context(), [ptx::PROGRAM_ENTRY]);
    if program.functions.is_empty() {
        return Kernels::load_for(context, &ptx::PROGRAM, &entries);
    }
    let source = |name: &str, text: &str| Source { name: name.to_owned(), text: text.into() };
    let mut sources = vec![
        source("the kernel of programs", text_for(context, &ptx::PROGRAM)?),
        source("the calls of functions", &dispatcher(&program.functions)),
    ];
    for (number, function) in (0u32..).zip(&program.functions) {
        let calls = |operator: &&Operator| {
            operator.user.as_ref().is_some_and(|call| call.function == number)
        };
        let user = program.operators.iter().find(calls).map_or("nobody", |user| &user.name);
        let name = format!("function {} of task '{user}'", function.name());
        // A module that defines several functions is linked once.
        if !sources.iter().any(|known| *known.text == *function.text()) {
            sources.push(source(&name, function.text()));
        }
    }
    let image = link(context, "users' functions of a program", &sources)?;
    Kernels::load_image(context, &image, &entries)
}

/// Refuses blocks that cannot all run at a time, with the numbers.
fn check_fit(
    kernels: &Kernels<ProgramArguments>,
    calls: &ResidentCalls,
    (blocks, threads): (u32, u32),
    options: Options,
) -> Result<()> {
    if options.driven != Driven::Resident {
        return Ok(());
    }
    let service = calls.blocks as usize;
    if service > SERVICE_BLOCKS_MAX {
        let expected = format!("at most {SERVICE_BLOCKS_MAX} for collectives");
        return Err(Error::argument("blocks of a program", expected, service));
    }
    let room = kernels.residency(0, threads)?;
    let most = room.blocks_each.saturating_mul(room.multiprocessors);
    if u64::from(blocks) + u64::from(options.blocks_beside) <= u64::from(most) {
        return Ok(());
    }
    let expected = format!(
        "{most} at most: {} on each of {} multiprocessors, with {threads} threads of {} registers \
         and {} bytes of shared memory",
        room.blocks_each, room.multiprocessors, room.registers, room.shared_bytes
    );
    let seen = format!(
        "{} that compute, {service} for collectives, and {} beside the program",
        blocks - calls.blocks,
        options.blocks_beside
    );
    Err(Error::argument("resident blocks", expected, seen))
}

impl fmt::Debug for Resident<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resident")
            .field("communicator", self.communicator)
            .field("driven", &self.driven)
            .field("shape", &self.shape)
            .field("granted", &self.granted)
            .finish_non_exhaustive()
    }
}

impl Drop for Resident<'_> {
    fn drop(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        let ended = self.end_or_abort();
        self.communicator.occupy(false);
        if !ended {
            tracing::error!("a resident program does not end, so its memory is leaked");
            let memory = (self.memory.take(), self.mailbox.take(), self.stamps.take());
            std::mem::forget((memory, self.kernels.take()));
        }
    }
}
