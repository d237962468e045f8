//! A user's kernel on the weak memory, as a file describes it with its ranks.

#[path = "../../../tests/support/mutation.rs"]
mod mutation;

use hwsim_explore::{Description, UserKernel};
use mutation::{Campaign, Input, mutate};
use std::cell::Cell;
use std::fmt::Write as _;

const FUNCTIONS: &str = include_str!("../../../kernels/ptx/functions.ptx");

/// Puts window 0 into the peer's window 1, waits for the peer's, and adds both.
const SHIFT: &str = "
.visible .entry shift(.param .u64 handle, .param .u64 mine, .param .u64 theirs, .param .u64 out,
    .param .u32 peer)
{
    .reg .b64 %rd<8>;
    .reg .b32 %r<9>;
    ld.param.u64 %rd1, [handle];
    ld.param.u64 %rd2, [mine];
    ld.param.u64 %rd3, [theirs];
    ld.param.u64 %rd4, [out];
    ld.param.u32 %r1, [peer];
    {
        .param .b64 a; .param .b32 b; .param .b32 c; .param .b64 d; .param .b32 e;
        .param .b64 f; .param .b64 g; .param .b32 h; .param .b32 fine;
        st.param.b64 [a], %rd1; st.param.b32 [b], %r1; st.param.b32 [c], 1; st.param.b64 [d], 0;
        st.param.b32 [e], 0; st.param.b64 [f], 0; st.param.b64 [g], 128; st.param.b32 [h], 0;
        call.uni (fine), ringdove_put_with_signal, (a, b, c, d, e, f, g, h);
    }
    {
        .param .b64 a; .param .b32 b; .param .b32 c; .param .b32 d; .param .b32 fine;
        st.param.b64 [a], %rd1; st.param.b32 [b], %r1; st.param.b32 [c], 1; st.param.b32 [d], 0;
        call.uni (fine), ringdove_wait, (a, b, c, d);
    }
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd5, %r2, 4;
    add.u64 %rd6, %rd2, %rd5;
    ld.global.u32 %r3, [%rd6];
    add.u64 %rd6, %rd3, %rd5;
    ld.global.u32 %r4, [%rd6];
    add.u32 %r5, %r3, %r4;
    add.u64 %rd6, %rd4, %rd5;
    st.global.u32 [%rd6], %r5;
    ret;
}
";

