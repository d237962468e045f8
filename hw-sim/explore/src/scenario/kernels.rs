//! The kernels of a run: those that are committed, or changed ones.

use hwsim_ptx::{Kernel, Module};
use ringdove_kernels::ptx;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The kernels of a run.
#[derive(Clone)]
pub struct Kernels {
    executor: Arc<Kernel>,
    pub(super) user: Arc<Kernel>,
    experts: Entries,
}

/// Kernels by the names of their entries.
type Entries = Arc<HashMap<&'static str, Arc<Kernel>>>;

/// The entry of `test_calls.cu`.
const USER_ENTRY: &str = "test_calls";

impl Kernels {
    /// Those that are committed.
    ///
    /// # Panics
    ///
    /// They cannot be loaded.
    pub fn committed() -> Self {
        static KERNELS: OnceLock<Kernels> = OnceLock::new();
        let load = || Self {
            executor: entry(ptx::EXECUTOR, ptx::EXECUTOR_ENTRY).expect("it is committed"),
            user: entry(ptx::TEST_CALLS, USER_ENTRY).expect("it is committed"),
            experts: Arc::new(
                entries(ptx::EXPERTS.sm_70, ptx::EXPERTS_ENTRIES).expect("they are committed"),
            ),
        };
        KERNELS.get_or_init(load).clone()
    }

    /// The same with a changed text in the place of one of them, whichever it has the entry of.
    ///
    /// # Errors
    ///
    /// The text is no PTX, or has none of the entries.
    pub fn load(text: &str) -> Result<Self, String> {
        let committed = Self::committed();
        let has = |name: &str| text.contains(&format!(".entry {name}("));
        if has(ptx::EXECUTOR_ENTRY) {
            return Ok(Self { executor: entry(text, ptx::EXECUTOR_ENTRY)?, ..committed });
        }
        if has(USER_ENTRY) {
            return Ok(Self { user: entry(text, USER_ENTRY)?, ..committed });
        }
        let of_experts: Vec<_> =
            ptx::EXPERTS_ENTRIES.into_iter().filter(|name| has(name)).collect();
        if !of_experts.is_empty() {
            let mut all = (*committed.experts).clone();
            all.extend(entries(text, of_experts)?);
            return Ok(Self { experts: Arc::new(all), ..committed });
        }
        let names = [ptx::EXECUTOR_ENTRY, USER_ENTRY, ptx::EXPERTS_ENTRIES[0]].join(", ");
        Err(format!("none of the entries {names}"))
    }

    pub(super) fn executor(&self) -> &Arc<Kernel> {
        &self.executor
    }

    /// A kernel of `experts.cu`.
    pub(super) fn of_experts(&self, name: &str) -> &Arc<Kernel> {
        &self.experts[name]
    }
}

fn entry(text: &str, name: &str) -> Result<Arc<Kernel>, String> {
    let mut kernels = entries(text, [name])?;
    Ok(kernels.remove(name).expect("it was asked for"))
}

fn entries<'n>(
    text: &str,
    names: impl IntoIterator<Item = &'n str>,
) -> Result<HashMap<&'n str, Arc<Kernel>>, String> {
    let module = Module::load(text).map_err(|error| error.to_string())?;
    let linked = module.link(&HashMap::new()).map_err(|error| error.to_string())?;
    let kernel = |name| linked.kernel(name).ok_or_else(|| format!("no kernel {name}"));
    names.into_iter().map(|name| Ok((name, kernel(name)?))).collect()
}
