//! Joins several modules into one, as a linker does.
//!
//! | in the inputs | in the result |
//! |---|---|
//! | one `.visible` definition | that one, and `.weak`, `.common`, `.extern` of the name give way |
//! | two of them | an error that names both inputs |
//! | `.weak` definitions alone | the first |
//! | `.common` variables alone | the largest |
//! | `.extern` alone, used | an error; functions of the device runtime are there always |
//! | `.extern .shared` alone | as in one module: the launch's memory, or a place of its size |
//! | names without linkage | each input has its own; one that is taken gets the input's number |
//! | a result that is declared and not defined | stays undefined: linkers see no prototypes |
//!
//! Kernels (`.entry`) count as `.visible`, for programs ask for them by name. The PTX specification
//! leaves open what becomes of two definitions of different kinds, a function and a variable: here
//! they are two definitions of one name.

mod device_runtime;
mod rename;

use std::collections::{HashMap, HashSet};

use thiserror::Error;

use crate::ast::{self, Function, Linkage, StateSpace, Variable};
use crate::decode::{BUILTINS, Module};
use crate::error::PtxError;

/// A text to be joined with others.
#[derive(Clone, Copy, Debug)]
pub struct Input<'t> {
    /// By which errors name it.
    pub name: &'t str,
    /// PTX.
    pub text: &'t str,
}

/// Why modules cannot be joined.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LinkError {
    /// One of them is no PTX, or holds what is not supported.
    #[error("{input}: {error}")]
    Ptx {
        /// The input.
        input: String,
        /// What is wrong, with the line in that input.
        error: PtxError,
    },
    /// Two definitions of one name.
    #[error("multiple definition of `{symbol}` in {second}; first defined in {first}")]
    Duplicate {
        /// The name.
        symbol: String,
        /// The input that came first.
        first: String,
        /// The other one.
        second: String,
    },
    /// No definition of a name that is used.
    #[error("Undefined reference to '{symbol}' in '{input}'")]
    Undefined {
        /// The name.
        symbol: String,
        /// An input that uses it.
        input: String,
    },
    /// Nothing to join.
    #[error("nothing to link: no input holds PTX")]
    Empty,
}

impl Module {
    /// Joins several texts, and decodes the result.
    ///
    /// # Errors
    ///
    /// As for one text, with the input that it is in; names that are defined twice or not at all.
    pub fn load_joined(inputs: &[Input<'_>]) -> Result<Self, LinkError> {
        let joined = join(inputs)?;
        let decoded = Self::decode(&joined.module);
        decoded.map_err(|error| joined.locate(error.in_text(&joined.text)))
    }

    /// Looks through a text that will be joined with others: what it declares may be anywhere.
    ///
    /// # Errors
    ///
    /// As for [`Module::load`], but for names that it does not define.
    pub fn check(text: &str) -> Result<(), PtxError> {
        let mut module = crate::parser::parse(text)?;
        for function in &mut module.functions {
            if function.body.is_none() && !BUILTINS.contains(&function.name.as_str()) {
                function.body = Some(ast::Body::default());
            }
        }
        Self::decode(&module).map(drop).map_err(|error| error.in_text(text))
    }
}

/// What defines a name, and how firmly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Strength {
    Common,
    Weak,
    Strong,
}

/// The definition of a name that stays.
#[derive(Clone, Copy)]
struct Definition {
    input: usize,
    strength: Strength,
    /// Elements, by which `.common` variables are compared.
    size: u64,
}

/// Inputs that were parsed, with line numbers that go on from one to the next.
struct Joined {
    /// The result.
    module: ast::Module,
    /// All texts, one behind the other.
    text: String,
    /// The name of each input and the number of lines before it.
    starts: Vec<(String, u32)>,
}

impl Joined {
    /// An error of the result as one of the input that it comes from.
    fn locate(&self, mut error: PtxError) -> LinkError {
        let found = self.starts.iter().rev().find(|(_, lines)| error.line > *lines);
        let (input, lines) = found.cloned().unwrap_or_default();
        error.line -= lines;
        LinkError::Ptx { input, error }
    }
}

/// A text that calls a function of the device runtime which needs no linker, with that function.
pub(crate) fn with_built_in(module: &ast::Module, text: &str) -> Option<Result<Module, PtxError>> {
    if !device_runtime::is_built_in(module) {
        return None;
    }
    match Module::load_joined(&[Input { name: "", text }]) {
        Ok(module) => Some(Ok(module)),
        Err(LinkError::Ptx { error, .. }) => Some(Err(error)),
        // Other names are missing, too: the text alone shows where.
        Err(_) => None,
    }
}

