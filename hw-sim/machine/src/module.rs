//! Modules: PTX text turned into kernels and variables of one GPU.

use crate::context::Context;
use crate::copy::{Bulk, Source};
use crate::error::{Error, Result};
use hwsim_ptx::{Kernel, LinkedModule};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A loaded module.
pub struct Module {
    /// Where it is loaded.
    pub context: Arc<Context>,
    linked: LinkedModule,
    variables: HashMap<String, Variable>,
    /// The allocation that holds all variables; 0 if there are none.
    storage: u64,
}

/// A module-scope variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Where.
    pub address: u64,
    /// How large.
    pub bytes: u64,
}

/// A kernel of a module, with the settings that a program may change.
pub struct Function {
    /// Its module, which it keeps loaded.
    pub module: Arc<Module>,
    /// What the interpreter runs.
    pub kernel: Arc<Kernel>,
    /// Dynamic shared memory that a launch may ask for, where the program has raised it.
    dynamic_shared_max: AtomicU32,
    /// It is on the GPU: always, unless the driver loads lazily.
    loaded: AtomicBool,
}

/// The kernels of a PTX text, which is checked but not loaded anywhere.
pub fn kernel_names(text: &str) -> Result<Vec<String>> {
    let module = hwsim_ptx::Module::load(text);
    let module = module.map_err(|error| Error::InvalidPtx(error.to_string()))?;
    Ok(module.kernels().map(str::to_owned).collect())
}

impl Module {
    /// Parses, decodes and places a module.
    pub fn load(context: &Arc<Context>, text: &str) -> Result<Arc<Self>> {
        let invalid = |error: hwsim_ptx::PtxError| Error::InvalidPtx(error.to_string());
        let module = hwsim_ptx::Module::load(text).map_err(invalid)?;
        context.machine.compile(text);
        let mut offsets = Vec::new();
        let mut end = 0u64;
        for global in module.globals() {
            if global.is_extern {
                let text = format!("extern variable {} of the module", global.name);
                return Err(Error::NotFound(text));
            }
            end = end.next_multiple_of(u64::from(global.align.max(1)));
            offsets.push((global.name.clone(), end, global.size_bytes));
            end += global.size_bytes;
        }
        let memory = &context.machine.memory;
        let storage =
            if end == 0 { 0 } else { memory.allocate(context.gpu, end, false, context.id)? };
        let variables: HashMap<_, _> = offsets
            .into_iter()
            .map(|(name, offset, bytes)| (name, Variable { address: storage + offset, bytes }))
            .collect();
        let addresses = variables.iter().map(|(name, v)| (name.clone(), v.address)).collect();
        let linked = match module.link(&addresses) {
            Ok(linked) => linked,
            Err(error) => {
                if storage != 0 {
                    memory.free(storage)?;
                }
                return Err(invalid(error));
            }
        };
        let module = Self { context: Arc::clone(context), linked, variables, storage };
        module.initialise()?;
        Ok(Arc::new(module))
    }

    /// Writes the variables' initial values: zero where none were given.
    fn initialise(&self) -> Result<()> {
        let memory = &self.context.machine.memory;
        let zero = Source::Pattern { value: 0, width: 1 };
        for Variable { address, bytes } in self.variables.values().copied() {
            let all = Bulk { destination: address, destination_known: true, source: zero, bytes };
            all.run(memory, 0, bytes)?;
        }
        for (name, image) in self.linked.images() {
            let variable = self.variables[name];
            crate::copy::staged(memory, variable.address, image)?;
        }
        Ok(())
    }

    /// A variable by name.
    pub fn variable(&self, name: &str) -> Option<Variable> {
        self.variables.get(name).copied()
    }

    /// A kernel by name.
    pub fn function(self: &Arc<Self>, name: &str) -> Option<Arc<Function>> {
        let kernel = self.linked.kernel(name)?;
        let (module, dynamic_shared_max) = (Arc::clone(self), AtomicU32::new(0));
        let loaded = AtomicBool::new(false);
        Some(Arc::new(Function { module, kernel, dynamic_shared_max, loaded }))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.storage != 0 {
            // A context that was destroyed has freed it already.
            let _ = self.context.machine.memory.free(self.storage);
        }
    }
}

impl Function {
    /// The function is on the GPU from now on; true if it was before.
    pub fn mark_loaded(&self) -> bool {
        // Relaxed: nothing but the flag is shared by it.
        self.loaded.swap(true, Ordering::Relaxed)
    }

    /// Was it loaded?
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed)
    }

    /// Dynamic shared memory that a launch may ask for, bytes.
    pub fn dynamic_shared_max(&self) -> u32 {
        let model = self.module.context.machine.model(self.module.context.gpu);
        let default = crate::description::GpuModel::SHARED_MEMORY_PER_BLOCK as u32;
        let default = default.min(model.shared_memory_per_block_optin() as u32);
        let raised = self.dynamic_shared_max.load(Ordering::Relaxed);
        raised.max(default.saturating_sub(self.kernel.static_shared_bytes))
    }

    /// Raises it, up to what a block can opt in to.
    pub fn set_dynamic_shared_max(&self, bytes: u32) -> Result<()> {
        let model = self.module.context.machine.model(self.module.context.gpu);
        let most = model.shared_memory_per_block_optin() as u32;
        if bytes.saturating_add(self.kernel.static_shared_bytes) > most {
            return Err(Error::InvalidValue(format!(
                "{bytes} bytes of dynamic shared memory beside {} static: a block has {most}",
                self.kernel.static_shared_bytes
            )));
        }
        self.dynamic_shared_max.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}
