//! The engines of a process: what is registered with them, and the thread that plays them.

use super::bar::Bars;
use super::channel::ChannelAddress;
use super::error::EngineError;
use super::node::{EngineNode, Progress};
use crate::description::Description;
use crate::fabric::{Fabric, Segment, WakeWord, ask_for_short_slices, block_signals};
use crate::memory::GlobalMemory;
use ringdove_kernels::bar::RING_OFFSET;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Fruitless looks before the thread takes its first nap.
const SPIN_STEPS: u32 = 50;
/// Naps of the first length before they grow.
const NAPS: u32 = 40;
/// A nap: what a doorbell waits at most while kernels are busy ringing.
const NAP_MIN: Duration = Duration::from_micros(20);
/// The longest nap while kernels run or requests are under way.
const NAP_MAX: Duration = Duration::from_micros(200);
/// The longest nap while none do: what a host's command waits at most.
const NAP_MAX_QUIET: Duration = Duration::from_millis(1);

/// Parameters of the engines of a process.
pub struct EnginesRequest<'a> {
    /// The machine, as the node that this process is on.
    pub description: &'a Description,
    /// The process's memory.
    pub memory: Arc<GlobalMemory>,
    /// The tree in which PCI functions have folders: what `SYSFS_PATH` names.
    pub sysfs: PathBuf,
    /// A list as `HWSIM_FAULTS` has it.
    pub faults: &'a str,
    /// The folder that the processes of the cluster share, if there are several.
    pub fabric: Option<PathBuf>,
}

/// Tells the engines' thread what the GPUs do.
#[derive(Debug, Default)]
pub(crate) struct KernelWatch {
    running: AtomicUsize,
    wake_word: std::sync::OnceLock<WakeWord>,
}

impl KernelWatch {
    /// A kernel starts: doorbells may ring from now on.
    pub fn started(&self) {
        if self.running.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(wake_word) = self.wake_word.get()
        {
            wake_word.wake();
        }
    }

    /// A kernel has ended.
    pub fn ended(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    fn any(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }
}

/// One registered range, and the channels that are served for it.
struct Registration {
    base: u64,
    context: u64,
    places: Vec<ChannelAddress>,
}

/// The device engines of a process.
pub struct Engines {
    node: Mutex<EngineNode>,
    registrations: Mutex<Vec<Registration>>,
    bars: Bars,
    names: Vec<String>,
    memory: Arc<GlobalMemory>,
    watch: Arc<KernelWatch>,
    wake_word: WakeWord,
    stopping: AtomicBool,
}

impl Engines {
    /// The engines of a node, for this process, and the thread that plays them.
    pub(crate) fn start(
        request: &EnginesRequest<'_>,
        watch: Arc<KernelWatch>,
    ) -> Result<Arc<Self>, EngineError> {
        let engines = &request.description.engines;
        let fabric = request.fabric.as_deref().map(Fabric::join).transpose()?;
        let wake_word = match &fabric {
            Some(fabric) => fabric.own.engines(),
            None => WakeWord::new(Arc::new(Segment::anonymous(4096)?), 0),
        };
        let _ = watch.wake_word.set(wake_word.clone());
        let engines = Arc::new(Self {
            node: Mutex::new(EngineNode::new(request.description, request.faults, fabric)?),
            registrations: Mutex::default(),
            bars: Bars::new(request.description, &request.sysfs),
            names: engines.iter().map(|engine| engine.name.clone()).collect(),
            memory: Arc::clone(&request.memory),
            watch,
            wake_word,
            stopping: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&engines);
        let wake_word = engines.wake_word.clone();
        let play = move || {
            block_signals();
            ask_for_short_slices();
            sleep_precisely();
            let mut idle = 0;
            while let Some(engines) = weak.upgrade() {
                if engines.stopping.load(Ordering::Relaxed) {
                    break;
                }
                let (progress, channels) = engines.step(Instant::now());
                let nap = engines.nap(progress, channels, &mut idle);
                match nap {
                    Some(nap) => {
                        // Not held while the thread sleeps: the engines may end meanwhile.
                        drop(engines);
                        wake_word.sleep(nap, || {
                            weak.upgrade().is_none_or(|engines| engines.lock().has_remote_work())
                        });
                    }
                    None => std::hint::spin_loop(),
                }
            }
        };
        std::thread::Builder::new().name("hwsim-engines".into()).spawn(play).map_err(|cause| {
            crate::fabric::FabricError::System {
                what: "starting the engines' thread".into(),
                cause,
            }
        })?;
        Ok(engines)
    }

    fn lock(&self) -> MutexGuard<'_, EngineNode> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, now: Instant) -> (Progress, usize) {
        let mut node = self.lock();
        (node.step(&self.memory, now), node.channels.len())
    }

