//! What kernels print, against the C library of the host: the same formats with the same values.

mod common;

use common::{context, is_inside, kernel, launch, run_again};
use std::ffi::{CString, c_char, c_int};
use std::fmt::Write;
use std::ptr::null_mut;

/// Formats that are compared.
const CASES: usize = 240;

/// A value as it is passed.
#[derive(Clone, Debug)]
enum Value {
    Word(u32),
    Long(u64),
    Double(f64),
    Text(CString),
}

/// A conversion with its arguments.
struct Case {
    format: String,
    /// Width and precision, where they are arguments.
    fields: Vec<c_int>,
    value: Value,
}

const TEXTS: [&str; 5] = ["", "a", "hello", "%d", "a longer text than most fields are wide"];
const DOUBLES: [f64; 14] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    123_456.789,
    9.999_999_5,
    1e-5,
    9.5e-5,
    1e21,
    -2.5e-310,
    f64::MAX,
    f64::INFINITY,
    f64::NAN,
];
const WORDS: [u64; 9] = [0, 1, 7, 42, 0x7f, 0x80, 0x8000_0000, u64::MAX, 0x1234_5678_9abc_def0];

impl Case {
    fn random(rng: &mut fastrand::Rng) -> Self {
        let conversion = char::from(*rng.choice(b"ddiiuoxXcsfFeEgGaA").unwrap());
        let is_float = "fFeEgGaA".contains(conversion);
        let is_text = "cs".contains(conversion);
        // Flags that C gives a meaning for this conversion.
        let flags: String = "-+ #0"
            .chars()
            .filter(|flag| match flag {
                '-' => true,
                '0' => !is_text,
                '#' => is_float || "oxX".contains(conversion),
                _ => is_float || "di".contains(conversion),
            })
            .filter(|_| rng.u8(..3) == 0)
            .collect();
        let mut fields = Vec::new();
        let mut field = |rng: &mut fastrand::Rng, most: c_int| match rng.u8(..4) {
            0 => {
                fields.push(rng.i32(-most..=most));
                "*".to_owned()
            }
            _ => rng.i32(1..=most).to_string(),
        };
        let width = if rng.bool() { field(rng, 24) } else { String::new() };
        let precision = match rng.u8(..4) {
            _ if conversion == 'c' => String::new(),
            0 => ".".to_owned(),
            1 => String::new(),
            _ => format!(".{}", field(rng, 17)),
        };
        let lengths: &[&str] = match conversion {
            'c' | 's' => &[""],
            _ if is_float => &["", "l"],
            _ => &["", "", "h", "hh", "l", "ll", "z", "j", "t"],
        };
        let length = *rng.choice(lengths).unwrap();
        let raw = match rng.bool() {
            true => WORDS[rng.usize(..WORDS.len())],
            false => rng.u64(..) >> rng.u32(..64),
        };
        let value = match conversion {
            's' => Value::Text(CString::new(TEXTS[rng.usize(..TEXTS.len())]).unwrap()),
            'c' => Value::Word(rng.u32(33..127)),
            _ if is_float => Value::Double(match rng.bool() {
                true => DOUBLES[rng.usize(..DOUBLES.len())],
                false => (rng.f64() - 0.5) * 10_f64.powi(rng.i32(-9..20)),
            }),
            _ if length.is_empty() || length.starts_with('h') => Value::Word(raw as u32),
            _ => Value::Long(raw),
        };
        let format = format!("%{flags}{width}{precision}{length}{conversion}");
        Self { format, fields, value }
    }

    /// What C prints.
    fn expected(&self) -> String {
        let format = CString::new(self.format.as_str()).unwrap();
        let mut text = [0 as c_char; 1024];
        macro_rules! print {
            ($value:expr) => {
                // SAFETY: the text has room for what is printed, and the arguments are those that
                // the format asks for: `*` takes an int each, and the value has the type of the
                // conversion with its length.
                unsafe {
                    let (to, size, format) = (text.as_mut_ptr(), text.len(), format.as_ptr());
                    match self.fields[..] {
                        [] => libc::snprintf(to, size, format, $value),
                        [one] => libc::snprintf(to, size, format, one, $value),
                        [one, two, ..] => libc::snprintf(to, size, format, one, two, $value),
                    }
                }
            };
        }
        let length = match &self.value {
            Value::Word(value) => print!(*value),
            Value::Long(value) => print!(*value),
            Value::Double(value) => print!(*value),
            Value::Text(value) => print!(value.as_ptr()),
        };
        let length = usize::try_from(length).expect("C knows the format");
        text[..length].iter().map(|&c| c as u8 as char).collect()
    }
}

