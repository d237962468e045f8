//! Bad kernels end with a fault that says exactly where.

use hwsim_ptx::{FaultKind, Module};

use crate::common::{BASE, Bench, SIZE};

/// Runs a body that must fail; checks line text, thread and address.
fn expect(body: &str, kind: FaultKind, instruction: &str, thread: u32, address: Option<u64>) {
    let bench = Bench::of_body(body);
    let fault = bench.run("test", 1, 64, &[BASE]).unwrap_err();
    assert_eq!(fault.kind, kind, "{fault}");
    assert_eq!(fault.instruction, instruction, "{fault}");
    assert_eq!(fault.thread, [thread, 0, 0], "{fault}");
    assert_eq!(fault.address, address, "{fault}");
    let text = crate::common::module_text(body);
    let line = text.lines().nth(fault.line as usize - 1).unwrap();
    let opcode = instruction.split(' ').find(|word| !word.starts_with('@')).unwrap();
    assert!(line.contains(opcode), "line {} is `{line}`", fault.line);
}

#[test]
fn out_of_bounds() {
    // Thread 40 is the first to leave the buffer.
    let offset = SIZE - 160;
    expect(
        &format!("add.s64 %d1, %a4, {offset};\nld.global.f32 %f1, [%d1];"),
        FaultKind::OutOfBounds,
        "ld.global.f32 %f1, [%d1]",
        40,
        Some(BASE + SIZE as u64),
    );
    expect(
        "setp.eq.u32 %p1, %t, 9;\n@%p1 st.u32 [16], %t;",
        FaultKind::OutOfBounds,
        "@%p1 st.u32 [16], %t",
        9,
        Some(16),
    );
    expect(
        &format!("add.s64 %d1, %base, {SIZE};\natom.global.add.u32 %r1, [%d1], 1;"),
        FaultKind::OutOfBounds,
        "atom.global.add.u32 %r1, [%d1], 1",
        0,
        Some(BASE + SIZE as u64),
    );
}

#[test]
fn misaligned() {
    expect(
        "ld.global.v2.u32 {%r1, %r2}, [%a4];",
        FaultKind::Misaligned,
        "ld.global.v2.u32 {%r1, %r2}, [%a4]",
        1,
        Some(BASE + 4),
    );
    expect(
        "add.s64 %d1, %a8, 2;\nst.global.u64 [%d1], %d1;",
        FaultKind::Misaligned,
        "st.global.u64 [%d1], %d1",
        0,
        Some(BASE + 2),
    );
}

#[test]
fn shared_and_local_bounds() {
    expect(
        ".shared .b32 box[8];\nmov.u64 %d1, box;\nadd.s64 %d1, %d1, %o4;\n\
         st.shared.u32 [%d1+4096], %t;",
        FaultKind::SharedOutOfBounds,
        "st.shared.u32 [%d1+4096], %t",
        8,
        Some(4096 + 32),
    );
    expect(
        ".local .align 4 .b8 depot[16];\nmov.u64 %d1, depot;\nadd.s64 %d1, %d1, %o4;\n\
         st.local.u32 [%d1], %t;",
        FaultKind::LocalOutOfBounds,
        "st.local.u32 [%d1], %t",
        4,
        Some(16),
    );
}

#[test]
fn traps_and_wild_calls() {
    expect("setp.gt.u32 %p1, %t, 50;\n@%p1 trap;", FaultKind::Trap, "@%p1 trap", 51, None);
    expect(
        "mov.u64 %d1, 1234;\nP: .callprototype ()_ ();\ncall %d1, P;",
        FaultKind::IndirectCall,
        "call %d1, P",
        0,
        Some(1234),
    );
    expect("bar.sync 16;", FaultKind::InvalidBarrier, "bar.sync 16", 0, None);
    expect(
        "T: .branchtargets A;\nbrx.idx %t, T;\nA:",
        FaultKind::InvalidPc,
        "brx.idx %t, T",
        1,
        None,
    );
}

