//! What commands print.

use crate::error::Error;
use std::io::{self, Write};

/// To standard output. A reader that has seen enough (`| head`) is no error.
pub fn print(text: &str) -> Result<(), Error> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::system("writing to standard output")(error))
        }
        _ => Ok(()),
    }
}
