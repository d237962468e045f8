//! From parsed text to decoded form.

mod accumulate;
mod allocate;
mod arithmetic;
mod builder;
mod bulk;
mod cluster;
mod common;
mod control;
mod copy_async;
mod data;
mod finder;
mod function;
pub(crate) mod fuse;
mod layout;
mod matrix;
mod mbarrier;
mod moves;
mod order;
mod pieces;
mod products;
mod role;
pub mod select;
mod special;
mod strips;
pub mod supported;
pub(crate) mod sweep;
mod text;
mod vectors;
mod video;
mod warp_wide;

use std::collections::HashMap;
use std::sync::Arc;

use crate::ast;
use crate::error::PtxError;
use crate::exec::program::Program;
use crate::exec::windows;
use crate::kernel::{Kernel, Param};

pub use control::BUILTINS;

/// Why an instruction or a declaration cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    line: u32,
    expected: String,
    found: String,
}

impl DecodeError {
    /// At a line.
    pub fn new(line: u32, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { line, expected: expected.into(), found: found.into() }
    }

    /// With the text of its line.
    pub(crate) fn in_text(self, text: &str) -> PtxError {
        let index = self.line.saturating_sub(1) as usize;
        let line_text = text.lines().nth(index).unwrap_or("");
        let indent = line_text.len() - line_text.trim_start().len();
        PtxError {
            line: self.line,
            column: indent as u32 + 1,
            text: crate::error::shorten(line_text.trim()),
            expected: self.expected,
            found: self.found,
        }
    }
}

/// A word of an image that holds the address of something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Where in the image, in bytes.
    pub offset: u64,
    /// Variable or function.
    pub symbol: String,
    /// Bytes to add.
    pub addend: i64,
}

/// A module-scope variable that the machine places in global memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its alignment in bytes.
    pub align: u32,
    /// `.const`: kernels only read it.
    pub constant: bool,
    /// `.attribute(.managed)`: one variable for all GPUs and the host.
    pub managed: bool,
    /// Declared here, defined elsewhere.
    pub is_extern: bool,
    /// Its initial bytes, up to the last that was given; all behind them are zero.
    pub image: Vec<u8>,
    /// Words of the image that hold addresses.
    pub relocations: Vec<Relocation>,
}

/// A parsed and fully decoded module. It lacks only the addresses of its variables.
#[derive(Clone, Debug)]
pub struct Module {
    globals: Vec<Global>,
    /// Those that use no variable's address are complete, and shared by all who link the module.
    kernels: Vec<Arc<Kernel>>,
    functions: HashMap<String, u64>,
    architecture: u32,
}

impl Module {
    /// Parses and decodes.
    ///
    /// # Errors
    ///
    /// What is no PTX, and what is no instruction of the subset: named, with its line.
    pub fn load(text: &str) -> Result<Self, PtxError> {
        let module = crate::parser::parse(text)?;
        if let Some(joined) = crate::link::with_built_in(&module, text) {
            return joined;
        }
        Self::decode(&module).map_err(|error| error.in_text(text))
    }

    pub(crate) fn decode(module: &ast::Module) -> Result<Self, DecodeError> {
        if module.address_size != 64 {
            let found = format!(".address_size {}", module.address_size);
            return Err(DecodeError::new(1, "a module with 64-bit addresses", found));
        }
        let bodies = module.functions.iter().filter_map(|function| function.body.as_ref());
        let inner = bodies.flat_map(|body| &body.variables);
        let statics = module.variables.iter().chain(inner).filter(|v| builder::is_static(v));
        let globals = statics.map(layout::global).collect::<Result<Vec<_>, _>>()?;
        let index = builder::Index::new(module);
        let mut kernels = Vec::new();
        for (number, function) in module.functions.iter().enumerate() {
            if function.is_entry && function.body.is_some() {
                kernels.push(Arc::new(kernel(&index, number, function)?));
            }
        }
        let functions = module
            .functions
            .iter()
            .filter_map(|function| {
                let number = index.function_number(&function.name)?;
                Some((function.name.clone(), windows::FUNCTION | number as u64))
            })
            .collect();
        Ok(Self { globals, kernels, functions, architecture: module.architecture() })
    }

