//! Names, lines and calls of a module as its neighbours need them.

use std::collections::{HashMap, HashSet};

use crate::ast::{
    Body, Function, Initializer, Linkage, Module, Operand, StateSpace, Statement, Variable,
};

/// Lets a module's lines count from behind `lines` others.
pub(super) fn shift_lines(module: &mut Module, lines: u32) {
    let shift = |variables: &mut [Variable]| {
        variables.iter_mut().for_each(|variable| variable.line += lines);
    };
    shift(&mut module.variables);
    for function in &mut module.functions {
        function.line += lines;
        shift(&mut function.returns);
        shift(&mut function.params);
        let Some(body) = &mut function.body else { continue };
        shift(&mut body.variables);
        for statement in &mut body.statements {
            if let Statement::Instruction(instruction) = statement {
                instruction.line += lines;
            }
        }
    }
}

/// Gives names without linkage that are taken, by what all share or by an earlier module, the
/// number of their module. `#` is no part of any name in PTX, so the new ones are free.
pub(super) fn separate(modules: &mut [Module], is_shared: impl Fn(&str) -> bool) {
    let mut taken = HashSet::new();
    for (number, module) in modules.iter_mut().enumerate() {
        let mut renamed = HashMap::new();
        for name in internal_names(module) {
            if is_shared(&name) || !taken.insert(name.clone()) {
                let own = format!("{name}#in{number}");
                renamed.insert(name, own);
            }
        }
        if !renamed.is_empty() {
            rename(module, &renamed);
        }
    }
}

/// Names that a module defines for itself, each once: variables and functions, and what functions
/// keep in global memory.
fn internal_names(module: &Module) -> HashSet<String> {
    let variables = module.variables.iter().filter(|v| v.linkage == Linkage::Internal);
    let functions = module.functions.iter().filter(|function| {
        function.linkage == Linkage::Internal && function.body.is_some() && !function.is_entry
    });
    let bodies = module.functions.iter().filter_map(|function| function.body.as_ref());
    let inner = bodies.flat_map(|body| &body.variables).filter(|v| is_static(v));
    variables
        .chain(inner)
        .map(|variable| variable.name.clone())
        .chain(functions.map(|function| function.name.clone()))
        .collect()
}

fn is_static(variable: &Variable) -> bool {
    matches!(variable.space, StateSpace::Global | StateSpace::Const)
}

fn rename(module: &mut Module, names: &HashMap<String, String>) {
    let apply = |name: &mut String| {
        if let Some(new) = names.get(name) {
            name.clone_from(new);
        }
    };
    for variable in &mut module.variables {
        if variable.linkage == Linkage::Internal {
            apply(&mut variable.name);
        }
        if let Some(initializer) = &mut variable.initializer {
            symbols_of(initializer, &apply);
        }
    }
    for function in &mut module.functions {
        let local = local_names(function);
        if function.linkage == Linkage::Internal && !function.is_entry {
            apply(&mut function.name);
        }
        let Some(body) = &mut function.body else { continue };
        for variable in body.variables.iter_mut().filter(|variable| is_static(variable)) {
            apply(&mut variable.name);
            if let Some(initializer) = &mut variable.initializer {
                symbols_of(initializer, &apply);
            }
        }
        for_each_name(body, |name| {
            if !local.has(name) {
                apply(name);
            }
        });
    }
}

fn symbols_of(initializer: &mut Initializer, apply: &impl Fn(&mut String)) {
    match initializer {
        Initializer::List(items) => items.iter_mut().for_each(|item| symbols_of(item, apply)),
        Initializer::Symbol { name, .. } => apply(name),
        _ => {}
    }
}

/// Names that mean something of the function's own.
struct LocalNames {
    names: HashSet<String>,
    /// `%r` of `%r<20>`.
    prefixes: Vec<String>,
}

impl LocalNames {
    fn has(&self, name: &str) -> bool {
        let in_range = |prefix: &String| {
            let rest = name.strip_prefix(prefix.as_str()).unwrap_or("");
            !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
        };
        self.names.contains(name) || self.prefixes.iter().any(in_range)
    }
}

