//! Users' own tasks: device functions as PTX, which are linked into the kernel.
//!
//! Their signature, and what they may do, stands in `kernels/cuda/task.cuh`.

use super::error::ProgramError;
use super::graph::{Cut, TileSize};
use super::tensor::View;
use std::fmt::Write;
use std::sync::Arc;

/// A user's device function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    name: String,
    text: Arc<str>,
}

impl Function {
    /// The function with this name in a PTX module, which may define others, too.
    ///
    /// # Errors
    /// [`ProgramError::Function`] for what is no name of a function in PTX, or one of the library's
    /// own, and for text that holds a NUL. Whether it is PTX is for the driver to say, when the
    /// program is prepared.
    pub fn new(name: &str, ptx: impl Into<Arc<str>>) -> Result<Self, ProgramError> {
        let text: Arc<str> = ptx.into();
        let fault = |what: &str| ProgramError::Function {
            function: name.escape_debug().to_string(),
            what: what.to_owned(),
        };
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$';
        let first = name.bytes().next().unwrap_or(b'0');
        if !name.bytes().all(is_word) || first.is_ascii_digit() || first == b'$' {
            return Err(fault("PTX has no functions of this name: letters, digits, _ and $"));
        }
        if name.starts_with("ringdove_") {
            return Err(fault("names that begin with ringdove_ are the library's"));
        }
        if text.contains('\0') {
            return Err(fault("its text holds a NUL"));
        }
        Ok(Self { name: name.to_owned(), text })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The module that defines it.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// What a user's task does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Use {
    /// It reads, and does not write.
    Reads,
    /// It writes all elements, and reads none.
    Writes,
    /// It reads and writes.
    Changes,
}

/// An operand of a user's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserOperand {
    /// All of it.
    pub view: View,
    /// What of it a tile has.
    pub cut: Cut,
    /// What is done with it. The verifier believes this.
    pub usage: Use,
}

/// An operator that a user's function computes, tile by tile.
#[derive(Clone, Debug, PartialEq)]
pub struct UserTask {
    /// Who computes a tile.
    pub function: Function,
    /// Rows and columns of all tiles together.
    pub shape: (u32, u32),
    /// The largest tile; `None`: the graph's.
    pub tile: Option<TileSize>,
    /// By number, five at most.
    pub operands: Vec<UserOperand>,
    /// For the function.
    pub inner: u32,
    /// For the function.
    pub option: u32,
    /// For the function.
    pub value: f32,
}

/// What is known of an operator whose tiles call a user's function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserCall {
    /// Number of the function in its program.
    pub function: u32,
    /// Operands that it reads.
    pub reads: Vec<usize>,
    /// Operands that it writes.
    pub writes: Vec<usize>,
}

/// The definition of `ringdove_user_task` (`kernels/cuda/program.cuh`) that calls functions by
/// number. Its own names are of the kind that no user's function may have.
pub(super) fn dispatcher(functions: &[Function]) -> String {
    const LIST: &str = ".param .b64 ringdove_0, .param .b64 ringdove_1, .param .b64 ringdove_2";
    let mut text = String::from(".version 7.0\n.target sm_70\n.address_size 64\n");
    let mut line = |line: std::fmt::Arguments<'_>| {
        writeln!(text, "{line}").expect("a String takes everything");
    };
    for function in functions {
        line(format_args!(".extern .func {} ({LIST});", function.name));
    }
    line(format_args!(
        ".visible .func (.param .b32 ringdove_result) ringdove_user_task \
         (.param .b32 ringdove_number, {LIST})\n{{\n\
         .reg .pred %p;\n.reg .b32 %r<2>;\n.reg .b64 %rd<3>;\n\
         ld.param.u32 %r0, [ringdove_number];\nmov.u32 %r1, 1;"
    ));
    for place in 0..3 {
        line(format_args!("ld.param.u64 %rd{place}, [ringdove_{place}];"));
    }
    for (number, function) in functions.iter().enumerate() {
        line(format_args!("setp.ne.u32 %p, %r0, {number};\n@%p bra ringdove_not_{number};\n{{"));
        for place in 0..3 {
            line(format_args!(".param .b64 ringdove_to_{place};"));
            line(format_args!("st.param.b64 [ringdove_to_{place}], %rd{place};"));
        }
        line(format_args!(
            "call.uni {}, (ringdove_to_0, ringdove_to_1, ringdove_to_2);\n}}\n\
             bra.uni ringdove_done;\nringdove_not_{number}:",
            function.name
        ));
    }
    line(format_args!(
        "mov.u32 %r1, 0;\nringdove_done:\nst.param.b32 [ringdove_result], %r1;\nret;\n}}"
    ));
    text
}
