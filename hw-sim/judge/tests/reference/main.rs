//! What virtual hardware answers about PTX, beside a reference that was written from the text of
//! the PTX ISA and shares no code with the interpreter: integers of Rust, and LLVM's soft floats.
//!
//! A NaN of f64 is any NaN here, as PTX leaves its bits open; f32 and shorter ones are the
//! canonical NaN, which an H100 gave on 2026-11-26 for every such result.

mod floats;
mod integers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use hwsim_judge::forms::{self, Form};

/// A command beside this crate's own.
fn built(name: &str) -> PathBuf {
    let judge = PathBuf::from(env!("CARGO_BIN_EXE_hwsim-judge"));
    let path = judge.parent().unwrap().join(name);
    assert!(path.is_file(), "{} is missing: `cargo build --release --workspace`", path.display());
    path
}

/// What a virtual GPU answers.
fn answers(only: &str) -> String {
    let mut command = Command::new(built("hwsim"));
    command.args(["run", "--quiet", "--machine", "dgx-h100", "--"]);
    command.arg(built("hwsim-judge")).args(["run", "--only", only]);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// What PTX says of one thread's operands; none where the reference does not know the form, or PTX
/// leaves the result open.
fn expected(form: &Form, operands: &[u64]) -> Option<u64> {
    let instruction = form.name.strip_prefix("ptx.").unwrap();
    let words: Vec<&str> = instruction.split('.').collect();
    integers::expected(&words, operands)
        .or_else(|| floats::expected(&words, form.operands[0], form.result, operands))
}

/// Is it the same result? Any f64 NaN is as good as another one.
fn agree(form: &Form, seen: u64, wanted: u64) -> bool {
    let is_nan = |bits: u64| f64::from_bits(bits).is_nan();
    let open = form.result == forms::Type::F64 && is_nan(seen) && is_nan(wanted);
    seen == wanted || open
}

/// If this fails, an instruction gives a virtual GPU's programs something else than PTX says.
#[test]
fn virtual_gpus_answer_what_ptx_says() {
    let text = answers("ptx");
    let forms: BTreeMap<String, Form> =
        forms::all().into_iter().map(|form| (form.name.clone(), form)).collect();
    let (mut checked, mut lines) = (BTreeMap::<&str, usize>::new(), 0);
    let mut wrong = BTreeMap::<&str, Vec<String>>::new();
    let mut refused = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (question, answer) = line.split_once(" = ").unwrap();
        let mut fields = question.split(' ');
        let name = fields.next().unwrap();
        let form = &forms[name];
        if answer.starts_with("refused") {
            refused.push(line);
            continue;
        }
        lines += 1;
        let hexadecimal = |field: &str| u64::from_str_radix(field, 16).unwrap();
        let operands: Vec<u64> = fields.skip(1).map(hexadecimal).collect();
        let Some(wanted) = expected(form, &operands) else { continue };
        *checked.entry(name).or_default() += 1;
        let seen = hexadecimal(answer);
        if !agree(form, seen, wanted) {
            let places = wrong.entry(name).or_default();
            places.push(format!("{operands:x?} gives {seen:x}, not {wanted:x}"));
        }
    }
    let report: Vec<String> = wrong
        .iter()
        .map(|(name, places)| {
            let first = places[..places.len().min(3)].join("; ");
            format!("{name}: {} wrong of {}: {first}", places.len(), checked[name])
        })
        .collect();
    println!("{} forms, {} with a reference, {lines} answers", forms.len(), checked.len());
    assert!(report.is_empty(), "{} forms are wrong:\n{}", report.len(), report.join("\n"));
    assert!(refused.is_empty(), "refused:\n{}", refused.join("\n"));
    assert!(checked.len() >= 500, "only {} forms have a reference", checked.len());
}