fn hex(words: impl IntoIterator<Item = u32>) -> String {
    words.into_iter().flat_map(u32::to_le_bytes).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn description(ptx: &str) -> serde_json::Value {
    let value = |rank: u32, at: u32| 100 * (rank + 1) + at;
    let rank = |rank: u32| {
        serde_json::json!({
            "arrays": [
                {"name": "mine", "hex": hex((0..32).map(|at| value(rank, at))), "window": true},
                {"name": "theirs", "hex": hex([0; 32]), "window": true},
                {"name": "out", "hex": hex([0; 32]),
                 "expected": hex((0..32).map(|at| value(0, at) + value(1, at)))},
            ],
            "launches": [["handle", {"array": 0}, {"array": 1}, {"array": 2},
                          {"hex": hex([1 - rank])}]],
        })
    };
    serde_json::json!({
        "ptx": [ptx], "entry": "shift", "blocks": 1, "threads": 32, "shared_bytes": 0, "lanes": 1,
        "ranks": [rank(0), rank(1)],
    })
}

fn loaded(description: &serde_json::Value) -> Result<UserKernel, String> {
    Description::read(&description.to_string()).and_then(UserKernel::new)
}

/// If this fails, a kernel that is right fails, or one that reads what has not come does not.
#[test]
fn a_wait_that_lacks_is_noticed() {
    let right = loaded(&description(&format!("{FUNCTIONS}{SHIFT}"))).unwrap();
    for seed in 0..40 {
        let stats = right.run(seed).unwrap_or_else(|reason| panic!("seed {seed}: {reason}"));
        assert!(stats.descriptors >= 2, "seed {seed}: no message went by an engine");
    }
    let hasty = SHIFT.replace("call.uni (fine), ringdove_wait, (a, b, c, d);", "");
    assert_ne!(hasty, SHIFT);
    let hasty = loaded(&description(&format!("{FUNCTIONS}{hasty}"))).unwrap();
    let reasons: Vec<_> = (0..40).filter_map(|seed| hasty.run(seed).err()).collect();
    assert!(!reasons.is_empty(), "none of 40 runs notices");
    for reason in &reasons {
        assert!(reason.contains("out is not as expected in"), "{reason}");
    }
    // A put that leaves its window.
    let far = SHIFT.replace("st.param.b64 [g], 128;", "st.param.b64 [g], 136;");
    assert_ne!(far, SHIFT);
    let far = loaded(&description(&format!("{FUNCTIONS}{far}"))).unwrap();
    let reason = far.run(7).expect_err("the put leaves its window");
    assert!(reason.contains("leaves registered memory"), "{reason}");
    // A call that cannot be ends the communicator, and its record says so.
    let mut lost = description(&format!("{FUNCTIONS}{SHIFT}"));
    *lost.pointer_mut("/ranks/1/launches/0/4").unwrap() = serde_json::json!({"hex": hex([7])});
    let reason = loaded(&lost).unwrap().run(7).expect_err("there is no rank 7");
    assert!(reason.contains("no call was to fail"), "{reason}");
}

/// If this fails, a slip in a description ends in a panic, or in words that do not say where.
#[test]
fn what_does_not_fit_is_refused() {
    let ptx = format!("{FUNCTIONS}{SHIFT}");
    let refused = |path: &str, value: serde_json::Value| {
        let mut it = description(&ptx);
        *it.pointer_mut(path).unwrap() = value;
        loaded(&it).err().unwrap_or_else(|| panic!("{path} is taken"))
    };
    for (path, value, words) in [
        ("/entry", "other".into(), "no entry other"),
        ("/threads", 0.into(), "threads: expected a number from 1 to 1024"),
        ("/lanes", (1_u64 << 40).into(), "lanes"),
        ("/ranks/1/arrays/0/window", false.into(), "rank 1: expected windows of [128, 128]"),
        ("/ranks/0/arrays/2/expected", "00".into(), "array out"),
        ("/ranks/0/arrays/2/hex", "0".into(), "two digits each"),
        ("/ranks/0/launches/0/1", serde_json::json!({"array": 3}), "array: expected a number"),
        ("/ranks/0/launches/0/4", serde_json::json!({"hex": "00"}), "[8, 8, 8, 8, 4] bytes"),
        ("/ranks", serde_json::json!([]), "at least one"),
    ] {
        let reason = refused(path, value);
        assert!(reason.contains(words), "{path}: {reason}");
    }
}

/// If this fails, a kernel for clusters runs as if each of its blocks were alone.
#[test]
fn clusters_are_refused_by_name() {
    let asking = SHIFT.replacen("\n{", "\n.reqnctapercluster 2, 1, 1\n{", 1);
    assert_ne!(asking, SHIFT);
    let reason = loaded(&description(&format!("{FUNCTIONS}{asking}"))).err().expect("refused");
    assert!(reason.contains("shift is for clusters"), "{reason}");
    for body in [
        "barrier.cluster.arrive;",
        "mapa.shared::cluster.u32 %r1, %r1, 0;",
        "ld.shared::cluster.u32 %r1, [%r1];",
        "st.shared::cluster.u32 [%r1], %r1;",
        "atom.shared::cluster.add.u32 %r1, [%r1], 1;",
    ] {
        let ptx = format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.visible .entry shift(\
             .param .u64 handle, .param .u64 mine, .param .u64 theirs, .param .u64 out,\
             .param .u32 peer) {{\n.shared .align 4 .b8 own[64];\n.reg .b32 %r<2>;\n\
             mov.u32 %r1, own;\n{body}\nret;\n}}\n"
        );
        let reason = loaded(&description(&ptx)).unwrap().run(1).expect_err(body);
        assert!(reason.contains("the weak memory does not model"), "{body}: {reason}");
    }
}

#[test]
fn mutated_descriptions_are_read_or_refused() {
    let campaign = Campaign {
        target: "-p hwsim-explore --test user_kernel",
        test: "mutated_descriptions_are_read_or_refused",
        cases: 3000,
    };
    let text = description("the PTX is read elsewhere").to_string();
    let inputs = [Input { name: "a description".to_owned(), bytes: text.into() }];
    let accepted = Cell::new(0_u64);
    let play = |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
        match Description::read(text) {
            Ok(_) => accepted.set(accepted.get() + 1),
            Err(reason) if reason.is_empty() => return Err("an error without words".to_owned()),
            Err(_) => {}
        }
        Ok(())
    };
    campaign.replay(&inputs, play);
    assert_eq!(accepted.get(), 1);
    campaign.run(|rng| mutate(rng, &inputs), play);
    println!("{} of them are descriptions", accepted.get());
}
