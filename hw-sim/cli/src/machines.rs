//! `hwsim machines`.

use crate::error::Error;
use hwsim_machine::description::Description;
use std::io::{self, Write};
use std::process::ExitCode;

/// Lists the built-in machines, or shows one: its text, or its file.
pub fn show(name: Option<&str>, toml: bool) -> Result<ExitCode, Error> {
    let text = match name {
        Some(name) if toml => Description::find(name)?.source().to_owned(),
        Some(name) => Description::find(name)?.describe(),
        None => list()?,
    };
    // A reader that has seen enough (`| head`) is no error.
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::system("writing to standard output")(error))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
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
