//! Modules: PTX text turned into kernels and variables of one GPU.

use crate::clusters;
use crate::context::Context;
use crate::copy::{Bulk, Source};
use crate::error::{Error, Result};
pub use hwsim_ptx::{Input, LinkError};
use hwsim_ptx::{Kernel, LinkedModule};
use lru::LruCache;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// A loaded module.
pub struct Module {
    /// Where it is loaded.
    pub context: Arc<Context>,
    linked: LinkedModule,
    /// Bytes of its constant variables.
    pub constant_bytes: u64,
    variables: HashMap<String, Variable>,
    /// The allocations that hold all variables.
    _storage: Storage,
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
    /// The decoded module.
    pub kernel: Arc<Kernel>,
    /// Dynamic shared memory that a launch may ask for, where the program has raised it.
    dynamic_shared_max: AtomicU32,
    /// It is on the GPU: always, unless the driver loads lazily.
    loaded: AtomicBool,
    clusters: Mutex<clusters::Settings>,
}

/// PTX, parsed and decoded once, that can be placed in any number of contexts.
#[derive(Clone, Debug)]
pub struct Code(Arc<Decoded>);

#[derive(Debug)]
struct Decoded {
    /// The text; or names and texts that were joined, each behind a NUL.
    source: Box<str>,
    module: hwsim_ptx::Module,
    /// Of the source: who has compiled it before need not do so again.
    digest: u64,
}

/// What this process has decoded last, as the real driver keeps what it has compiled: programs load
/// the same text for each of their GPUs.
static DECODED: LazyLock<Mutex<LruCache<u64, Code>>> =
    LazyLock::new(|| Mutex::new(LruCache::new(DECODED_MAX)));

/// More than a program loads for each GPU, in turns.
const DECODED_MAX: NonZeroUsize = NonZeroUsize::new(16).unwrap();

impl Code {
    /// Parses and decodes.
    pub fn parse(text: &str) -> Result<Self> {
        Self::decode_once(text, || hwsim_ptx::Module::load(text).map_err(invalid))
    }

    /// Joins several texts, and decodes the result.
    pub fn join(inputs: &[Input<'_>]) -> std::result::Result<Self, LinkError> {
        let each = inputs.iter().flat_map(|input| ["\0", input.name, "\0", input.text]);
        let source: String = each.collect();
        Self::decode_once(&source, || hwsim_ptx::Module::load_joined(inputs))
    }

    /// Looks through a text that will be joined with others.
    pub fn check(text: &str) -> std::result::Result<(), hwsim_ptx::PtxError> {
        hwsim_ptx::Module::check(text)
    }

    fn decode_once<E>(
        source: &str,
        decode: impl FnOnce() -> std::result::Result<hwsim_ptx::Module, E>,
    ) -> std::result::Result<Self, E> {
        let mut hasher = DefaultHasher::new();
        source.hash(&mut hasher);
        let digest = hasher.finish();
        // The lock is held meanwhile: threads that load the same text at once decode it once.
        let mut decoded = DECODED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = decoded.get(&digest)
            && &*known.0.source == source
        {
            return Ok(known.clone());
        }
        let module = decode()?;
        let code = Self(Arc::new(Decoded { source: source.into(), module, digest }));
        decoded.put(digest, code.clone());
        Ok(code)
    }

    /// The text; or names and texts that were joined, each behind a NUL.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// Is there a managed variable of this name?
    pub fn is_managed(&self, name: &str) -> bool {
        self.0.module.globals().iter().any(|global| global.managed && global.name == name)
    }

    /// The names of its kernels.
    pub fn kernel_names(&self) -> impl Iterator<Item = &str> {
        self.0.module.kernels()
    }
}

fn invalid(error: hwsim_ptx::PtxError) -> Error {
    Error::InvalidPtx(error.to_string())
}

impl Module {
    /// Parses, decodes and places a module.
    pub fn load(context: &Arc<Context>, text: &str) -> Result<Arc<Self>> {
        Self::place(context, &Code::parse(text)?, None)
    }

