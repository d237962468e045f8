//! `ptxas` for what `hwsim run` starts. Compilers that assemble PTX themselves (Triton) hand the
//! result to the driver; a virtual GPU runs PTX, so the result is the PTX, once it is known to run.
//!
//! The command is a link to `hwsim`, which looks at the name that it was called by.

use hwsim_ptx::Module;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The name that the link has.
pub const NAME: &str = "ptxas";
/// What Triton reads: the path of its assembler, of the one for newer architectures, and the folder
/// that has `libcuda.so.1`.
pub const TRITON_COMMANDS: [&str; 2] = ["TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"];
pub const TRITON_LIBRARIES: &str = "TRITON_LIBCUDA_PATH";
/// The toolkit that it says it belongs to, that of the virtual driver. Compilers choose the version
/// of their PTX by it.
const RELEASE: &str = "12.4";
/// Options whose value is the next argument. Those that are not listed have none, or have it behind
/// `=` or in the same word.
const WITH_VALUE: [&str; 14] = [
    "--def-load-cache",
    "-dlcm",
    "--def-store-cache",
    "-dscm",
    "--entry",
    "-e",
    "--machine",
    "-m",
    "--maxrregcount",
    "-maxrregcount",
    "--opt-level",
    "-O",
    "--split-compile",
    "-split-compile",
];

/// Does the work of `ptxas`, if this program was called by that name.
pub fn answer() -> Option<ExitCode> {
    let mut arguments = env::args_os();
    let called = arguments.next()?;
    if Path::new(&called).file_name() != Some(OsStr::new(NAME)) {
        return None;
    }
    let arguments: Vec<String> =
        arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    let outcome = Request::parse(&arguments).and_then(|request| request.answer());
    Some(outcome.map_or_else(
        |words| {
            eprintln!("ptxas (hwsim): {words}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Version,
    Assemble { input: PathBuf, output: PathBuf, architecture: Option<u32> },
}

impl Request {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let (mut input, mut output, mut architecture) = (None, None, None);
        let mut rest = arguments.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            let (option, joined) = match argument.split_once('=') {
                Some((option, value)) if option.starts_with('-') => (option, Some(value)),
                _ => (argument, None),
            };
            let mut value = || {
                joined.or_else(|| rest.next()).ok_or(format!("expected a value behind {option}"))
            };
            match option {
                "--version" | "-V" => return Ok(Self::Version),
                "--output-file" | "-o" => output = Some(value()?.into()),
                "--gpu-name" | "-arch" => architecture = Some(number(value()?)?),
                "--options-file" | "-optf" | "--input-as-string" | "-ias" => {
                    return Err(format!("{option} is not supported: expected the name of a file"));
                }
                _ if WITH_VALUE.contains(&option) => {
                    value()?;
                }
                // The others say how machine code is to look.
                _ if option.starts_with('-') => {}
                _ if input.is_none() => input = Some(argument.into()),
                _ => return Err(format!("expected one file, found another: {argument}")),
            }
        }
        let input = input.ok_or("expected the name of a file with PTX text")?;
        let output = output.ok_or("expected `-o` and the name of the file to write")?;
        Ok(Self::Assemble { input, output, architecture })
    }

    fn answer(&self) -> Result<(), String> {
        let Self::Assemble { input, output, architecture } = self else {
            println!(
                "ptxas: hwsim's stand-in for the PTX assembler: it checks PTX and passes it on\n\
                 Cuda compilation tools, release {RELEASE}, V{RELEASE}.0\n\
                 hwsim {}",
                env!("CARGO_PKG_VERSION")
            );
            return Ok(());
        };
        let mut text = fs::read(input).map_err(|error| format!("{}: {error}", input.display()))?;
        text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(text.len()));
        let module = Module::load(&String::from_utf8_lossy(&text)).map_err(|error| {
            let (line, expected, found) = (error.line, error.expected, error.found);
            let input = input.display();
            format!("{input}, line {line}: a virtual GPU expects {expected}, found {found}")
        })?;
        if let Some(most) = *architecture
            && module.architecture() > most
        {
            let found = module.architecture();
            return Err(format!("expected a `.target` of at most sm_{most}, found sm_{found}"));
        }
        // The driver takes a text in memory up to its NUL; who reads the file need not add one.
        text.push(0);
        fs::write(output, text).map_err(|error| format!("{}: {error}", output.display()))
    }
}

/// `sm_80`, `sm_90a`, `compute_80`: the architecture's number.
fn number(name: &str) -> Result<u32, String> {
    let digits = name.trim_start_matches("sm_").trim_start_matches("compute_");
    let digits = digits.trim_end_matches(|c: char| c.is_ascii_lowercase());
    digits.parse().map_err(|_| format!("expected an architecture as sm_80, found {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Request::parse(&arguments)
    }

    /// If this fails, a value is taken for the file, or the file for a value.
    #[test]
    fn the_lines_that_compilers_write_are_understood() {
        let lines = [
            "-lineinfo -v --regAllocOptLevel=2 --gpu-name=sm_80 in -o out",
            "-g --fmad=false -v --opt-level 0 --gpu-name sm_80 in --output-file out",
            "-O3 -arch sm_80 -maxrregcount 64 -o out in",
        ];
        for line in lines {
            let expected = Request::Assemble {
                input: "in".into(),
                output: "out".into(),
                architecture: Some(80),
            };
            assert_eq!(parsed(line), Ok(expected), "{line}");
        }
        assert_eq!(parsed("--version"), Ok(Request::Version));
        assert_eq!(number("sm_100a"), Ok(100));
    }

    #[test]
    fn lines_that_say_too_little_are_refused() {
        let cases = [
            ("in", "`-o`"),
            ("-o out", "a file with PTX"),
            ("in -o", "a value"),
            ("in other -o out", "another: other"),
            ("-arch best in -o out", "an architecture"),
            ("-optf options -o out", "not supported"),
        ];
        for (line, words) in cases {
            let refused = parsed(line).expect_err(line);
            assert!(refused.contains(words), "{line}: {refused}");
        }
    }
}
