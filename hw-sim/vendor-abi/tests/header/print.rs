//! Bindings as a C header.

use crate::bindings::{Bindings, Function, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use syn::{Expr, GenericArgument, PathArguments, ReturnType, Type};

/// Names that only macros declare: numbers that stand for handles.
const HANDLES: &str = "\
/* Handles that are numbers. */
#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)
#define CU_DEVICE_CPU ((CUdevice)-1)
#define CU_DEVICE_INVALID ((CUdevice)-2)
#define CU_LAUNCH_PARAM_END ((void *)0x00)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)0x01)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)0x02)
";

const TOP: &str = "\
/* The CUDA driver API, version 12.4, as virtual hardware has it: declarations alone.
   Functions that virtual hardware does not answer return CUDA_ERROR_NOT_SUPPORTED.
   Generated from the signatures that the crate cudarc has; do not edit. After a change:
   HWSIM_UPDATE=1 cargo test -p hwsim-vendor-abi --test header */
#ifndef __cuda_cuda_h__
#define __cuda_cuda_h__

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef _WIN32
#error \"virtual hardware runs on Linux\"
#endif
#define CUDAAPI
#define CUDA_CB

";

const BOTTOM: &str = "
#ifdef __cplusplus
}
#endif

#endif
";

/// The header. `exported` are the names of all symbols that the driver library has.
pub fn header(bindings: &Bindings, exported: &BTreeSet<&str>) -> String {
    let mut text = TOP.to_owned();
    for (name, value) in &bindings.constants {
        let sign = if *value < 0 { ["(", ")"] } else { [""; 2] };
        writeln!(text, "#define {name} {}{}{}", sign[0], constant(*value), sign[1]).unwrap();
    }
    text += &names(bindings, exported);
    text += "\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n";
    let mut types = Types { bindings, done: BTreeSet::new(), text: String::new() };
    // Enumerations first: everything else uses them, and they use nothing.
    for enums in [true, false] {
        for (name, kind) in &bindings.types {
            if matches!(kind, Kind::Enum(_)) == enums {
                types.visit(name);
            }
        }
    }
    text += &types.text;
    text += HANDLES;
    text += "\n/* Functions. */\n";
    for (name, function) in &bindings.functions {
        text += &wrapped(&prototype(bindings, name, function));
    }
    text + BOTTOM
}

/// Structures and unions that a program can make one of, with their C names.
pub fn composites(bindings: &Bindings) -> Vec<&str> {
    let is_whole = |kind: &Kind| match kind {
        Kind::Struct(fields) | Kind::Union(fields) => !fields.is_empty(),
        _ => false,
    };
    let named = |name: &str| !name.contains("__bindgen_") && parent(bindings, name).is_none();
    let all = bindings.types.iter().filter(|(name, kind)| is_whole(kind) && named(name));
    all.map(|(name, _)| name.as_str()).collect()
}

/// A constant as C writes it; what does not fit an int is unsigned.
fn constant(value: i64) -> String {
    if value > i64::from(i32::MAX) { format!("{value:#x}u") } else { value.to_string() }
}

/// Functions whose plain name stands for a later version, and the names for per-thread streams.
fn names(bindings: &Bindings, exported: &BTreeSet<&str>) -> String {
    let mut versions: BTreeMap<&str, &str> = BTreeMap::new();
    for name in bindings.functions.keys() {
        let Some((plain, version)) = name.rsplit_once("_v") else { continue };
        // The first version that is declared is the one that a header of 12.4 means.
        if version.parse::<u32>().is_ok() && !bindings.functions.contains_key(plain) {
            versions.entry(plain).or_insert(name);
        }
    }
    versions.entry("cuGraphInstantiate").or_insert("cuGraphInstantiateWithFlags");
    let mut text =
        "\n/* What the plain names mean since they have got a second version. */\n".to_owned();
    for (plain, version) in &versions {
        writeln!(text, "#define {plain} {version}").unwrap();
    }
    text += "\n/* Stream 0 is each thread's own. */\n#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM\n";
    for name in bindings.functions.keys() {
        for ending in ["_ptds", "_ptsz"] {
            let twin = format!("{name}{ending}");
            if exported.contains(twin.as_str()) {
                writeln!(text, "#define {name} {twin}").unwrap();
            }
        }
    }
    text + "#endif\n"
}

