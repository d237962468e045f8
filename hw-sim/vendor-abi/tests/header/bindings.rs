//! The driver's types and functions, as `cudarc` declares them for one version of CUDA.
//!
//! `cudarc::driver::sys` holds nothing but declarations: constants, enumerations, structures, and
//! one Rust function for each function of the driver. They are read from its source, since Rust
//! cannot list what a module declares.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use syn::{Attribute, Expr, Fields, ImplItem, Item, Meta, ReturnType, Type, UseTree};

/// The feature of `cudarc` that chooses the version; the workspace's `Cargo.toml` says the same.
const VERSION_FEATURE: &str = "cuda-12040";

/// A type of the driver.
pub enum Kind {
    /// Constants, and the names of further ones with equal values.
    Enum(Vec<(String, i64)>),
    /// Fields: name and type. None where only pointers to it are used.
    Struct(Vec<(String, Type)>),
    /// Members: name and type.
    Union(Vec<(String, Type)>),
    /// Another name of a type.
    Alias(Type),
}

/// A function of the driver.
pub struct Function {
    /// Parameters: name and type.
    pub parameters: Vec<(String, Type)>,
    /// What it returns.
    pub result: Type,
}

/// All that one version of CUDA declares.
#[derive(Default)]
pub struct Bindings {
    /// Numbers that C has as macros.
    pub constants: Vec<(String, i64)>,
    /// Types by name.
    pub types: BTreeMap<String, Kind>,
    /// Alignments that C does not give by itself.
    pub alignments: BTreeMap<String, String>,
    /// Functions by name.
    pub functions: BTreeMap<String, Function>,
}

impl Bindings {
    /// Reads the source of the `cudarc` that this workspace is built with.
    pub fn read() -> Self {
        let path = source();
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut bindings = Self::default();
        for item in syn::parse_file(&text).unwrap().items {
            bindings.add(item);
        }
        assert!(bindings.functions.len() > 400, "the bindings have another form than expected");
        bindings
    }

    fn add(&mut self, item: Item) {
        match item {
            Item::Const(item) if exists(&item.attrs) => {
                self.constants.push((item.ident.to_string(), number(&item.expr)));
            }
            Item::Type(item) if exists(&item.attrs) => {
                self.types.insert(item.ident.to_string(), Kind::Alias(*item.ty));
            }
            Item::Use(item) if exists(&item.attrs) => self.rename(&item.tree),
            Item::Enum(item) if exists(&item.attrs) => {
                let value =
                    |variant: &syn::Variant| number(&variant.discriminant.as_ref().unwrap().1);
                let constants = item.variants.iter().map(|v| (v.ident.to_string(), value(v)));
                self.types.insert(item.ident.to_string(), Kind::Enum(constants.collect()));
            }
            Item::Struct(item) if exists(&item.attrs) => self.structure(item),
            Item::Union(item) if exists(&item.attrs) => {
                let members = fields(&Fields::Named(item.fields));
                self.types.insert(item.ident.to_string(), Kind::Union(members));
            }
            Item::Impl(item) if exists(&item.attrs) && item.trait_.is_none() => self.more(item),
            Item::Fn(item) if exists(&item.attrs) => {
                let name = item.sig.ident.to_string();
                if name.starts_with("cu") && name != "culib" {
                    self.functions.insert(name, function(&item.sig));
                }
            }
            _ => {}
        }
    }

    /// `pub use self::A as B` is an alias, too.
    fn rename(&mut self, tree: &UseTree) {
        if let UseTree::Path(path) = tree
            && let UseTree::Rename(rename) = &*path.tree
        {
            let original = &rename.ident;
            let alias = Kind::Alias(syn::parse_quote!(#original));
            self.types.insert(rename.rename.to_string(), alias);
        }
    }

    fn structure(&mut self, item: syn::ItemStruct) {
        let name = item.ident.to_string();
        for attribute in &item.attrs {
            let Meta::List(list) = &attribute.meta else { continue };
            let words = list.tokens.to_string().replace(' ', "");
            if let Some(bytes) = words.strip_prefix("align(") {
                self.alignments.insert(name.clone(), bytes.trim_end_matches(')').to_owned());
            }
        }
        let kind = match item.fields {
            // A set of flags, which C has as an enumeration.
            Fields::Unnamed(_) => Kind::Enum(Vec::new()),
            ref named => Kind::Struct(fields(named)),
        };
        self.types.insert(name, kind);
    }

    /// Constants beside an enumeration: flags, and second names of values.
    fn more(&mut self, item: syn::ItemImpl) {
        let Type::Path(path) = &*item.self_ty else { return };
        let name = path.path.require_ident().unwrap().to_string();
        let Some(Kind::Enum(constants)) = self.types.get_mut(&name) else { return };
        for member in item.items {
            let ImplItem::Const(constant) = member else { continue };
            let value = match &constant.expr {
                Expr::Call(call) => number(&call.args[0]),
                Expr::Path(path) => {
                    let original = path.path.segments.last().unwrap().ident.to_string();
                    constants.iter().find(|(name, _)| *name == original).unwrap().1
                }
                _ => panic!("{}: neither a number nor a name", constant.ident),
            };
            constants.push((constant.ident.to_string(), value));
        }
        // The bindings sort flags by name, C's readers by value.
        constants.sort_by_key(|(_, value)| *value);
    }
}

/// The file in the sources of `cudarc`.
fn source() -> PathBuf {
    // Without a platform, cargo would want to download what only other systems need.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--filter-platform", &platform])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let cudarc = packages.iter().find(|package| package["name"] == "cudarc").unwrap();
    let manifest = PathBuf::from(cudarc["manifest_path"].as_str().unwrap());
    manifest.with_file_name("src/driver/sys/mod.rs")
}

/// Does this item exist in our version of CUDA?
fn exists(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).all(|attribute| {
        let Meta::List(list) = &attribute.meta else { panic!("a cfg without a condition") };
        let condition = list.tokens.to_string();
        // Conditions of other forms are about how cudarc itself loads the library.
        condition.starts_with("any") && condition.contains(&format!("\"{VERSION_FEATURE}\""))
    })
}

fn number(expr: &Expr) -> i64 {
    match expr {
        Expr::Lit(literal) => match &literal.lit {
            syn::Lit::Int(value) => value.base10_parse().unwrap(),
            _ => panic!("not an integer"),
        },
        Expr::Unary(unary) => -number(&unary.expr),
        _ => panic!("not a number"),
    }
}

fn fields(fields: &Fields) -> Vec<(String, Type)> {
    let name = |field: &syn::Field| field.ident.as_ref().unwrap().to_string();
    fields.iter().map(|f| (name(f), f.ty.clone())).filter(|(name, _)| name != "_unused").collect()
}

fn function(signature: &syn::Signature) -> Function {
    let parameter = |argument: &syn::FnArg| {
        let syn::FnArg::Typed(typed) = argument else { panic!("a method") };
        let syn::Pat::Ident(name) = &*typed.pat else { panic!("a parameter without a name") };
        (name.ident.to_string(), (*typed.ty).clone())
    };
    let ReturnType::Type(_, result) = &signature.output else { panic!("it returns nothing") };
    Function {
        parameters: signature.inputs.iter().map(parameter).collect(),
        result: (**result).clone(),
    }
}
