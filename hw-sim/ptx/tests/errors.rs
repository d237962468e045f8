//! Texts that are not PTX modules: each is refused with its place and its reason, and none, however
//! hostile, takes the process down.

mod common;

use std::fmt::Write as _;

use common::fixtures;
use hwsim_ptx::{PtxError, parse};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const HEADER: &str = ".version 8.0\n.target sm_70\n.address_size 64\n";

/// The error of a module with these lines behind the header, which has three.
fn error(lines: &str) -> PtxError {
    let text = format!("{HEADER}{lines}");
    parse(&text).expect_err(lines)
}

/// The error of a kernel whose body is this one line, line 5.
fn body_error(line: &str) -> PtxError {
    error(&format!(".entry k() {{ .reg .b32 %r<4>;\n{line}\n}}\n"))
}

#[test]
fn bad_modules_are_named_with_their_place() {
    let cases = [
        (".texref images;", 4, 1, "a directive that we know", "`.texref`"),
        (".alias a, b;", 4, 1, "a directive that we know", "`.alias`"),
        (".visible .alias a, b;", 4, 10, "a function or a variable", "`.alias`"),
        (".global .b31 x;", 4, 9, "a type", "`.b31`"),
        (".global x;", 4, 9, "a type", "`x`"),
        (".global .align 3 .b32 x;", 4, 16, "a power of two", "3"),
        (".global .b32 x[-1];", 4, 16, "a number of elements", "-1"),
        (".global .b32 x = {1, 2;", 4, 23, "`,` or `}`", "`;`"),
        (".global .b8 x[8] = {0xFF(y)};", 4, 25, "a whole address", "`(`"),
        (".global .b32 x", 4, 15, "`,` or `;`", "the end of the text"),
        (".reg .b32 x;", 4, 1, "a directive that we know", "`.reg`"),
        (".local .b32 x;", 4, 1, "a directive that we know", "`.local`"),
        (".shared .b32 x = 1;", 4, 16, "no initial value", "`=`"),
        (".global .b32 x[];", 4, 14, "a size", "`x`"),
        (".entry 5() {}", 4, 8, "the function's name", "`5`"),
        (".entry k() .wibble {}", 4, 12, "a performance directive", "`.wibble`"),
        (".entry k() .maxntid 1, 2, 3, 4 {}", 4, 21, "one to three extents", "4"),
        (".entry k() .maxnreg -1 {}", 4, 21, "a count from 0", "-1"),
        (".entry k(.param .b32) {}", 4, 21, "a name", "`)`"),
        (".entry k()\n{ ret;\n", 5, 1, "a body that is closed", "the end of the text"),
        (".entry k()\nret;", 5, 1, "`{` or `;`", "`ret`"),
        (".section .debug { .b8 1", 4, 17, "a closing brace", "the end of the text"),
        (".entry k() {}\n.func k() {}", 5, 7, "one definition", "`k` again"),
        (".global .b32 x;\n.const .f32 x = 1.0;", 5, 13, "one definition", "`x` again"),
        (".file 1 name", 4, 9, "the file's name", "`name`"),
        (".loc 1 2", 4, 9, "a column", "the end of the text"),
        (".loc 1 2 3, somewhere 1", 4, 13, "`inlined_at`", "`somewhere`"),
        ("\u{1}", 4, 1, "PTX", "the character '\\u{1}'"),
    ];
    for (lines, line, column, expected, found) in cases {
        let error = error(lines);
        assert_eq!((error.line, error.column), (line, column), "{lines}: {error}");
        assert!(error.expected.contains(expected), "{lines}: {error}");
        assert_eq!(error.found, found, "{lines}: {error}");
    }
}