fn prototype(bindings: &Bindings, name: &str, function: &Function) -> String {
    let parameters = parameters(bindings, &function.parameters);
    declare(bindings, &function.result, &format!("CUDAAPI {name}({parameters})"), false) + ";"
}

fn parameters(bindings: &Bindings, parameters: &[(String, Type)]) -> String {
    let one = |(name, ty): &(String, Type)| declare(bindings, ty, name, false);
    let all: Vec<_> = parameters.iter().map(one).collect();
    if all.is_empty() { "void".into() } else { all.join(", ") }
}

/// Breaks a prototype at its commas.
fn wrapped(line: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for part in line.split_inclusive(", ") {
        if column > 0 && column + part.trim_end().len() > 96 {
            text.truncate(text.trim_end().len());
            text += "\n    ";
            column = 4;
        }
        text += part;
        column += part.len();
    }
    text + "\n"
}

/// Prints types, each behind those that it needs.
struct Types<'a> {
    bindings: &'a Bindings,
    done: BTreeSet<String>,
    text: String,
}

impl Types<'_> {
    fn visit(&mut self, name: &str) {
        if name.contains("__bindgen_") || !self.done.insert(name.to_owned()) {
            return;
        }
        let bindings = self.bindings;
        let Some(kind) = bindings.types.get(name) else { panic!("`{name}` is not declared") };
        match kind {
            Kind::Enum(constants) => {
                let list: Vec<_> =
                    constants.iter().map(|(n, v)| format!("    {n} = {}", constant(*v))).collect();
                writeln!(self.text, "enum {name} {{\n{}\n}};", list.join(",\n")).unwrap();
            }
            Kind::Alias(ty) => {
                self.visit_all(ty);
                writeln!(self.text, "typedef {};", declare(bindings, ty, name, false)).unwrap();
            }
            Kind::Struct(fields) if fields.is_empty() => {
                writeln!(self.text, "struct {name};").unwrap();
            }
            Kind::Struct(fields) | Kind::Union(fields) => {
                self.visit_fields(fields);
                let alignment = bindings.alignments.get(name);
                let body = body(bindings, name, 0);
                let ending = alignment.map(|n| format!(" __attribute__((aligned({n})))"));
                writeln!(self.text, "{body}{};", ending.unwrap_or_default()).unwrap();
                if !name.contains("_st") && !name.contains("_union") {
                    writeln!(self.text, "typedef {} {name};", tagged(bindings, name)).unwrap();
                }
            }
        }
    }

    fn visit_fields(&mut self, fields: &[(String, Type)]) {
        for (_, ty) in fields {
            self.visit_all(ty);
        }
    }

    /// Visits what a type names, also inside of structures without a name.
    fn visit_all(&mut self, ty: &Type) {
        match ty {
            Type::Ptr(pointer) => self.visit_all(&pointer.elem),
            Type::Array(array) => self.visit_all(&array.elem),
            Type::Path(_) if callback(ty).is_some() => {
                let (parameters, result) = callback(ty).unwrap();
                self.visit_fields(&parameters);
                if let Some(result) = result {
                    self.visit_all(&result);
                }
            }
            Type::Path(_) => {
                let name = last(ty);
                match self.bindings.types.get(&name) {
                    Some(Kind::Struct(fields) | Kind::Union(fields))
                        if name.contains("__bindgen_") =>
                    {
                        self.visit_fields(fields);
                    }
                    Some(_) => self.visit(&name),
                    None => {}
                }
            }
            _ => panic!("a type of another form"),
        }
    }
}

