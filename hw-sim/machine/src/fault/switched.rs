//! Faults that a program turns on and off while it runs, in its own process.
//!
//! What a fault counts is counted from the moment at which its list was switched on. What has been
//! struck by then stays so when the list is switched off: a port that went down, an adapter that
//! was reset, a launch that never began.

use super::AdapterFault;
use super::gpu::GpuFault;
use super::list::check_list;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The list that this process has switched on.
pub(crate) static SWITCH: Switch = Switch::new();

/// A list that is switched on, of all that were so far.
pub(crate) struct Switch {
    /// How many there were. 0: none yet, which is all that devices look at then.
    generation: AtomicU64,
    list: RwLock<String>,
}

/// What a device has made of the list: of nothing, as long as nobody has switched any on.
#[derive(Debug)]
pub(crate) struct Switched<T> {
    known: RwLock<(u64, Option<Arc<T>>)>,
}

/// Switches on a list of faults for this process's devices, instead of the one before; an empty one
/// switches all of them off. Those of `HWSIM_FAULTS` and of machine files stay.
///
/// # Errors
/// The entry that is no fault, or none that strikes devices which are in use already.
pub fn switch_faults(list: &str) -> Result<(), String> {
    check_list(list)?;
    for entry in list.split(',').map(str::trim) {
        if let Some((_, fault)) = entry.split_once(':')
            && !is_switchable(fault)
        {
            return Err(format!(
                "expected a fault of GPUs or adapters that strikes while a program runs; those of \
                 processes and engines, port-down (port-down-after=0 does it), qp-error-after and \
                 completions-max are there from its start on; found `{entry}`"
            ));
        }
    }
    SWITCH.set(list);
    Ok(())
}

fn is_switchable(fault: &str) -> bool {
    use AdapterFault::{CompletionsMax, PortDown, QueuePairError};
    let of_adapter = fault
        .parse::<AdapterFault>()
        .is_ok_and(|fault| !matches!(fault, PortDown | QueuePairError { .. } | CompletionsMax(_)));
    of_adapter || fault.parse::<GpuFault>().is_ok()
}

impl Switch {
    pub(crate) const fn new() -> Self {
        Self { generation: AtomicU64::new(0), list: RwLock::new(String::new()) }
    }

    pub(crate) fn set(&self, list: &str) {
        let mut known = self.list.write().unwrap_or_else(PoisonError::into_inner);
        list.clone_into(&mut known);
        // Release pairs with the load in `Switched::now`: the order in which lists are switched on
        // is the order in which devices take them. The list itself is under its lock.
        self.generation.fetch_add(1, Ordering::Release);
    }
}

impl<T> Default for Switched<T> {
    fn default() -> Self {
        Self { known: RwLock::new((0, None)) }
    }
}

impl<T> Switched<T> {
    /// What `make` makes of the list that is switched on: asked once for each list. None: there is
    /// none, or it makes nothing of it.
    pub(crate) fn now(
        &self,
        switch: &Switch,
        make: impl FnOnce(&str) -> Option<T>,
    ) -> Option<Arc<T>> {
        // Pairs with the count in `Switch::set`.
        let generation = switch.generation.load(Ordering::Acquire);
        if generation == 0 {
            return None;
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if known.0 == generation {
            return known.1.clone();
        }
        drop(known);
        let list = switch.list.read().unwrap_or_else(PoisonError::into_inner);
        // Of the list that is read: no other comes while its lock is held.
        let generation = switch.generation.load(Ordering::Acquire);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.0 != generation {
            let made = if list.is_empty() { None } else { make(&list) };
            *known = (generation, made.map(Arc::new));
        }
        known.1.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a device goes on with faults that were switched off, or counts from anew at
    /// each look at it.
    #[test]
    fn each_list_is_made_once_and_ends_with_the_next() {
        let (switch, switched) = (Switch::new(), Switched::default());
        let made = AtomicU64::new(0);
        let look = || {
            let make = |list: &str| {
                made.fetch_add(1, Ordering::Relaxed);
                Some(list.to_owned())
            };
            switched.now(&switch, make).map(|list| list.as_str().to_owned())
        };
        assert_eq!(look(), None);
        switch.set("gpu0:slow=3");
        assert_eq!([look(), look()], [Some("gpu0:slow=3".into()), Some("gpu0:slow=3".into())]);
        switch.set("");
        assert_eq!([look(), look()], [None, None]);
        switch.set("gpu0:slow=3");
        assert_eq!(look(), Some("gpu0:slow=3".into()));
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    /// If this fails, a fault is switched on that no device looks at any more, and a test passes
    /// without it.
    #[test]
    fn what_cannot_strike_any_more_is_refused() {
        for fault in ["delay=5", "loss-at=0", "port-down-after=0", "slow=7", "out-of-memory-at=0"] {
            assert!(is_switchable(fault), "{fault}");
        }
        for wrong in [
            "hwsim0:port-down",
            "*:qp-error-after=3",
            "*:completions-max=3",
            "engine0:stall-after=1",
            "rank0:kill-at=3",
            "gpu0:nonsense",
        ] {
            let words = switch_faults(&format!("seed=1,{wrong}")).unwrap_err();
            assert!(words.contains("expected") && words.contains(&format!("`{wrong}`")), "{words}");
        }
    }
}