/// Parses and joins.
fn join(inputs: &[Input<'_>]) -> Result<Joined, LinkError> {
    if inputs.is_empty() {
        return Err(LinkError::Empty);
    }
    let mut joined =
        Joined { module: ast::Module::default(), text: String::new(), starts: Vec::new() };
    let mut modules = Vec::new();
    let mut inputs = inputs.to_vec();
    let mut number = 0;
    // The device runtime joins last, where it is needed.
    while let Some(Input { name, text }) = inputs.get(number).copied() {
        number += 1;
        let at_input = |error| LinkError::Ptx { input: name.to_owned(), error };
        let mut module = crate::parser::parse(text).map_err(at_input)?;
        let lines = joined.text.lines().count() as u32;
        rename::shift_lines(&mut module, lines);
        joined.starts.push((name.to_owned(), lines));
        joined.text.push_str(text);
        joined.text.push('\n');
        modules.push(module);
        if number == inputs.len() && device_runtime::is_needed(&modules) {
            inputs.push(device_runtime::INPUT);
        }
    }
    let names: Vec<&str> = inputs.iter().map(|input| input.name).collect();
    joined.module = merge(&names, modules)?;
    Ok(joined)
}

fn merge(names: &[&str], mut modules: Vec<ast::Module>) -> Result<ast::Module, LinkError> {
    let definitions = definitions(names, &modules)?;
    forget_results(&mut modules);
    rename::separate(&mut modules, |name| definitions.contains_key(name));
    for (input, module) in modules.iter().enumerate() {
        let used = rename::used_names(module);
        for name in undefined(module, &definitions) {
            if used.contains(name) {
                let (symbol, input) = (name.to_owned(), names[input].to_owned());
                return Err(LinkError::Undefined { symbol, input });
            }
        }
    }
    let mut result = ast::Module { address_size: 64, ..ast::Module::default() };
    let mut dynamic = HashSet::new();
    for (input, module) in modules.into_iter().enumerate() {
        result.version = result.version.max(module.version);
        if architecture(&module.target) >= architecture(&result.target) {
            result.target = module.target;
        }
        // The decoder refuses other modules than those with 64-bit addresses.
        if module.address_size != 64 {
            result.address_size = module.address_size;
        }
        let stays = |name: &str| definitions.get(name).is_none_or(|found| found.input == input);
        result.variables.extend(module.variables.into_iter().filter(|variable| {
            if variable.linkage != Linkage::Extern {
                return stays(&variable.name);
            }
            let is_shared = variable.space == StateSpace::Shared;
            is_shared
                && !definitions.contains_key(&variable.name)
                && dynamic.insert(variable.name.clone())
        }));
        result.functions.extend(module.functions.into_iter().filter(|function| {
            let is_own = strength_of(function).is_none() || stays(&function.name);
            is_own && (function.body.is_some() || !definitions.contains_key(&function.name))
        }));
    }
    Ok(result)
}

/// Calls of functions that are declared with results and defined elsewhere without lose them.
fn forget_results(modules: &mut [ast::Module]) {
    let is_void = |function: &&Function| {
        strength_of(function).is_some() && function.returns.is_empty() && !function.is_entry
    };
    let functions = modules.iter().flat_map(|module| &module.functions);
    let void: HashSet<String> = functions.filter(is_void).map(|it| it.name.clone()).collect();
    for module in modules {
        let declared = module.functions.iter().filter(|function| {
            function.body.is_none() && !function.returns.is_empty() && void.contains(&function.name)
        });
        let declared: HashSet<String> = declared.map(|function| function.name.clone()).collect();
        if !declared.is_empty() {
            let bodies = module.functions.iter_mut().filter_map(|it| it.body.as_mut());
            bodies.for_each(|body| rename::drop_results(body, &declared));
        }
    }
}

/// `sm_90a`: 90.
fn architecture(target: &str) -> u32 {
    let digits = target.trim_start_matches("sm_").trim_end_matches(|c: char| !c.is_ascii_digit());
    digits.parse().unwrap_or(0)
}

/// How firmly a function defines its name for other inputs, if it does.
fn strength_of(function: &Function) -> Option<Strength> {
    function.body.as_ref()?;
    match function.linkage {
        Linkage::Visible => Some(Strength::Strong),
        Linkage::Weak => Some(Strength::Weak),
        _ if function.is_entry => Some(Strength::Strong),
        _ => None,
    }
}

fn strength_of_variable(variable: &Variable) -> Option<Strength> {
    match variable.linkage {
        Linkage::Visible => Some(Strength::Strong),
        Linkage::Weak => Some(Strength::Weak),
        Linkage::Common => Some(Strength::Common),
        Linkage::Internal | Linkage::Extern => None,
    }
}

/// The definition of each name that all inputs share.
fn definitions(
    names: &[&str],
    modules: &[ast::Module],
) -> Result<HashMap<String, Definition>, LinkError> {
    let mut table: HashMap<String, Definition> = HashMap::new();
    for (input, module) in modules.iter().enumerate() {
        let functions = module.functions.iter().filter_map(|function| {
            let definition = Definition { input, strength: strength_of(function)?, size: 0 };
            Some((function.name.as_str(), definition))
        });
        let variables = module.variables.iter().filter_map(|variable| {
            let size = variable.dimensions.iter().fold(1, |all: u64, n| all.saturating_mul(*n));
            let strength = strength_of_variable(variable)?;
            Some((variable.name.as_str(), Definition { input, strength, size }))
        });
        for (name, new) in functions.chain(variables) {
            let Some(old) = table.get_mut(name) else {
                table.insert(name.to_owned(), new);
                continue;
            };
            if old.strength == Strength::Strong && new.strength == Strength::Strong {
                let (first, second) = (names[old.input].to_owned(), names[input].to_owned());
                return Err(LinkError::Duplicate { symbol: name.to_owned(), first, second });
            }
            let larger = new.strength == Strength::Common && new.size > old.size;
            if new.strength > old.strength || (new.strength == old.strength && larger) {
                *old = new;
            }
        }
    }
    Ok(table)
}

/// Names that a module declares and that nobody defines.
fn undefined<'m>(
    module: &'m ast::Module,
    definitions: &'m HashMap<String, Definition>,
) -> impl Iterator<Item = &'m str> {
    let own = |name: &str| {
        module.functions.iter().any(|function| function.body.is_some() && function.name == name)
    };
    let functions = module.functions.iter().filter(move |function| {
        let is_builtin = BUILTINS.contains(&function.name.as_str());
        function.body.is_none() && !is_builtin && !own(&function.name)
    });
    let variables = module.variables.iter().filter(|variable| {
        variable.linkage == Linkage::Extern && variable.space != StateSpace::Shared
    });
    functions
        .map(|function| function.name.as_str())
        .chain(variables.map(|variable| variable.name.as_str()))
        .filter(|name| !definitions.contains_key(*name))
}