#[test]
fn bad_bodies_are_named_with_their_place() {
    let cases = [
        ("add.s32 %r1, %r2, ;", 19, "an operand", "`;`"),
        ("add.s32 %r1 %r2;", 13, "`,` or `;`", "`%r2`"),
        ("add.s32 %r1, %r2, 0x;", 19, "a number", "`0x`"),
        ("add.s32 %r1, %r2, 1 / 0;", 21, "operands of one kind", "Integer(1) / Integer(0)"),
        ("ld.global.u32 %r1, [%r2+%r3];", 25, "a constant", "`%r3`"),
        ("ld.global.u32 %r1, [%r2+1.0];", 24, "an offset", "a float"),
        ("ld.global.u32 %r1, [%r2+0x8000000000000000];", 24, "an offset", "9223372036854775808"),
        ("ld.global.u32 %r1, [%r2, {%r3}];", 24, "an address is one name", "`,`"),
        ("mov.u32 %r1, table[2];", 19, "array elements", "`[`"),
        ("mov.b64 {%r1, {%r2}}, 0;", 15, "an operand", "`{`"),
        ("add.s32 %r1, (%r2), 3;", 15, "a constant", "`%r2`"),
        (".wibble;", 1, "an instruction or a directive that we know", "`.wibble`"),
        ("@5 ret;", 2, "a predicate register", "`5`"),
        ("5: ret;", 1, "an instruction", "`5`"),
        (".reg .b32 %r<4>;", 11, "a name that this scope does not have yet", "`%r` again"),
        (".reg .b32 x, x;", 14, "a name that this scope does not have yet", "`x` again"),
        (".reg .b32 %r3;", 11, "a name that this scope does not have yet", "`%r3` again"),
        (".reg .b32 x<1.5>;", 13, "at most 1048576 registers", "`1.5`"),
        (".reg .b32 x<9999999999>;", 13, "at most 1048576 registers", "`9999999999`"),
        ("L: ret; L: ret;", 9, "labels that differ", "`L` again"),
        (".pragma nounroll;", 9, "a string", "`nounroll`"),
        ("p: .callprototype (.param .b32 _) _ 5 +;", 39, "`;`", "`+`"),
    ];
    for (line, column, expected, found) in cases {
        let error = body_error(line);
        assert_eq!((error.line, error.column), (5, column), "{line}: {error}");
        assert!(error.expected.contains(expected), "{line}: {error}");
        assert_eq!(error.found, found, "{line}: {error}");
    }
}

#[test]
fn headers_must_come_first() {
    for (text, expected) in [
        ("", "`.version`"),
        (".target sm_70", "`.version`"),
        (".version eight", "a version, as `8.4`"),
        (".version 8.0 .address_size 64", "`.target`"),
        (".version 8.0 .target 70", "a target, as `sm_70`"),
    ] {
        assert_eq!(parse(text).expect_err(text).expected, expected);
    }
}

/// Declarations may repeat, and sections may have names in parts.
#[test]
fn harmless_repetitions_are_accepted() {
    let text = ".extern .func f;\n.func f;\n.func f { ret; }\n.func f;\n\
                .extern .global .b32 x;\n.global .b32 x;\n.section .nv.notes { .b8 1 }";
    assert_eq!(parse(&format!("{HEADER}{text}")).err(), None);
}

/// What a user reads: place, reason and the line itself.
#[test]
fn messages_show_the_line() {
    let message = body_error("\tadd.s32 %r1, %r2, ;\r").to_string();
    let expected = "PTX line 5, column 20: expected an operand, found `;`\n  | add.s32 %r1, %r2, ;";
    assert_eq!(message, expected);
    let long = body_error(&format!("mov.b32 %r1, {}", "x".repeat(10_000)));
    assert!(long.to_string().len() < 400, "{long}");
}

/// Two megabytes of whatever makes naive parsers recurse or go quadratic. The test would not end.
#[test]
fn hostile_texts_end() {
    const N: usize = 300_000;
    let kernel = |body: &str| format!("{HEADER}.entry k() {{\n{body}");
    let mut labels = String::new();
    let mut scopes = String::new();
    for index in 0..N / 4 {
        writeln!(labels, "L{index}: bra L{};", N / 4 - 1 - index).unwrap();
        writeln!(scopes, "{{ .reg .b32 t<3>; mov.b32 t1, t2; }}").unwrap();
    }
    let accepted = [
        kernel(&format!("{labels}}}")),
        kernel(&format!("{scopes}}}")),
        kernel(&format!("{}}}", ";".repeat(N))),
        format!("{HEADER}.global .b32 x[] = {{{}0}};", "0, ".repeat(N)),
        format!("{HEADER}.section .s {{{}{}}}", "{".repeat(N), "}".repeat(N)),
        format!("{HEADER}{}", "/**/ // */\n".repeat(N)),
    ];
    for text in accepted {
        let start: String = text[HEADER.len()..].chars().take(60).collect();
        assert_eq!(parse(&text).err(), None, "{start}");
    }
    let refused = [
        kernel(&"{".repeat(N)),
        kernel(&format!("mov.b32 x, {}", "(".repeat(N))),
        kernel(&format!("mov.b32 x, {}", "-".repeat(N))),
        kernel(&format!("mov.b32 {}", "{x,".repeat(N))),
        kernel(&format!("call {}", "(".repeat(N))),
        kernel(&format!("mov.b32 x, {}", "1?1:".repeat(N))),
        kernel(&format!("mov.b32 x, {}", "1||".repeat(N))),
        kernel(&"a|".repeat(N)),
        kernel(&"@".repeat(N)),
        kernel(&"x:".repeat(N)),
        format!("{HEADER}.global .b32 x = {}", "{".repeat(N)),
        format!("{HEADER}.global .b32 x{}", "[1]".repeat(N)),
        format!("{HEADER}.global .attribute{} .b32 x;", "(".repeat(N)),
        format!("{HEADER}{}", "/*".repeat(N)),
        format!("{HEADER}{}", ".visible ".repeat(N)),
        format!("{HEADER}{}", "\"".repeat(N)),
        format!("{HEADER}{}", ".section .s {".repeat(N)),
        format!("{HEADER}.entry k {}", ".noreturn ".repeat(N)),
    ];
    for text in refused {
        let start: String = text[HEADER.len()..].chars().take(60).collect();
        assert!(parse(&text).is_err(), "{start} was accepted");
    }
}