/// A kernel that prints each case in a line of its own, as compilers have `printf` do it.
fn program(cases: &[Case]) -> String {
    let mut globals = String::new();
    let mut body = String::new();
    let mut global = |name: &str, text: &[u8]| {
        let bytes: Vec<String> = text.iter().map(u8::to_string).collect();
        let (count, bytes) = (bytes.len(), bytes.join(", "));
        writeln!(globals, ".global .align 1 .b8 {name}[{count}] = {{{bytes}}};").unwrap();
    };
    for (number, case) in cases.iter().enumerate() {
        global(&format!("f{number}"), format!("kernel: {number} [{}]\n\0", case.format).as_bytes());
        let mut at = 0;
        for field in &case.fields {
            writeln!(body, "st.local.u32 [%l+{at}], {field};").unwrap();
            at += 4;
        }
        if !matches!(case.value, Value::Word(_)) {
            at = (at + 7) / 8 * 8;
        }
        match &case.value {
            Value::Word(value) => writeln!(body, "st.local.u32 [%l+{at}], {value};").unwrap(),
            Value::Long(value) => {
                writeln!(body, "mov.u64 %v, 0x{value:x};\nst.local.u64 [%l+{at}], %v;").unwrap();
            }
            Value::Double(value) => {
                let bits = value.to_bits();
                writeln!(body, "mov.u64 %v, 0x{bits:x};\nst.local.u64 [%l+{at}], %v;").unwrap();
            }
            Value::Text(text) => {
                global(&format!("t{number}"), text.as_bytes_with_nul());
                writeln!(body, "mov.u64 %v, t{number};\nst.local.u64 [%l+{at}], %v;").unwrap();
            }
        }
        writeln!(
            body,
            "mov.u64 %f, f{number};\n{{\n.param .b64 f, v; .param .b32 s;\n\
             st.param.b64 [f], %f;\nst.param.b64 [v], %g;\ncall (s), vprintf, (f, v);\n}}"
        )
        .unwrap();
    }
    format!(
        ".version 8.4\n.target sm_80\n.address_size 64\n\
         .extern .func (.param .b32 s) vprintf(.param .b64 f, .param .b64 v);\n{globals}\
         .visible .entry prints() {{\n.local .align 8 .b8 slots[32];\n\
         .reg .b64 %l, %g, %v, %f;\nmov.u64 %l, slots;\ncvta.local.u64 %g, %l;\n{body}ret;\n}}\n"
    )
}

/// If this fails, kernels print numbers otherwise than the program's own `printf`. The seed is that
/// of `HWSIM_SEED`, or a random one, and is printed.
#[test]
fn kernels_print_what_c_prints() {
    let name = "kernels_print_what_c_prints";
    let seed: u64 = match std::env::var("HWSIM_SEED") {
        Ok(seed) => seed.parse().expect("HWSIM_SEED is a number"),
        Err(_) => fastrand::u64(..1 << 32),
    };
    if !is_inside(name) {
        let seed = seed.to_string();
        let output = run_again(name, "dgx-a100", &[("HWSIM_SEED", &seed)]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "HWSIM_SEED={seed}: {text}");
        let lines = |who: &str| -> Vec<String> {
            text.lines().filter_map(|line| line.strip_prefix(who)).map(str::to_owned).collect()
        };
        let (printed, wanted) = (lines("kernel: "), lines("host: "));
        assert_eq!((printed.len(), wanted.len()), (CASES, CASES), "HWSIM_SEED={seed}: {text}");
        let formats = lines("format: ");
        for ((printed, wanted), format) in printed.iter().zip(&wanted).zip(&formats) {
            assert_eq!(printed, wanted, "HWSIM_SEED={seed}: {format}");
        }
        return;
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let cases: Vec<Case> = (0..CASES).map(|_| Case::random(&mut rng)).collect();
    context(0);
    println!();
    let function = kernel(&program(&cases), "prints");
    assert_eq!(launch(function, 1, 1, null_mut(), &[]) as u32, 0);
    ok!(cuCtxSynchronize());
    for (number, case) in cases.iter().enumerate() {
        println!("host: {number} [{}]", case.expected());
        println!("format: {} of {:?} and {:?}", case.format, case.fields, case.value);
    }
}