#[test]
fn endless_recursion_overflows_the_stack() {
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n\
        .func deeper(.param .b32 n) {\n.reg .b32 %r<3>;\nld.param.b32 %r1, [n];\n\
        { .param .b32 a; st.param.b32 [a], %r1; call deeper, (a); }\nret;\n}\n\
        .entry test(.param .u64 p) {\n\
        { .param .b32 a; st.param.b32 [a], 1; call deeper, (a); }\nret;\n}\n";
    let fault = Bench::new(text).run("test", 1, 32, &[BASE]).unwrap_err();
    assert!(
        matches!(fault.kind, FaultKind::StackOverflow | FaultKind::LocalOutOfBounds),
        "{fault}"
    );
}

#[test]
fn unknown_instructions_are_named_when_loaded() {
    for (body, name) in [
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 %r1, [%base];", "wmma"),
        ("add.rn.ftz.s32 %r1, %r2, %r3;", "ftz"),
        ("frobnicate.u32 %r1, %r2;", "frobnicate.u32"),
        ("add.u32 %r1, %d1, %r2;", "%d1"),
        ("mov.u32 %r1, nowhere;", "nowhere"),
        ("bra NOWHERE;", "NOWHERE"),
        ("call nobody, ();", "nobody"),
        ("ld.global.u64 %r1, [%base];", "%r1"),
    ] {
        let error = Module::load(&crate::common::module_text(body)).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(error.line, 21, "{error}");
    }
}

/// Wild addresses of every kind end in a fault, never in the host's own.
#[test]
fn wild_addresses_fault() {
    for address in [0, 1 << 47, 1 << 56 | 1 << 40, 2 << 56, 3 << 56 | 8, 4 << 56, u64::MAX - 7] {
        for access in ["ld.u64 %d2, [%d1]", "st.u64 [%d1], %d2", "atom.add.u64 %d2, [%d1], 1"] {
            let bench = Bench::of_body(&format!("mov.u64 %d1, {address};\n{access};"));
            let fault = bench.run("test", 1, 32, &[BASE]).unwrap_err();
            assert_eq!(fault.thread, [0, 0, 0], "{fault}");
        }
    }
    // 3 << 56 is the kernel's parameter, which may be read.
    let bench =
        Bench::of_body("mov.u64 %d1, 216172782113783808; ld.u64 %d2, [%d1]; st.u64 [%base], %d2;");
    bench.run("test", 1, 32, &[BASE]).unwrap();
    assert_eq!(bench.get::<u64>(0, 1), [BASE]);
}

#[test]
fn too_much_local_memory_is_refused() {
    let body = ".local .align 4 .b8 depot[1000000];\nst.local.u32 [depot], %t;";
    let error = Module::load(&crate::common::module_text(body)).unwrap_err();
    assert!(error.to_string().contains("local memory"), "{error}");
}

/// The machine runs blocks on whichever of its threads is free.
#[test]
fn blocks_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<hwsim_ptx::Block>();
    is_send::<hwsim_ptx::Fault>();
}

/// If this fails, who writes kernels in another language than PTX cannot find the wrong access.
#[test]
fn faults_name_the_line_of_the_source() {
    let text = crate::common::module_text(
        "mov.u64 %d1, 64;\n.loc 2 7 1\nadd.u64 %d1, %d1, 64;\n\
         .loc 1 31 5, function_name $name, inlined_at 2 8 3\nst.global.u32 [%d1], %t;\n.loc 2 9 1",
    );
    let text = format!("{text}.file 1 \"/home/somebody/kernel.py\"\n.file 2 \"other.py\"\n");
    let fault = Bench::new(&text).run("test", 1, 1, &[BASE]).unwrap_err();
    assert_eq!(fault.source, "kernel.py:31");
    assert!(fault.to_string().contains("st.global.u32 [%d1], %t (kernel.py:31)"), "{fault}");
    let bare = Bench::of_body("mov.u64 %d1, 128;\nst.global.u32 [%d1], %t;");
    assert_eq!(bare.run("test", 1, 1, &[BASE]).unwrap_err().source, "");
}