/// A name is looked up in each scope around it, so their number has a limit.
#[test]
fn scopes_nest_to_a_limit() {
    let nested = |depth: usize| {
        let (open, close) = ("{".repeat(depth), "}".repeat(depth));
        parse(&format!("{HEADER}.entry k() {open} ret; {close}"))
    };
    assert_eq!(nested(64).err(), None);
    assert_eq!(nested(65).expect_err("65 scopes").expected, "at most 64 nested scopes");
}

/// An exact shape is the stronger promise, whichever comes first.
#[test]
fn reqntid_wins_over_maxntid() {
    for limits in [".reqntid 32 .maxntid 64", ".maxntid 64 .reqntid 32"] {
        let module = parse(&format!("{HEADER}.entry k() {limits} {{}}")).unwrap();
        let kernel = &module.functions[0];
        assert_eq!((kernel.max_block, kernel.block_is_exact), (Some([32, 1, 1]), true), "{limits}");
    }
}

/// Cut anywhere, a module is an error or a shorter module.
#[test]
fn truncated_fixtures_never_panic() {
    for (_, text) in fixtures() {
        for end in (0..text.len()).step_by(97).filter(|end| text.is_char_boundary(*end)) {
            let _ = parse(&text[..end]);
        }
    }
}

/// Pieces of the language, so that random texts get past the lexer.
const PIECES: &[&str] = &[
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ",",
    ";",
    ":",
    "@",
    "!",
    "+",
    "-",
    "|",
    "<",
    ">",
    "=",
    "?",
    "_",
    "%r1",
    "%tid",
    ".x",
    "x",
    "L1",
    "call",
    "ld",
    ".global",
    ".u32",
    ".b8",
    ".v4",
    ".reg",
    ".param",
    ".shared",
    ".align",
    ".entry",
    ".func",
    ".visible",
    ".extern",
    ".pragma",
    "\"s\"",
    ".loc",
    ".file",
    ".section",
    ".callprototype",
    ".branchtargets",
    ".maxntid",
    ".ptr",
    ".attribute",
    "1",
    "0x10",
    "0f3F800000",
    "1.5",
    "<4>",
    "WARP_SZ",
    "generic",
    "\n",
    "//",
    "/*",
    "*/",
    "~",
    "<<",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = parse(&text);
        let _ = parse(&format!("{HEADER}.entry k() {{ {text}"));
    }

    #[test]
    fn arbitrary_pieces_never_panic(pieces in vec(select(PIECES), 0..60)) {
        let text = pieces.join(" ");
        let _ = parse(&format!("{HEADER}{text}"));
        let _ = parse(&format!("{HEADER}.entry k() {{ {text}"));
    }

    /// Some bytes of a real module deleted, replaced or said twice: whatever comes out, an error's
    /// place lies inside the text.
    #[test]
    fn mutated_fixtures_never_panic(
        which in any::<Index>(),
        edits in vec((any::<Index>(), 0_usize..20, select(PIECES), any::<bool>()), 1..6),
    ) {
        let fixtures = fixtures();
        let mut text = which.get(&fixtures).1.clone();
        for (place, length, piece, repeat) in edits {
            let start = place.index(text.len());
            let end = (start + length).min(text.len());
            if text.is_char_boundary(start) && text.is_char_boundary(end) {
                let put = if repeat { text[start..end].repeat(2) } else { piece.to_owned() };
                text.replace_range(start..end, &put);
            }
        }
        if let Err(error) = parse(&text) {
            prop_assert!(error.line as usize <= text.lines().count() + 1, "{error}");
            prop_assert!(!error.expected.is_empty() && !error.found.is_empty());
        }
    }
}
