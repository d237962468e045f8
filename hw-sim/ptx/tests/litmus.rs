//! The weak memory against PTX's memory model: classical litmus tests at each scope and strength,
//! all of their executions. Each row says whether the outcome in question may come; what the model
//! allows must come, and what it forbids must not.
//!
//! Some outcomes of load buffering are the exception: PTX allows them, and the memory does not make
//! them (see `hwsim_ptx::weak`). A test of its own names them.

use hwsim_ptx::litmus::{Test, parse};
use std::fmt::Write;

/// More than any of these has.
const RUNS_MAX: u64 = 2_000_000;

/// Two threads of one block, of one GPU, and of two GPUs; with the narrowest scope that holds both.
const PLACES: [(&str, [(u32, u32); 4]); 3] = [
    ("cta", [(0, 0), (0, 0), (0, 0), (0, 0)]),
    ("gpu", [(0, 0), (1, 0), (2, 0), (3, 0)]),
    ("sys", [(0, 0), (0, 1), (0, 2), (0, 3)]),
];
const SCOPES: [&str; 3] = ["cta", "gpu", "sys"];

/// A test of these columns, `;` between instructions.
fn test(name: &str, places: &[(u32, u32)], columns: &[&str], condition: &str) -> Test {
    let columns: Vec<Vec<&str>> =
        columns.iter().map(|column| column.split(';').map(str::trim).collect()).collect();
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
    let mut text = format!("PTX {name}\n{{ x=0; y=0; z=0; }}\n");
    let heads = (0..columns.len())
        .map(|thread| format!("P{thread}@cta {},gpu {}", places[thread].0, places[thread].1));
    writeln!(text, "{} ;", heads.collect::<Vec<_>>().join(" | ")).unwrap();
    for row in 0..rows {
        let cells = columns.iter().map(|column| column.get(row).copied().unwrap_or(""));
        writeln!(text, "{} ;", cells.collect::<Vec<_>>().join(" | ")).unwrap();
    }
    writeln!(text, "exists ({condition})").unwrap();
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Whether the outcome comes.
fn comes(test: &Test) -> bool {
    let report = test.enumerate(RUNS_MAX);
    assert!(report.is_complete, "{}: more than {RUNS_MAX} runs", test.name);
    assert!(report.runs > 0, "{}: no run ended", test.name);
    report.verdict(test).unwrap()
}

fn check(name: &str, places: &[(u32, u32)], columns: &[&str], condition: &str, allowed: bool) {
    let test = test(name, places, columns, condition);
    assert_eq!(comes(&test), allowed, "{name}: {columns:?}, {condition}");
}

/// Calls `f` with threads that lie apart in each way, and with each scope: is it wide enough?
fn at_each_scope(mut f: impl FnMut(&[(u32, u32)], &str, bool)) {
    for (needed, places) in &PLACES {
        let width = |scope: &str| SCOPES.iter().position(|it| *it == scope);
        for scope in SCOPES {
            f(places, scope, width(scope) >= width(needed));
        }
    }
}

/// If this fails, data is not visible behind its flag, or a flag without order hides the bug.
#[test]
fn message_passing() {
    let condition = r"1:r0 == 1 /\ 1:r1 == 0";
    at_each_scope(|places, scope, wide| {
        let s = scope;
        let writers = [
            ("st.weak x, 1; st.weak y, 1".to_owned(), false),
            (format!("st.weak x, 1; st.relaxed.{s} y, 1"), false),
            (format!("st.weak x, 1; st.release.{s} y, 1"), true),
            (format!("st.weak x, 1; fence.acq_rel.{s}; st.relaxed.{s} y, 1"), true),
            (format!("st.weak x, 1; fence.sc.{s}; st.relaxed.{s} y, 1"), true),
            (format!("st.weak x, 1; fence.acq_rel.{s}; st.weak y, 1"), false),
            (format!("st.weak x, 1; st.release.{s} y, 7; st.relaxed.{s} y, 1"), true),
            (format!("st.weak x, 1; atom.release.{s}.add r9, y, 1"), true),
            (format!("st.weak x, 1; atom.relaxed.{s}.add r9, y, 1"), false),
        ];
        let readers = [
            ("ld.weak r0, y; ld.weak r1, x".to_owned(), false),
            (format!("ld.relaxed.{s} r0, y; ld.weak r1, x"), false),
            (format!("ld.acquire.{s} r0, y; ld.weak r1, x"), true),
            (format!("ld.relaxed.{s} r0, y; fence.acq_rel.{s}; ld.weak r1, x"), true),
            (format!("ld.weak r0, y; fence.acq_rel.{s}; ld.weak r1, x"), false),
            (format!("atom.acquire.{s}.add r0, y, 0; ld.weak r1, x"), true),
            (format!("ld.relaxed.{s} r0, y; ld.acquire.{s} r8, y; ld.weak r1, x"), true),
        ];
        for (writer, releases) in &writers {
            for (reader, acquires) in &readers {
                let ordered = wide && *releases && *acquires;
                check("MP", places, &[writer, reader], condition, !ordered);
            }
        }
    });
}

/// If this fails, `fence.sc` does not order a store before a later load, or a weaker one does.
#[test]
fn store_buffering() {
    let condition = r"0:r0 == 0 /\ 1:r0 == 0";
    at_each_scope(|places, s, wide| {
        for (fence, orders) in [
            (String::new(), false),
            (format!("fence.acq_rel.{s};"), false),
            (format!("fence.sc.{s};"), true),
        ] {
            let columns = [
                format!("st.relaxed.{s} x, 1; {fence} ld.relaxed.{s} r0, y"),
                format!("st.relaxed.{s} y, 1; {fence} ld.relaxed.{s} r0, x"),
            ];
            let columns = columns.each_ref().map(String::as_str);
            check("SB", places, &columns, condition, !(orders && wide));
        }
        let atomics = [
            format!("atom.acq_rel.{s}.exch r9, x, 1; ld.acquire.{s} r0, y"),
            format!("atom.acq_rel.{s}.exch r9, y, 1; ld.acquire.{s} r0, x"),
        ];
        check("SB", places, &atomics.each_ref().map(String::as_str), condition, true);
    });
    let half = ["st.weak x, 1; fence.sc.gpu; ld.weak r0, y", "st.weak y, 1; ld.weak r0, x"];
    check("SB", &PLACES[1].1, &half, condition, true);
}

/// If this fails, a barrier of the block does not order memory, or one of another block does.
#[test]
fn barriers() {
    let condition = r"0:r0 == 0 /\ 1:r0 == 0";
    let columns = [
        "st.weak x, 1; bar.cta.sync 0; ld.weak r0, y",
        "st.weak y, 1; bar.cta.sync 0; ld.weak r0, x",
    ];
    check("SB", &PLACES[0].1, &columns, condition, false);
    check("SB", &PLACES[1].1, &columns, condition, true);
    let passing = ["st.weak x, 1; bar.cta.sync 0", "bar.cta.sync 0; ld.weak r0, x"];
    check("MP", &PLACES[0].1, &passing, "1:r0 == 0", false);
    // What one thread acquires, the barrier gives to the others of its block.
    let places = [(0, 0), (0, 1), (0, 1)];
    let columns = [
        "st.weak x, 1; st.release.sys y, 1",
        "ld.acquire.sys r0, y; bar.cta.sync 0",
        "bar.cta.sync 0; ld.weak r1, x",
    ];
    check("MP", &places, &columns, r"1:r0 == 1 /\ 2:r1 == 0", false);
    let relaxed = [columns[0], "ld.relaxed.sys r0, y; bar.cta.sync 0", columns[2]];
    check("MP", &places, &relaxed, r"1:r0 == 1 /\ 2:r1 == 0", true);
    // And the other way round: the block's stores, a barrier, one thread's fence.
    let places = [(0, 0), (0, 0), (0, 1)];
    let columns = [
        "st.weak x, 1; bar.cta.sync 0",
        "bar.cta.sync 0; fence.acq_rel.sys; st.relaxed.sys y, 1",
        "ld.acquire.sys r0, y; ld.weak r1, x",
    ];
    check("MP", &places, &columns, r"2:r0 == 1 /\ 2:r1 == 0", false);
    let unfenced = [columns[0], "bar.cta.sync 0; st.relaxed.sys y, 1", columns[2]];
    check("MP", &places, &unfenced, r"2:r0 == 1 /\ 2:r1 == 0", true);
    let narrow = [columns[0], "bar.cta.sync 0; fence.acq_rel.gpu; st.relaxed.sys y, 1", columns[2]];
    check("MP", &places, &narrow, r"2:r0 == 1 /\ 2:r1 == 0", true);
}

/// If this fails, causality stops at the second thread, or observation alone makes it.
#[test]
fn causality_over_three_threads() {
    at_each_scope(|places, s, wide| {
        let condition = r"1:r0 == 1 /\ 2:r0 == 1 /\ 2:r1 == 0";
        for (middle, orders) in [
            (format!("ld.relaxed.{s} r0, x; st.relaxed.{s} y, 1"), false),
            (format!("ld.relaxed.{s} r0, x; st.release.{s} y, 1"), true),
            (format!("ld.relaxed.{s} r0, x; fence.acq_rel.{s}; st.relaxed.{s} y, 1"), true),
            (format!("ld.weak r0, x; st.release.{s} y, 1"), false),
        ] {
            let columns = [
                format!("st.relaxed.{s} x, 1"),
                middle,
                format!("ld.acquire.{s} r0, y; ld.relaxed.{s} r1, x"),
            ];
            let columns = columns.each_ref().map(String::as_str);
            check("WRC", places, &columns, condition, !(orders && wide));
        }
        let transitive = [
            format!("st.weak x, 1; st.release.{s} y, 1"),
            format!("ld.acquire.{s} r0, y; st.release.{s} z, 1"),
            format!("ld.acquire.{s} r0, z; ld.weak r1, x"),
        ];
        let columns = transitive.each_ref().map(String::as_str);
        check("ISA2", places, &columns, condition, !wide);
        // An atomic in between passes on what it has read, a store does not.
        let chain = |middle: &str| {
            [
                format!("st.weak x, 1; st.release.{s} y, 1"),
                middle.replace("SCOPE", s),
                format!("ld.acquire.{s} r0, y; ld.weak r1, x"),
            ]
        };
        let seen = r"2:r0 == 2 /\ 1:r0 == 1 /\ 2:r1 == 0";
        let atomic = chain("atom.relaxed.SCOPE.add r0, y, 1");
        check("RS", places, &atomic.each_ref().map(String::as_str), seen, !wide);
        let store = chain("ld.relaxed.SCOPE r0, y; st.relaxed.SCOPE y, 2");
        check("RS", places, &store.each_ref().map(String::as_str), seen, true);
    });
}

/// If this fails, two readers always agree on the order of independent writes, or `fence.sc` does
/// not make them agree.
#[test]
fn independent_reads_of_independent_writes() {
    let condition = r"1:r0 == 1 /\ 1:r1 == 0 /\ 2:r0 == 1 /\ 2:r1 == 0";
    at_each_scope(|places, s, wide| {
        for (first, fence, agree) in [
            ("relaxed", String::new(), false),
            ("acquire", String::new(), false),
            ("relaxed", format!("fence.acq_rel.{s};"), false),
            ("relaxed", format!("fence.sc.{s};"), true),
        ] {
            let columns = [
                format!("st.relaxed.{s} x, 1"),
                format!("ld.{first}.{s} r0, x; {fence} ld.relaxed.{s} r1, y"),
                format!("ld.{first}.{s} r0, y; {fence} ld.relaxed.{s} r1, x"),
                format!("st.relaxed.{s} y, 1"),
            ];
            let columns = columns.each_ref().map(String::as_str);
            check("IRIW", places, &columns, condition, !(agree && wide));
        }
    });
}

/// If this fails, strong accesses to one place contradict program order, or weak ones that race
/// cannot.
#[test]
fn coherence() {
    at_each_scope(|places, s, wide| {
        let strong = |columns: &[&str], condition: &str| {
            let columns: Vec<String> = columns.iter().map(|it| it.replace("SCOPE", s)).collect();
            let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
            check("Co", places, &columns, condition, !wide);
        };
        strong(
            &["st.relaxed.SCOPE x, 1", "ld.relaxed.SCOPE r0, x; ld.relaxed.SCOPE r1, x"],
            r"1:r0 == 1 /\ 1:r1 == 0",
        );
        strong(
            &["st.relaxed.SCOPE x, 1", "ld.relaxed.SCOPE r0, x; st.relaxed.SCOPE x, 2"],
            r"1:r0 == 1 /\ x == 1",
        );
    });
    let one = &PLACES[1].1;
    check(
        "CoRR",
        one,
        &["st.weak x, 1", "ld.weak r0, x; ld.weak r1, x"],
        r"1:r0 == 1 /\ 1:r1 == 0",
        true,
    );
    check("CoWW", one, &["st.weak x, 1; st.weak x, 2"], "x == 1", false);
    check("CoWR", one, &["st.weak x, 1; ld.weak r0, x"], "0:r0 == 0", false);
    check(
        "CoWR",
        one,
        &["st.relaxed.gpu x, 1; ld.relaxed.gpu r0, x", "st.relaxed.gpu x, 2"],
        r"0:r0 == 2 /\ x == 1",
        false,
    );
    check("CoRW1", one, &["ld.relaxed.gpu r0, x; st.relaxed.gpu x, 1"], "0:r0 == 1", false);
}

/// If this fails, writes take effect in program order, or release does not make them.
#[test]
fn orders_of_writes() {
    at_each_scope(|places, s, wide| {
        let columns = |order: &str| {
            [
                format!("st.relaxed.{s} x, 1; st.{order}.{s} y, 2"),
                format!("st.relaxed.{s} y, 1; st.{order}.{s} x, 2"),
            ]
        };
        let both = r"x == 1 /\ y == 1";
        // A release orders who acquires; nobody does.
        for order in ["relaxed", "release"] {
            check("2+2W", places, &columns(order).each_ref().map(String::as_str), both, true);
        }
        let fenced = [
            format!("st.relaxed.{s} x, 1; fence.sc.{s}; st.relaxed.{s} y, 2"),
            format!("st.relaxed.{s} y, 1; fence.sc.{s}; st.relaxed.{s} x, 2"),
        ];
        check("2+2W", places, &fenced.each_ref().map(String::as_str), both, !wide);
        let s_test = [
            format!("st.weak x, 2; st.release.{s} y, 1"),
            format!("ld.acquire.{s} r0, y; st.weak x, 1"),
        ];
        check("S", places, &s_test.each_ref().map(String::as_str), r"1:r0 == 1 /\ x == 2", !wide);
        let s_relaxed = [
            format!("st.weak x, 2; st.relaxed.{s} y, 1"),
            format!("ld.relaxed.{s} r0, y; st.weak x, 1"),
        ];
        let columns = s_relaxed.each_ref().map(String::as_str);
        check("S", places, &columns, r"1:r0 == 1 /\ x == 2", true);
        for (fence, orders) in [("fence.acq_rel", false), ("fence.sc", true)] {
            let r_test = [
                format!("st.relaxed.{s} x, 1; {fence}.{s}; st.relaxed.{s} y, 1"),
                format!("st.relaxed.{s} y, 2; {fence}.{s}; ld.relaxed.{s} r0, x"),
            ];
            let columns = r_test.each_ref().map(String::as_str);
            check("R", places, &columns, r"y == 2 /\ 1:r0 == 0", !(orders && wide));
        }
    });
}

/// If this fails, two atomics of a wide enough scope read the same value, or narrow ones never do.
#[test]
fn atomicity() {
    at_each_scope(|places, s, wide| {
        let add = format!("atom.relaxed.{s}.add r0, x, 1");
        check("Atom", places, &[&add, &add], "x != 2", !wide);
        let exchange = format!("atom.relaxed.{s}.cas r0, x, 0, 1");
        let both = r"0:r0 == 0 /\ 1:r0 == 0";
        check("Cas", places, &[&exchange, &exchange], both, !wide);
        let store = format!("st.relaxed.{s} x, 5");
        check("Between", places, &[&add, &store], r"0:r0 == 0 /\ x == 1", !wide);
    });
}

/// If this fails, a load is never passed by a later store, though nothing forbids it; or it is in
/// spite of a dependency, or of fences that synchronise.
#[test]
fn load_buffering() {
    let condition = r"0:r0 == 1 /\ 1:r0 == 1";
    at_each_scope(|places, s, wide| {
        let plain = [format!("ld.relaxed.{s} r0, x"), format!("ld.relaxed.{s} r0, y")];
        for (between, orders) in [
            ("", false),
            ("fence.acq_rel.SCOPE;", true),
            ("fence.sc.SCOPE;", true),
            // Of other data: no dependency.
            ("add r1, r9, 1;", false),
        ] {
            let between = between.replace("SCOPE", s);
            let side = |number: usize, between: &str| {
                format!("{}; {between} st.relaxed.{s} {}, 1", plain[number], ["y", "x"][number])
            };
            let both = [side(0, &between), side(1, &between)];
            let one = [side(0, &between), side(1, "")];
            let check = |name: &str, columns: &[String; 2], allowed: bool| {
                check(name, places, &columns.each_ref().map(String::as_str), condition, allowed);
            };
            check("LB", &both, !(orders && wide));
            check("LB+one", &one, true);
        }
    });
    let places = &PLACES[2].1;
    let [weak, free] = [
        ["ld.weak r0, x; st.weak y, 1", "ld.weak r0, y; st.weak x, 1"],
        ["ld.relaxed.sys r0, x; st.relaxed.sys y, 1", "ld.relaxed.sys r0, y; st.relaxed.sys x, 1"],
    ];
    check("LB+weak", places, &weak, condition, true);
    let data = [
        "ld.relaxed.sys r0, x; st.relaxed.sys y, r0",
        "ld.relaxed.sys r0, y; st.relaxed.sys x, r0",
    ];
    let through = "ld.relaxed.sys r0, x; add r1, r0, 0; st.relaxed.sys y, r1";
    let branch = [
        "ld.relaxed.sys r0, x; bne r0, 1, LC0; st.relaxed.sys y, 1; LC0:",
        "ld.relaxed.sys r0, y; bne r0, 1, LC0; st.relaxed.sys x, 1; LC0:",
    ];
    // No value comes out of thin air; where one side has no dependency, there is no circle.
    check("LB+data", places, &data, condition, false);
    check("LB+data", places, &[through, data[1]], condition, false);
    check("LB+ctrl", places, &branch, condition, false);
    check("LB+data+ctrl", places, &[data[0], branch[1]], condition, false);
    check("LB+data+free", places, &[data[0], free[1]], condition, true);
    check("LB+ctrl+free", places, &[branch[0], free[1]], condition, true);
    // A circle of three, and one through an acquire that does not see a release.
    let three = [
        "ld.relaxed.sys r0, x; st.relaxed.sys y, 1",
        "ld.relaxed.sys r0, y; st.relaxed.sys z, r0",
        "ld.relaxed.sys r0, z; st.relaxed.sys x, r0",
    ];
    let all = r"0:r0 == 1 /\ 1:r0 == 1 /\ 2:r0 == 1";
    check("LB3", places, &three, all, true);
    let ordered =
        ["ld.acquire.sys r0, x; st.release.sys y, 1", "ld.acquire.sys r0, y; st.release.sys x, 1"];
    check("LB+sync", places, &ordered, condition, false);
    let half = ["ld.weak r0, x; st.release.sys y, 1", "ld.acquire.sys r0, y; st.weak x, 1"];
    check("LB+half", places, &half, condition, false);
    let half = ["ld.weak r0, x; st.release.sys y, 1", "ld.relaxed.sys r0, y; st.weak x, 1"];
    check("LB+half", places, &half, condition, true);
    // What comes first in one place stays first there.
    let twice = [
        "ld.relaxed.sys r0, x; ld.relaxed.sys r1, x; st.relaxed.sys y, 1",
        "ld.relaxed.sys r0, y; st.relaxed.sys x, 1",
    ];
    check("LB+co", places, &twice, r"0:r0 == 1 /\ 0:r1 == 0 /\ 1:r0 == 1", false);
    let own = ["ld.relaxed.sys r0, x; st.relaxed.sys x, 1"];
    check("LB+own", places, &own, "0:r0 == 1", false);
}

/// What PTX allows and the memory does not generate: a strong load that passes a release of its own
/// thread, an acquire, and an atomic. If this fails, the memory generates more: say so in
/// `hwsim_ptx::weak`.
#[test]
fn load_buffering_past_releases_and_acquires_is_not_generated() {
    let condition = r"0:r0 == 1 /\ 1:r0 == 1";
    for columns in [
        ["ld.relaxed.sys r0, x; st.release.sys y, 1", "ld.relaxed.sys r0, y; st.release.sys x, 1"],
        ["ld.acquire.sys r0, x; st.relaxed.sys y, 1", "ld.acquire.sys r0, y; st.relaxed.sys x, 1"],
        [
            "atom.relaxed.sys.add r0, x, 0; st.relaxed.sys y, 1",
            "atom.relaxed.sys.add r0, y, 0; st.relaxed.sys x, 1",
        ],
    ] {
        check("LB", &PLACES[2].1, &columns, condition, false);
    }
}

/// If this fails, a file with a mistake is run as something else.
#[test]
fn mistakes_in_files_are_named() {
    for (text, line, reason) in [
        ("X86 MP", 1, "expected `PTX NAME`"),
        ("PTX a\n{ x=0; }\nP0@cta 0 ;\nexists (x == 0)", 3, "is not like"),
        ("PTX a\n{ x=0; }\nP0@cta 0,gpu 0 ;\nst.weird x, 1 ;\nexists (x == 0)", 4, "weird"),
        ("PTX a\n{ x=0; }\nP0@cta 0,gpu 0 ;\nfence.proxy.alias ;\nexists (x == 0)", 4, "does not"),
        ("PTX a\n{ x=0; }\nP0@cta 0,gpu 0 ;\nst.weak x, 1 ;\nmaybe (x == 0)", 4, "expected exists"),
        ("PTX a\n{ x @ generic aliases y; }\n", 2, "not modelled"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.reason.contains(reason), "{text}: {error}");
        assert_eq!(error.line, line, "{text}: {error}");
    }
}
