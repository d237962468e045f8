//! The parsed form of a PTX module: names and modifiers as written, with line numbers.
//!
//! The parser builds it and checks syntax; what an opcode means, and whether it is supported, is
//! the decoder's business.

use crate::kernel::ClusterRules;

/// A parsed module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module {
    /// `.version major.minor`.
    pub version: (u32, u32),
    /// `.target`, first name (`sm_70`).
    pub target: String,
    /// `.address_size`, 64 for all that we support.
    pub address_size: u32,
    /// Module-scope variables, in order.
    pub variables: Vec<Variable>,
    /// Functions and entries, declarations (without body) too.
    pub functions: Vec<Function>,
}

impl Module {
    /// The number of the architecture that `.target` names: 80 for `sm_80`, 90 for `sm_90a`; 0 for
    /// a name that has none.
    pub fn architecture(&self) -> u32 {
        let number = self.target.strip_prefix("sm_").unwrap_or_default();
        let number = number.trim_end_matches(|c: char| c.is_ascii_lowercase());
        number.parse().unwrap_or(0)
    }
}

/// Visibility of a symbol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Linkage {
    /// None given: local to the module.
    #[default]
    Internal,
    /// `.visible`
    Visible,
    /// `.extern`
    Extern,
    /// `.weak`
    Weak,
    /// `.common`
    Common,
}

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateSpace {
    /// `.reg`
    Reg,
    /// `.global`
    Global,
    /// `.shared`
    Shared,
    /// `.local`
    Local,
    /// `.const`
    Const,
    /// `.param`
    Param,
}

/// A fundamental type, as in `.f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are PTX's own.
pub enum ScalarType {
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    BF16,
    BF16x2,
    F32,
    F64,
    Pred,
}

/// A variable, or a parameter of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its name; for variables inside a body made unique over nested scopes by the parser.
    pub name: String,
    /// Its space.
    pub space: StateSpace,
    /// `.align`, bytes, where given.
    pub align: Option<u32>,
    /// Its element type.
    pub scalar: ScalarType,
    /// 1, or 2, 4, 8 for `.v2`, `.v4`, `.v8`.
    pub vector: u8,
    /// Array dimensions; `[]` (unsized, as dynamic shared memory) is 0.
    pub dimensions: Vec<u64>,
    /// Initial value.
    pub initializer: Option<Initializer>,
    /// Its linkage.
    pub linkage: Linkage,
    /// `.attribute(.managed)`: one variable for all GPUs and the host.
    pub managed: bool,
    /// Line in the text, from 1.
    pub line: u32,
}

/// An initial value.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// `{ ... }`
    List(Vec<Initializer>),
    /// An integer constant.
    Integer(i128),
    /// A float constant: its bits as an f64 (`0f` and `0d` forms, and decimal).
    Float(f64),
    /// The bits of a `0fXXXXXXXX` constant.
    FloatBits32(u32),
    /// `symbol`, `symbol+offset` or `generic(symbol)+offset`.
    Symbol {
        /// Variable or function.
        name: String,
        /// Added bytes.
        offset: i64,
        /// Was it wrapped in `generic()`?
        generic: bool,
    },
}

/// An entry or a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// `.entry` (a kernel) or `.func`.
    pub is_entry: bool,
    /// Its linkage.
    pub linkage: Linkage,
    /// Return parameters (`.func` only).
    pub returns: Vec<Variable>,
    /// Parameters.
    pub params: Vec<Variable>,
    /// `.maxntid`, `.reqntid`: limits of the block, where given.
    pub max_block: Option<[u32; 3]>,
    /// `.reqntid` was given: the block must have exactly that shape.
    pub block_is_exact: bool,
    /// What it says of its clusters.
    pub clusters: ClusterRules,
    /// `.maxnreg`, `.minnctapersm`, `.noreturn` and others that do not change results.
    pub hints: Vec<String>,
    /// The body; None for a declaration.
    pub body: Option<Body>,
    /// Line in the text, from 1.
    pub line: u32,
}

/// A function's body, nested scopes flattened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// `.reg` declarations.
    pub registers: Vec<Register>,
    /// `.local`, `.shared`, `.param`, `.global`, `.const` variables declared inside.
    pub variables: Vec<Variable>,
    /// Labels and instructions, in order.
    pub statements: Vec<Statement>,
    /// `.callprototype` declarations: label and signature (returns, params).
    pub prototypes: Vec<(String, Vec<Variable>, Vec<Variable>)>,
    /// `.branchtargets` and `.calltargets` lists: label and names.
    pub target_lists: Vec<(String, Vec<String>)>,
    /// `.loc`: from which statement on, the file's number, and the line in it.
    pub locations: Vec<(usize, u32, u32)>,
    /// `.file`: numbers and names, where there are locations.
    pub files: Vec<(u32, String)>,
}

/// `.reg .b32 %r<20>;` or `.reg .f32 %x;`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Name, or prefix where `count` is given.
    pub name: String,
    /// `<N>`: registers `name0` to `name(N-1)`.
    pub count: Option<u32>,
    /// Type.
    pub scalar: ScalarType,
    /// 1, 2 or 4 (`.v2`, `.v4`).
    pub vector: u8,
}

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `NAME:`
    Label(String),
    /// An instruction.
    Instruction(Instruction),
}

/// One instruction as written.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// Line in the text, from 1.
    pub line: u32,
    /// `@p` or `@!p`.
    pub guard: Option<Guard>,
    /// First word: `ld`, `add`, `bar`.
    pub opcode: String,
    /// The dotted words after it, without dots: `["global", "v4", "u32"]`. `::` stays inside a
    /// word, as in `shared::cta`.
    pub modifiers: Vec<String>,
    /// Operands, in order. `d|p` pairs are [`Operand::Pair`].
    pub operands: Vec<Operand>,
}

/// A predicate that guards an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Predicate register.
    pub register: String,
    /// `@!p`.
    pub negated: bool,
}

/// One operand as written.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, special register, label, variable or function name. Special registers keep
    /// their component: `%tid.x`.
    Name(String),
    /// `!p`, a negated predicate source.
    Negated(String),
    /// An integer constant.
    Integer(i128),
    /// `0dXXXXXXXXXXXXXXXX` or a decimal float.
    Float(f64),
    /// `0fXXXXXXXX`, bits.
    FloatBits32(u32),
    /// `name+offset` outside brackets (`mov.u64 %rd1, array+8`).
    NameOffset(String, i64),
    /// `[name+offset]`, `[name]` or `[constant]` (base None).
    Address {
        /// Register or variable.
        base: Option<String>,
        /// Bytes.
        offset: i64,
    },
    /// `[name+offset, {a, b, ...}]`: coordinates in the tensor whose map lies there.
    Tensor {
        /// Register or variable.
        base: String,
        /// Bytes.
        offset: i64,
        /// Coordinates, the innermost first.
        coordinates: Vec<Operand>,
    },
    /// `{a, b, ...}`
    Vector(Vec<Operand>),
    /// `d|p`
    Pair(Box<Operand>, Box<Operand>),
    /// `( ... )` of a call: return or argument list.
    List(Vec<Operand>),
    /// `_`, a discarded destination.
    Sink,
}