fn local_names(function: &Function) -> LocalNames {
    let own = function.returns.iter().chain(&function.params).map(|v| v.name.clone());
    let mut local = LocalNames { names: own.collect(), prefixes: Vec::new() };
    let Some(body) = &function.body else { return local };
    for register in &body.registers {
        match register.count {
            Some(_) => local.prefixes.push(register.name.clone()),
            None => drop(local.names.insert(register.name.clone())),
        }
    }
    let variables = body.variables.iter().filter(|variable| !is_static(variable));
    local.names.extend(variables.map(|variable| variable.name.clone()));
    local.names.extend(body.prototypes.iter().map(|prototype| prototype.0.clone()));
    local.names.extend(body.target_lists.iter().map(|list| list.0.clone()));
    local.names.extend(body.statements.iter().filter_map(|statement| match statement {
        Statement::Label(name) => Some(name.clone()),
        Statement::Instruction(_) => None,
    }));
    local
}

/// Calls `f` with each name in operands and lists of targets.
fn for_each_name(body: &mut Body, mut f: impl FnMut(&mut String)) {
    body.target_lists.iter_mut().flat_map(|list| &mut list.1).for_each(&mut f);
    for statement in &mut body.statements {
        if let Statement::Instruction(instruction) = statement {
            instruction.operands.iter_mut().for_each(|operand| in_operand(operand, &mut f));
        }
    }
}

fn in_operand(operand: &mut Operand, f: &mut impl FnMut(&mut String)) {
    match operand {
        Operand::Name(name) | Operand::NameOffset(name, _) => f(name),
        Operand::Address { base: Some(name), .. } => f(name),
        Operand::Tensor { base, coordinates, .. } => {
            f(base);
            coordinates.iter_mut().for_each(|item| in_operand(item, f));
        }
        Operand::Vector(items) | Operand::List(items) => {
            items.iter_mut().for_each(|item| in_operand(item, f));
        }
        Operand::Pair(first, second) => {
            in_operand(first, f);
            in_operand(second, f);
        }
        _ => {}
    }
}

/// Every name that a module's functions and initial values mention.
pub(super) fn used_names(module: &Module) -> HashSet<&str> {
    let mut used = HashSet::new();
    let bodies = || module.functions.iter().filter_map(|function| function.body.as_ref());
    for body in bodies() {
        used.extend(body.target_lists.iter().flat_map(|list| &list.1).map(String::as_str));
        for statement in &body.statements {
            if let Statement::Instruction(instruction) = statement {
                instruction.operands.iter().for_each(|operand| used_in(operand, &mut used));
            }
        }
    }
    let inner = bodies().flat_map(|body| &body.variables);
    for variable in module.variables.iter().chain(inner) {
        if let Some(initializer) = &variable.initializer {
            used_by(initializer, &mut used);
        }
    }
    used
}

fn used_in<'m>(operand: &'m Operand, used: &mut HashSet<&'m str>) {
    match operand {
        Operand::Name(name)
        | Operand::NameOffset(name, _)
        | Operand::Address { base: Some(name), .. } => drop(used.replace(name.as_str())),
        Operand::Tensor { base, coordinates, .. } => {
            used.insert(base);
            coordinates.iter().for_each(|item| used_in(item, used));
        }
        Operand::Vector(items) | Operand::List(items) => {
            items.iter().for_each(|item| used_in(item, used));
        }
        Operand::Pair(first, second) => {
            used_in(first, used);
            used_in(second, used);
        }
        _ => {}
    }
}

fn used_by<'m>(initializer: &'m Initializer, used: &mut HashSet<&'m str>) {
    match initializer {
        Initializer::List(items) => items.iter().for_each(|item| used_by(item, used)),
        Initializer::Symbol { name, .. } => drop(used.replace(name.as_str())),
        _ => {}
    }
}

/// Takes the results from calls of these functions.
pub(super) fn drop_results(body: &mut Body, functions: &HashSet<String>) {
    for statement in &mut body.statements {
        if let Statement::Instruction(instruction) = statement
            && instruction.opcode == "call"
            && let [Operand::List(results), Operand::Name(callee), ..] =
                instruction.operands.as_mut_slice()
            && functions.contains(callee)
        {
            results.clear();
        }
    }
}
