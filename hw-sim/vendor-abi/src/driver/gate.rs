//! What stands before every call where the machine's driver profile is not lenient: the context's
//! lock, the draining of contexts, and the calls that a stream capture forbids.

use super::class::{CLASSES, Capture, Class, Lock};
use super::code::Outcome;
use super::state;
use hwsim_machine::Context;
use hwsim_machine::context_state::{ContextState, Locked};
use hwsim_machine::driver::capture::take_refusal;
use hwsim_machine::driver::watch::enter_call;
use hwsim_machine::{Error, Function};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Says how modules are loaded; read once, as by the real driver.
const LOADING_VARIABLE: &str = "CUDA_MODULE_LOADING";
/// Queues that a context asks for.
const CONNECTIONS_VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

static ON: AtomicBool = AtomicBool::new(false);
static CALLS: OnceLock<HashMap<&'static str, &'static Class>> = OnceLock::new();
static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// The keys of the profile that matter here.
struct Settings {
    lock: bool,
    capture: bool,
    lazy: bool,
}

/// The locks that the present call of a thread holds.
#[derive(Default)]
struct Held {
    locks: Vec<Locked>,
    /// The call goes on with the lock of the context that it turns out to be about.
    follows: bool,
    /// Inside of a call.
    inside: bool,
}

thread_local! {
    static HELD: RefCell<Held> = RefCell::default();
}

/// Is there anything to do before a call? One relaxed load.
#[inline(always)]
pub(super) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Reads what the environment adds to a machine's profile, and closes the gate if it has one.
pub(super) fn start(description: &mut hwsim_machine::description::Description) {
    let profile = &mut description.driver;
    if profile.connections.is_some()
        && let Ok(Ok(count)) = std::env::var(CONNECTIONS_VARIABLE).map(|text| text.parse::<u32>())
    {
        profile.connections = Some(count.clamp(1, 32));
    }
    let eager = std::env::var(LOADING_VARIABLE).is_ok_and(|mode| mode == "EAGER");
    let (lock, capture) = (profile.context_lock, profile.capture);
    let _ = SETTINGS.set(Settings { lock, capture, lazy: lock && !eager });
    CALLS.get_or_init(|| {
        let of = |class: &'static Class| class.names.iter().map(move |name| (*name, class));
        CLASSES.iter().flat_map(of).collect()
    });
    ON.store(profile.blocks() || capture, Ordering::Relaxed);
}

fn settings(which: fn(&Settings) -> bool) -> bool {
    SETTINGS.get().is_some_and(which)
}

/// Are kernels loaded when they are first used?
pub(super) fn is_lazy() -> bool {
    settings(|settings| settings.lazy)
}

/// Is the call about a context, and not about devices, the thread, or handles alone?
pub(super) fn uses_context(name: &str) -> bool {
    let class = CALLS.get().and_then(|calls| calls.get(name));
    class.is_some_and(|class| class.lock != Lock::Free)
}

/// Refuses what a stream capture forbids, in a call that looks at something else first.
pub(super) fn check_unsafe_call() -> Outcome {
    if settings(|settings| settings.capture) {
        state::driver()?.machine.captures.check_unsafe_call()?;
    }
    Ok(())
}

/// Runs a call behind the gate.
pub(super) fn guarded(name: &'static str, body: impl FnOnce() -> Outcome) -> Outcome {
    let Ok(driver) = state::driver() else { return body() };
    // A driver call of a function that the driver calls back: the outer call has done it all. One
    // of a thread that is ending, as at a program's exit, holds nothing.
    let enter = |held: &RefCell<Held>| std::mem::replace(&mut held.borrow_mut().inside, true);
    if HELD.try_with(enter).unwrap_or(true) {
        return body();
    }
    let _end = End;
    enter_call(name);
    let class = CALLS.get().and_then(|calls| calls.get(name));
    let (lock, capture) = class.map_or((Lock::Free, Capture::Safe), |c| (c.lock, c.capture));
    if capture == Capture::Unsafe && settings(|settings| settings.capture) {
        driver.machine.captures.check_unsafe_call()?;
    }
    if settings(|settings| settings.lock) {
        take(lock);
    }
    body()?;
    match take_refusal() {
        Some(refusal) => Err(Error::Capture(refusal).into()),
        None => Ok(()),
    }
}

/// Lets go of what the call holds, however it ends.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let held = HELD.with_borrow_mut(std::mem::take);
        drop(held.locks);
    }
}

fn take(lock: Lock) {
    if lock == Lock::Free {
        return;
    }
    HELD.with_borrow_mut(|held| held.follows = lock == Lock::Takes);
    // Without a context there is no lock, and the call fails by itself.
    let Ok((driver, context)) = state::current_any() else { return };
    let contexts = match lock {
        Lock::DrainsJoined => context.joined(&driver.contexts.all()),
        // In the order in which several are always taken.
        Lock::DrainsHoldingAll => in_order(driver.contexts.all()),
        _ => vec![Arc::clone(&context)],
    };
    let locks: Vec<_> = contexts.iter().map(|context| context.lock()).collect();
    match lock {
        Lock::DrainsJoined => contexts.iter().for_each(|context| context.drain()),
        Lock::Drains | Lock::DrainsHoldingAll => context.drain(),
        Lock::Free | Lock::Takes | Lock::Waits => {}
    }
    if lock != Lock::Waits {
        HELD.with_borrow_mut(|held| held.locks = locks);
    }
}

fn in_order(mut contexts: Vec<Arc<Context>>) -> Vec<Arc<Context>> {
    contexts.sort_by_key(|context| context.id);
    contexts
}

/// The call is about this context, whatever is current to the thread.
pub(super) fn follow(context: &Arc<ContextState>) {
    if !is_on() || !settings(|settings| settings.lock) {
        return;
    }
    let elsewhere = HELD.with_borrow_mut(|held| {
        let here = held.locks.iter().any(|locked| locked.context.id == context.id);
        let elsewhere = held.follows && !here;
        // First let go: two locks are taken in their order or not at all.
        if elsewhere { std::mem::take(&mut held.locks) } else { return None }.into()
    });
    if let Some(locks) = elsewhere {
        drop::<Vec<Locked>>(locks);
        let lock = context.lock();
        HELD.with_borrow_mut(|held| held.locks.push(lock));
    }
}

/// The call is about to wait, which it does without a lock.
pub(super) fn let_go() {
    if is_on() {
        // A thread that is ending holds none.
        let locks = HELD.try_with(|held| std::mem::take(&mut held.borrow_mut().locks));
        drop(locks);
    }
}

/// Something is loaded into a context whose lock the call holds.
pub(super) fn drain(context: &Context) {
    if is_on() && settings(|settings| settings.lock) {
        follow(context.state());
        context.drain();
    }
}

/// A function is about to be used for the first time, perhaps.
pub(super) fn load(function: &Function) {
    if is_on() && is_lazy() && !function.mark_loaded() {
        drain(&function.module.context);
    }
}