/// A structure or union with its fields, those without a name unfolded.
fn body(bindings: &Bindings, name: &str, depth: usize) -> String {
    let (Kind::Struct(fields) | Kind::Union(fields)) = &bindings.types[name] else {
        panic!("`{name}` has no fields");
    };
    let indent = "    ".repeat(depth);
    let mut text = match name.contains("__bindgen_") {
        true => tagged(bindings, name).split(' ').next().unwrap().to_owned(),
        false => tagged(bindings, name),
    } + " {\n";
    for (field, ty) in fields {
        // Rust's keyword, and not C's.
        let field = if field == "type_" { "type" } else { field };
        let inner = if let Type::Path(_) = ty { last(ty) } else { String::new() };
        let line = if inner.contains("__bindgen_") {
            let shown = if field.starts_with("__bindgen_anon") { "" } else { &format!(" {field}") };
            body(bindings, &inner, depth + 1) + shown
        } else {
            declare(bindings, ty, field, false)
        };
        writeln!(text, "{indent}    {line};").unwrap();
    }
    text + &indent + "}"
}

/// `inner` declared as a value of the type, as C writes it.
fn declare(bindings: &Bindings, ty: &Type, inner: &str, is_const: bool) -> String {
    match ty {
        Type::Ptr(pointer) => {
            let qualified = if is_const { "*const " } else { "*" };
            let is_const = pointer.const_token.is_some();
            declare(bindings, &pointer.elem, &format!("{qualified}{inner}"), is_const)
        }
        Type::Array(array) => {
            let Expr::Lit(length) = &array.len else { panic!("a length that is no number") };
            let syn::Lit::Int(length) = &length.lit else { panic!("a length that is no number") };
            let inner = format!("{inner}[{}]", length.base10_digits());
            declare(bindings, &array.elem, &inner, is_const)
        }
        Type::Path(_) => match callback(ty) {
            Some((list, result)) => {
                let inner = format!("(CUDA_CB *{inner})({})", parameters(bindings, &list));
                match result {
                    Some(result) => declare(bindings, &result, &inner, false),
                    None => format!("void {inner}"),
                }
            }
            None => {
                let name = c_name(bindings, &last(ty));
                format!("{}{name} {inner}", if is_const { "const " } else { "" })
            }
        },
        _ => panic!("a type of another form"),
    }
}

/// The named parameters of a function, and its result, if it has one.
type Signature = (Vec<(String, Type)>, Option<Type>);

/// The signature of a pointer to a function, which may be null.
fn callback(ty: &Type) -> Option<Signature> {
    let Type::Path(path) = ty else { return None };
    let segment = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
    let GenericArgument::Type(Type::BareFn(function)) = arguments.args.first()? else {
        return None;
    };
    let parameter = |argument: &syn::BareFnArg| {
        let name = argument.name.as_ref().map(|(name, _)| name.to_string());
        (name.unwrap_or_default(), argument.ty.clone())
    };
    let result = match &function.output {
        ReturnType::Type(_, result) => Some((**result).clone()),
        ReturnType::Default => None,
    };
    Some((function.inputs.iter().map(parameter).collect(), result))
}

fn last(ty: &Type) -> String {
    let Type::Path(path) = ty else { panic!("a type without a name") };
    path.path.segments.last().unwrap().ident.to_string()
}

/// A structure that Rust names after the one around it: the outer name.
fn parent<'a>(bindings: &'a Bindings, name: &str) -> Option<&'a str> {
    let is_parent = |outer: &&String| {
        name.strip_prefix(outer.as_str()).is_some_and(|rest| rest.starts_with("_CU"))
    };
    bindings.types.keys().find(is_parent).map(String::as_str)
}

/// A type's name in C, with `struct`, `union` or `enum` where there must be one.
pub fn tagged(bindings: &Bindings, name: &str) -> String {
    let word = match &bindings.types[name] {
        Kind::Enum(_) => "enum",
        Kind::Struct(_) => "struct",
        Kind::Union(_) => "union",
        Kind::Alias(_) => return name.to_owned(),
    };
    let own = parent(bindings, name).map_or(name, |outer| &name[outer.len() + 1..]);
    format!("{word} {own}")
}

fn c_name(bindings: &Bindings, name: &str) -> String {
    let c = match name {
        "c_void" => "void",
        "c_char" => "char",
        "c_uchar" => "unsigned char",
        "c_short" => "short",
        "c_ushort" => "unsigned short",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_long" => "long",
        "c_ulong" => "unsigned long",
        "c_longlong" => "long long",
        "c_ulonglong" => "unsigned long long",
        "usize" => "size_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "f32" => "float",
        _ => return tagged(bindings, name),
    };
    c.to_owned()
}
