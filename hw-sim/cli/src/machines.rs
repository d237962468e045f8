//! `hwsim machines`.

use crate::error::Error;
use crate::output::print;
use hwsim_machine::description::Description;
use std::process::ExitCode;

/// Lists the built-in machines, or shows one: its text, or its file.
pub fn show(name: Option<&str>, toml: bool) -> Result<ExitCode, Error> {
    let text = match name {
        Some(name) if toml => Description::find(name)?.source().to_owned(),
        Some(name) => Description::find(name)?.describe(),
        None => list()?,
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn list() -> Result<String, Error> {
    let mut text = String::new();
    for name in Description::built_in_names() {
        let machine = Description::builtin(name)?;
        text += &format!("{name}: {}\n{}\n", machine.summary, machine.matrix());
    }
    text += "`hwsim machines NAME` shows GPUs, PCI tree and rates; `--toml` prints the file, as a \
             start\nfor a machine of your own.\n";
    Ok(text)
}
