//! Which definition stays when modules are joined.

use hwsim_ptx::{Input, LinkError, Module};

const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

fn join(texts: &[&str]) -> Result<Module, LinkError> {
    let texts: Vec<_> = texts.iter().map(|text| format!("{HEAD}{text}\n")).collect();
    let names = ["a", "b", "c"];
    let inputs: Vec<_> = texts.iter().zip(names).map(|(text, name)| Input { name, text }).collect();
    Module::load_joined(&inputs)
}

/// Names, initial bytes and sizes of a module's variables.
fn variables(module: &Module) -> Vec<(&str, &[u8], u64)> {
    module.globals().iter().map(|g| (g.name.as_str(), g.image.as_slice(), g.size_bytes)).collect()
}

#[test]
fn a_visible_variable_wins_over_a_weak_and_a_common_one() {
    let weak = ".weak .global .b32 x = 1;";
    let visible = ".visible .global .b32 x = 2;";
    let common = ".common .global .b32 x[8];";
    let declared = ".extern .global .b32 x;";
    let orders = [
        [weak, visible, common],
        [common, weak, visible],
        [visible, declared, weak],
        [declared, common, visible],
    ];
    for order in orders {
        let module = join(&order).unwrap();
        assert_eq!(variables(&module), [("x", [2, 0, 0, 0].as_slice(), 4)], "{order:?}");
    }
    let module = join(&[weak, &weak.replace('1', "3"), common]).unwrap();
    assert_eq!(variables(&module), [("x", [1, 0, 0, 0].as_slice(), 4)], "the first weak one");
    let module = join(&[common, ".common .global .b32 x[20];"]).unwrap();
    assert_eq!(variables(&module), [("x", [].as_slice(), 80)], "the largest common one");
}

#[test]
fn names_without_linkage_stay_apart() {
    let own = ".global .b32 x = 1; .global .u64 p = x;";
    let inner =
        ".visible .entry k() { .global .b32 x = 9; .reg .b32 %r<2>; ld.global.b32 %r1, [x]; }";
    let module = join(&[own, own, inner]).unwrap();
    let mut names: Vec<_> = variables(&module).into_iter().map(|(name, ..)| name).collect();
    names.sort_unstable();
    assert_eq!(names, ["p", "p#in1", "x", "x#in1", "x#in2"]);
    let pointer = module.globals().iter().find(|global| global.name == "p#in1").unwrap();
    assert_eq!(pointer.relocations[0].symbol, "x#in1");
    // A name that all share goes first, wherever it stands.
    let module = join(&[own, ".visible .global .b32 x = 5;"]).unwrap();
    let shared = module.globals().iter().find(|global| global.name == "x").unwrap();
    assert_eq!(shared.image, [5, 0, 0, 0]);
}

/// A register or a label with the name of a renamed variable is not that variable.
#[test]
fn local_names_hide_those_of_the_module() {
    let first = ".global .b32 x = 1;";
    let second = ".global .b32 x = 2; .visible .entry k() { .reg .b32 x; .reg .b32 %r<3>;
        mov.b32 x, 7; add.s32 %r1, x, x; bra y; y: ret; }
        .global .b32 y = 4; .visible .entry l() { .reg .b32 %r<2>; ld.global.b32 %r1, [y]; ret; }";
    let module = join(&[first, second, ".global .b32 y;"]).unwrap();
    assert_eq!(module.kernels().count(), 2);
}

#[test]
fn kernels_and_functions_are_defined_once() {
    let kernel = ".entry k() { ret; }";
    let duplicate = |symbol: &str| LinkError::Duplicate {
        symbol: symbol.into(),
        first: "a".into(),
        second: "b".into(),
    };
    assert_eq!(join(&[kernel, kernel]).unwrap_err(), duplicate("k"), "with no linkage, too");
    let function = ".visible .func f() { ret; }";
    assert_eq!(join(&[function, function]).unwrap_err(), duplicate("f"));
    assert_eq!(join(&[function, ".visible .global .b32 f;"]).unwrap_err(), duplicate("f"));
    let weak = ".weak .func f() { ret; } .visible .entry k() { call f; ret; }";
    assert_eq!(join(&[weak, function, ".weak .func f() { trap; }"]).unwrap().kernels().count(), 1);
}

#[test]
fn only_what_is_used_has_to_be_there() {
    let unused = ".extern .func f(); .extern .global .b32 x; .visible .entry k() { ret; }";
    assert!(join(&[unused]).unwrap().globals().is_empty());
    let used = ".extern .func f(); .visible .entry k() { call f; ret; }";
    let missing = LinkError::Undefined { symbol: "f".into(), input: "b".into() };
    assert_eq!(join(&[unused.replace(" k()", " j()").as_str(), used]).unwrap_err(), missing);
    let pointer = ".extern .global .b32 x; .global .u64 p = x;";
    assert!(matches!(join(&[pointer]), Err(LinkError::Undefined { symbol, .. }) if symbol == "x"));
    // The device runtime is always there; dynamic shared memory comes with a launch.
    let runtime = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
        .extern .shared .align 16 .b8 dynamic[];
        .visible .entry NAME() { .param .b64 a; .param .b32 r; .reg .b32 %r<2>;
        ld.shared.b32 %r1, [dynamic]; call (r), vprintf, (a, a); ret; }";
    let texts = [runtime.replace("NAME", "k"), runtime.replace("NAME", "l")];
    assert_eq!(join(&[&texts[0], &texts[1]]).unwrap().kernels().count(), 2);
    assert_eq!(join(&[]).unwrap_err(), LinkError::Empty);
}

#[test]
fn errors_have_the_line_of_their_input() {
    let good = ".visible .entry k() {\n ret;\n}";
    let bad = ".visible .entry l() {\n ret;\n frobnicate;\n}";
    let Err(LinkError::Ptx { input, error }) = join(&[good, bad]) else { panic!() };
    assert_eq!((input.as_str(), error.line, error.text.as_str()), ("b", 6, "frobnicate;"));
    assert!(join(&[&bad.replace("frobnicate", "ret")[..30], good]).is_err(), "it does not parse");
}
