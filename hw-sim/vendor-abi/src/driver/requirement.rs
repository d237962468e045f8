//! PTX that is too new for the driver or for the GPU, as a real driver refuses it. Where no version
//! of the driver was chosen, every version of PTX is taken: the compilers that packages bring are
//! often newer than the driver that their programs ask for.

use super::code::{NO_BINARY_FOR_GPU, Outcome, UNSUPPORTED_PTX_VERSION, refuse};
use super::refusal;
use crate::version;
use hwsim_machine::description::GpuModel;

/// What follows a directive at the beginning of a line, in each place where it stands.
fn directives<'t>(text: &'t str, name: &'t str) -> impl Iterator<Item = &'t str> {
    // By name first: most of a text is other lines.
    text.match_indices(name).filter_map(move |(at, _)| {
        let mut before = text[..at].bytes().rev().take_while(|&byte| byte != b'\n');
        // The end of the line is looked for once in a line, however often the name stands there.
        let is_first = before.all(|byte| byte.is_ascii_whitespace());
        let value = is_first.then(|| text[at + name.len()..].lines().next()).flatten()?;
        value.starts_with([' ', '\t']).then(|| value.trim())
    })
}

/// Refuses PTX of a newer version than the driver compiles.
pub(super) fn check_version(text: &str) -> Outcome {
    let Some(chosen) = version::chosen() else { return Ok(()) };
    for version in directives(text, ".version") {
        // What is no version is the parser's business.
        let Some((major, minor)) = version.split_once('.') else { continue };
        let minor: String = minor.chars().take_while(char::is_ascii_digit).collect();
        let (Ok(major), Ok(minor)) = (major.parse::<u32>(), minor.parse::<u32>()) else { continue };
        if (major, minor) > chosen.ptx {
            let (most_major, most_minor) = chosen.ptx;
            let words = format!(
                "PTX {major}.{minor}: the driver of CUDA {} compiles up to \
                 {most_major}.{most_minor}; show a newer driver (`hwsim run --driver`), or have \
                 the compiler write an older version",
                chosen.name
            );
            refusal::say(&words);
            return refuse(UNSUPPORTED_PTX_VERSION, words);
        }
    }
    Ok(())
}

/// Refuses PTX for newer GPUs.
pub(super) fn check_target(text: &str, model: &GpuModel) -> Outcome {
    let (major, minor) = model.compute_capability;
    let device = major * 10 + minor;
    for target in directives(text, ".target") {
        let name = target.split([',', ' ', '\t', '/']).next().unwrap_or("");
        let Some(rest) = name.strip_prefix("sm_") else { continue };
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let Ok(number) = digits.parse::<u32>() else { continue };
        let runs = match &rest[digits.len()..] {
            "a" => number == device,
            "f" => number <= device && number / 10 == major,
            _ => number <= device,
        };
        if !runs {
            let words = format!(
                "PTX for {name} on a GPU of compute capability {major}.{minor}; choose a machine \
                 with other GPUs (`hwsim run --machine`), or build for compute_{device}"
            );
            refusal::say(&words);
            return refuse(NO_BINARY_FOR_GPU, words);
        }
    }
    Ok(())
}