    /// How long to sleep after a step; None: go on.
    fn nap(&self, progress: Progress, channels: usize, idle: &mut u32) -> Option<Duration> {
        if progress.worked {
            *idle = 0;
            return None;
        }
        if channels == 0 {
            // A registration wakes.
            return Some(Duration::MAX);
        }
        *idle = idle.saturating_add(1);
        if *idle <= SPIN_STEPS {
            return None;
        }
        let busy = self.watch.any() || progress.waits;
        let longer = (*idle - SPIN_STEPS).saturating_sub(NAPS).min(16);
        let longest = if busy { NAP_MAX } else { NAP_MAX_QUIET };
        Some((NAP_MIN * (1 << longer)).min(longest))
    }

    /// Serves the channels whose rings begin in a range of this process's address space, which must
    /// be a mapping of an engine's BAR. Each of them is reset when this returns.
    pub fn register(&self, address: u64, bytes: u64, context: u64) -> Result<(), EngineError> {
        let (engine, offset) = self.bars.locate(address, bytes)?;
        let mut node = self.lock();
        let identity = node.devices[engine].identity;
        let end = offset.saturating_add(bytes);
        let ring =
            |channel| identity.channels_offset + channel * identity.channel_bytes + RING_OFFSET;
        let within = |channel: &u64| (offset..end).contains(&ring(*channel));
        let channels: Vec<u64> = (0..identity.channel_count).filter(within).collect();
        if channels.is_empty() {
            return Err(EngineError::NoRing {
                engine: self.names[engine].clone(),
                offset,
                bytes,
                first: ring(0),
                distance: identity.channel_bytes,
            });
        }
        let mut places = Vec::new();
        for channel in channels {
            let bar = self.bars.open(engine);
            let served = bar.and_then(|bar| node.serve(engine, channel, bar));
            match served {
                Ok(place) => places.push(place),
                Err(error) => {
                    places.into_iter().for_each(|place| node.release(place));
                    return Err(error);
                }
            }
        }
        drop(node);
        let registration = Registration { base: address, context, places };
        self.registrations.lock().unwrap().push(registration);
        self.wake_word.wake();
        Ok(())
    }

    /// Ends the registration of the range that begins at an address, if there is one.
    pub fn unregister(&self, address: u64) {
        self.end(|registration| registration.base == address);
    }

    /// Ends all registrations of a context.
    pub fn release_context(&self, context: u64) {
        self.end(|registration| registration.context == context);
    }

    /// Ends all registrations: the process is leaving.
    pub fn leave(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.end(|_| true);
        self.wake_word.wake();
    }

    fn end(&self, which: impl Fn(&Registration) -> bool) {
        let mut registrations = self.registrations.lock().unwrap();
        let ended: Vec<_> = registrations.extract_if(.., |one| which(one)).collect();
        drop(registrations);
        let mut node = self.lock();
        ended.into_iter().flat_map(|one| one.places).for_each(|place| node.release(place));
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        // Its thread sees that the engines are gone.
        self.wake_word.wake();
    }
}

/// Asks the kernel to end this thread's short sleeps in time: its default adds 50 µs.
fn sleep_precisely() {
    // SAFETY: the call takes integers only and changes nothing but this thread's timer slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64, 0u64, 0u64, 0u64) };
}

#[cfg(test)]
mod tests {
    use crate::description::Description;
    use crate::graph::Shape;
    use crate::{Context, LaunchRequest, Machine, Module};
    use std::sync::Arc;

    const KERNELS: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
        .visible .entry good() { ret; }\n.visible .entry bad() { trap; }\n";

    /// If this fails, the thread never takes a long nap again, or misses doorbells.
    #[test]
    fn kernels_are_counted_however_they_end() {
        let description = Description::builtin("one-gpu").unwrap();
        let machine = Machine::with_workers(description, 2).unwrap();
        for name in ["good", "bad", "good"] {
            let context = Context::new(Arc::clone(&machine), 0, 0);
            let function = Module::load(&context, KERNELS).unwrap().function(name).unwrap();
            for _ in 0..3 {
                let request = LaunchRequest {
                    function: &function,
                    shape: Shape {
                        grid: [7, 1, 1],
                        block: [32, 1, 1],
                        dynamic_shared_bytes: 0,
                        cooperative: false,
                        cluster: None,
                    },
                    params: Vec::new(),
                };
                // Refused once the context has failed.
                let _ = request.enqueue(context.legacy_stream());
            }
            assert_eq!(context.synchronize().is_ok(), name == "good");
            assert!(!machine.scheduler.kernels.any(), "after {name}");
        }
        machine.stop();
    }
}