    /// Places a module that was parsed before. Managed variables, of which there is one for all
    /// contexts, are those of a `sibling` that was placed from the same code.
    pub fn place(context: &Arc<Context>, code: &Code, sibling: Option<&Self>) -> Result<Arc<Self>> {
        context.machine.compile(code.0.digest);
        let module = &code.0.module;
        let (mut own, mut managed) = (Section::default(), Section::default());
        for global in module.globals() {
            if global.is_extern {
                let text = format!("extern variable {} of the module", global.name);
                return Err(Error::NotFound(text));
            }
            if global.managed { managed.add(global) } else { own.add(global) }
        }
        let mut storage = Storage { context: Arc::clone(context), addresses: Vec::new() };
        let mut variables = own.place(storage.allocate(own.end, Owner::Context)?);
        match sibling {
            Some(sibling) => {
                let known =
                    managed.names().filter_map(|name| sibling.variables.get_key_value(name));
                variables.extend(known.map(|(name, variable)| (name.clone(), *variable)));
            }
            None => variables.extend(managed.place(storage.allocate(managed.end, Owner::Module)?)),
        }
        let addresses = variables.iter().map(|(name, v)| (name.clone(), v.address)).collect();
        let linked = module.link(&addresses).map_err(invalid)?;
        let context = Arc::clone(context);
        let constants = module.globals().iter().filter(|global| global.constant);
        let constant_bytes = constants.map(|global| global.size_bytes).sum();
        let module = Self { context, linked, constant_bytes, variables, _storage: storage };
        module
            .initialise(|name| sibling.is_none() || !managed.names().any(|other| other == name))?;
        Ok(Arc::new(module))
    }

    /// Writes the initial values of the variables that are `wanted`: zero where none were given.
    fn initialise(&self, wanted: impl Fn(&str) -> bool) -> Result<()> {
        let memory = &self.context.machine.memory;
        let zero = Source::Pattern { value: 0, width: 1 };
        let variables = self.variables.iter().filter(|(name, _)| wanted(name));
        for (_, &Variable { address, bytes }) in variables {
            let all = Bulk { destination: address, destination_known: true, source: zero, bytes };
            all.run(memory, 0, bytes)?;
        }
        for (name, image) in self.linked.images().filter(|(name, _)| wanted(name)) {
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
        let (loaded, clusters) = (AtomicBool::new(false), Mutex::default());
        Some(Arc::new(Function { module, kernel, dynamic_shared_max, clusters, loaded }))
    }
}

/// Variables that lie in one allocation: names, offsets, sizes.
#[derive(Default)]
struct Section {
    variables: Vec<(String, u64, u64)>,
    end: u64,
}

impl Section {
    fn add(&mut self, global: &hwsim_ptx::Global) {
        let offset = self.end.next_multiple_of(u64::from(global.align.max(1)));
        self.variables.push((global.name.clone(), offset, global.size_bytes));
        self.end = offset + global.size_bytes;
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().map(|(name, ..)| name.as_str())
    }

    fn place(&self, start: u64) -> HashMap<String, Variable> {
        let placed = |(name, offset, bytes): &(String, u64, u64)| {
            (name.clone(), Variable { address: start + offset, bytes: *bytes })
        };
        self.variables.iter().map(placed).collect()
    }
}

/// Who takes a variable's memory along.
#[derive(Clone, Copy)]
enum Owner {
    Context,
    /// The module alone: other contexts use its managed variables, too.
    Module,
}

/// A number that no context has: those start at 1.
const NO_CONTEXT: u64 = 0;

/// The memory of a module's variables.
struct Storage {
    context: Arc<Context>,
    addresses: Vec<u64>,
}

impl Storage {
    /// 0 for no bytes.
    fn allocate(&mut self, bytes: u64, owner: Owner) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        let Context { machine, gpu, id, .. } = &*self.context;
        let address = match owner {
            Owner::Context => machine.memory.allocate(*gpu, bytes, false, *id)?,
            Owner::Module => machine.memory.allocate(*gpu, bytes, true, NO_CONTEXT)?,
        };
        self.addresses.push(address);
        Ok(address)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        for &address in &self.addresses {
            // A context that was destroyed has freed it already.
            let _ = self.context.machine.memory.free(address);
        }
    }
}

impl Function {
    /// What its attributes say of clusters.
    pub fn cluster_settings(&self) -> clusters::Settings {
        *self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes that.
    pub fn change_clusters(&self, change: impl FnOnce(&mut clusters::Settings)) {
        change(&mut self.clusters.lock().unwrap_or_else(PoisonError::into_inner));
    }

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