    /// The architecture that its `.target` names: 80 for `sm_80`.
    pub fn architecture(&self) -> u32 {
        self.architecture
    }

    /// Variables that need a place.
    pub fn globals(&self) -> &[Global] {
        &self.globals
    }

    /// Names of kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|kernel| kernel.name.as_str())
    }

    /// Puts in where the machine placed each variable.
    ///
    /// # Errors
    ///
    /// A variable that has no address.
    pub fn link(&self, addresses: &HashMap<String, u64>) -> Result<LinkedModule, PtxError> {
        let functions = &self.functions;
        let missing = |name: &str| PtxError {
            line: 0,
            column: 0,
            text: String::new(),
            expected: "an address for each module variable".to_owned(),
            found: format!("none for `{name}`"),
        };
        let mut kernels = HashMap::new();
        for kernel in &self.kernels {
            let mut linked = Arc::clone(kernel);
            if builder::has_symbols(&kernel.program) {
                let program = &mut Arc::make_mut(&mut linked).program;
                builder::fill_constants(program, |name| addresses.get(name).copied())
                    .map_err(|name| missing(&name))?;
            }
            kernels.insert(kernel.name.clone(), linked);
        }
        let mut globals = self.globals.clone();
        for global in &mut globals {
            for relocation in &global.relocations {
                let symbol = relocation.symbol.as_str();
                let address = addresses.get(symbol).or_else(|| functions.get(symbol));
                let address = *address.ok_or_else(|| missing(symbol))?;
                let value = address.wrapping_add_signed(relocation.addend).to_le_bytes();
                let start = relocation.offset as usize;
                if let Some(word) = global.image.get_mut(start..start + 8) {
                    word.copy_from_slice(&value);
                }
            }
        }
        Ok(LinkedModule { globals, kernels })
    }
}

fn kernel(
    index: &builder::Index<'_>,
    number: usize,
    function: &ast::Function,
) -> Result<Kernel, DecodeError> {
    let built = builder::build(index, number)?;
    let mut cursor = layout::LayoutCursor::default();
    let mut params = Vec::new();
    for param in &function.params {
        let (bytes, align) = (layout::variable_bytes(param)?, layout::variable_align(param));
        let offset = cursor.place(bytes, align) as usize;
        params.push(Param { offset, size_bytes: bytes as usize, align: align as usize });
    }
    let static_shared_bytes = u32::try_from(built.static_shared_bytes).map_err(|_| {
        let found = format!("{} bytes", built.static_shared_bytes);
        DecodeError::new(function.line, "less than 4 GiB of shared memory", found)
    })?;
    let mut program: Program = built.program;
    if !builder::has_symbols(&program) {
        builder::fill_constants(&mut program, |_| None).expect("no name is asked for");
    }
    Ok(Kernel {
        name: function.name.clone(),
        params,
        param_bytes: cursor.end as usize,
        static_shared_bytes,
        uses_reserved_shared: program.uses_reserved_shared(),
        local_bytes: program.local_bytes,
        register_count: program.cargo,
        max_block: function.max_block,
        block_is_exact: function.block_is_exact,
        clusters: function.clusters,
        program,
    })
}

/// A module whose variables have addresses: its kernels can run.
#[derive(Clone, Debug)]
pub struct LinkedModule {
    globals: Vec<Global>,
    kernels: HashMap<String, Arc<Kernel>>,
}

impl LinkedModule {
    /// A kernel by name.
    pub fn kernel(&self, name: &str) -> Option<Arc<Kernel>> {
        self.kernels.get(name).cloned()
    }

    /// Initial bytes of each variable, addresses put in; what is behind them is zero. Extern ones
    /// have none.
    pub fn images(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let own = self.globals.iter().filter(|global| !global.is_extern);
        own.map(|global| (global.name.as_str(), global.image.as_slice()))
    }
}

/// For tests: the kernel `k` of a module without variables.
#[cfg(test)]
fn kernel_k(text: &str) -> Arc<Kernel> {
    let module = crate::Module::load(text).unwrap_or_else(|error| panic!("{error}"));
    let module = module.link(&Default::default()).expect("no variables");
    module.kernel("k").expect("its name")
}
