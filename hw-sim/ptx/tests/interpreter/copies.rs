//! `cp.async`: from global to shared memory, with zeros for what is not read.

use crate::common::{BASE, Bench};
use hwsim_ptx::{FaultKind, Module};

/// Fills shared memory with ones, runs the copy with `%to` and `%from`, and stores 16 bytes of each
/// lane's part at 4096. Each lane has 32 bytes; `%r1` is its number.
fn text(copy: &str) -> String {
    format!(
        ".version 8.4\n.target sm_80\n.address_size 64\n\
         .visible .entry test(.param .u64 p0) {{\n.shared .align 16 .b8 s[1024];\n\
         .reg .b32 %to, %r<9>;\n.reg .b64 %base, %from, %out;\n.reg .pred %p<4>;\n\
         ld.param.u64 %base, [p0];\nmov.u32 %r1, %tid.x;\nmov.u32 %to, s;\n\
         mad.lo.u32 %to, %r1, 32, %to;\nmad.wide.u32 %from, %r1, 32, %base;\n\
         mad.wide.u32 %out, %r1, 16, %base;\n\
         st.shared.v4.b32 [%to+16], {{-1, -1, -1, -1}};\n{copy}\n\
         cp.async.commit_group;\ncp.async.wait_group 0;\n\
         ld.shared.v4.b32 {{%r2, %r3, %r4, %r5}}, [%to+16];\n\
         st.global.v4.b32 [%out+4096], {{%r2, %r3, %r4, %r5}};\nret;\n}}\n"
    )
}

fn source() -> Vec<u8> {
    (0..1024_u32).map(|number| (number * 7 + number / 256) as u8).collect()
}

/// Runs a copy of `bytes`, of which `count(lane)` are read.
fn check(copy: &str, bytes: usize, count: impl Fn(usize) -> usize) {
    let bench = Bench::new(&text(copy));
    bench.put(0, &source());
    bench.run("test", 1, 32, &[BASE]).unwrap();
    for lane in 0..32 {
        let mut expected = vec![0xff_u8; 16];
        expected[..bytes].fill(0);
        let count = count(lane);
        expected[..count].copy_from_slice(&source()[lane * 32 + 16..][..count]);
        assert_eq!(bench.get::<u8>(4096 + 16 * lane, 16), expected, "{copy}: lane {lane}");
    }
}

#[test]
fn copies_are_there_after_the_wait() {
    check("cp.async.ca.shared.global [%to+16], [%from+16], 4;", 4, |_| 4);
    check("cp.async.ca.shared.global.L2::64B [%to+16], [%from+16], 8;", 8, |_| 8);
    check("cp.async.cg.shared::cta.global.L2::128B [%to+16], [%from+16], 16;", 16, |_| 16);
    check("cp.async.cg.shared.global.L2::cache_hint [%to+16], [%from+16], 16, %base;", 16, |_| 16);
}

#[test]
fn what_is_not_read_is_zero() {
    check("cp.async.ca.shared.global [%to+16], [%from+16], 16, 12;", 16, |_| 12);
    check("cp.async.cg.shared.global [%to+16], [%from+16], 16, %r1;", 16, |lane| lane.min(16));
    let ignore = "setp.lt.u32 %p1, %r1, 9;\n\
                  cp.async.ca.shared.global [%to+16], [%from+16], 8, %p1;";
    check(ignore, 8, |lane| if lane < 9 { 0 } else { 8 });
    check(&ignore.replace(", %p1;", ", !%p1;"), 8, |lane| if lane < 9 { 8 } else { 0 });
}

/// Compilers guard loads past the end of a matrix in this way: the address is that of nothing.
#[test]
fn an_address_that_is_not_read_may_be_anything() {
    let nowhere = "mov.u64 %from, 1;\ncp.async.cg.shared.global [%to+16], [%from], 16, 0;";
    check(nowhere, 16, |_| 0);
    let bench = Bench::new(&text(&nowhere.replace("16, 0;", "16, 4;")));
    assert_eq!(bench.run("test", 1, 32, &[BASE]).unwrap_err().kind, FaultKind::Misaligned);
    let outside = nowhere.replace("%from, 1", "%from, 16").replace("16, 0;", "16;");
    let bench = Bench::new(&text(&outside));
    assert_eq!(bench.run("test", 1, 32, &[BASE]).unwrap_err().kind, FaultKind::OutOfBounds);
}

#[test]
fn other_copies_are_refused() {
    let copy = "cp.async.cg.shared.global [%to+16], [%from+16], 16;";
    for (from, to) in [
        ("], 16;", "], 8;"),
        ("], 16;", "], 12;"),
        ("], 16;", "], 16, 3, 4;"),
        ("shared.global", "shared.shared"),
        ("cp.async.cg.shared.global", "cp.async.bulk.shared.global"),
        ("cp.async.wait_group 0;", "cp.async.wait_group %r1;"),
        ("cp.async.commit_group;", "cp.async.mbarrier.complete.b64 [%to];"),
    ] {
        let text = text(copy);
        assert!(text.contains(from), "{from}");
        assert!(Module::load(&text.replacen(from, to, 1)).is_err(), "{to}");
    }
    let refused = Module::load(&text(copy).replace("sm_80", "sm_75")).expect_err("sm_75 has none");
    assert!(refused.expected.contains("sm_80"), "{refused}");
}
