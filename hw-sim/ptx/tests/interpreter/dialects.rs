//! PTX as compilers other than nvcc write it.

use crate::common::{BASE, Bench};

/// A module around a kernel's body.
fn module(before: &str, body: &str) -> Bench {
    Bench::new(&format!(
        ".version 8.4\n.target sm_90\n.address_size 64\n{before}\n\
         .visible .entry test(.param .u64 p0) {{\n.reg .b64 %base;\n.reg .pred %p<4>;\n\
         .reg .b16 %h<9>;\n.reg .b32 %r<9>;\n.reg .b64 %d<9>;\nld.param.u64 %base, [p0];\n\
         {body}\nret;\n}}\n"
    ))
}

#[test]
fn vector_registers_are_loaded_moved_and_stored() {
    let bench = module(
        "",
        ".reg .v2 .b32 pair; .reg .v4 .f32 %four<3>; .reg .v4 .u16 narrow;\n\
         ld.global.v2.b32 pair, [%base];\nld.global.v4.f32 %four1, [%base+16];\n\
         mov.b64 %d1, pair;\nst.global.b64 [%base+64], %d1;\n\
         mov.v2.b32 pair, {pair.y, pair.x};\nst.global.v2.b32 [%base+72], pair;\n\
         add.f32 %four1.w, %four1.x, %four1.a;\nmov.v4.f32 %four2, %four1;\n\
         st.global.v4.f32 [%base+80], %four2;\n\
         mov.v4.u16 narrow, {1, 2, 3, 4};\nmov.v4.u16 {%h0, %h1, %h2, %h3}, narrow;\n\
         add.u16 %h0, %h0, narrow.w;\nst.global.v4.u16 [%base+96], {%h0, %h1, %h2, %h3};",
    );
    bench.put(0, &[11_u32, 22]);
    bench.put(16, &[1.0_f32, 2.0, 3.0, 4.0]);
    bench.run("test", 1, 1, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(64, 4), [11, 22, 22, 11]);
    assert_eq!(bench.get::<f32>(80, 4), [1.0, 2.0, 3.0, 5.0]);
    assert_eq!(bench.get::<u16>(96, 4), [5, 2, 3, 4]);
}

#[test]
fn vectors_of_eight_are_moved() {
    let bench = module(
        "",
        ".reg .v8 .b16 eight;\nmov.v8.b16 eight, {1, 2, 3, 4, 5, 6, 7, 8};\n\
         mov.v8.b16 {%h1, %h2, %h3, %h4, %h5, %h6, %h7, %h8}, eight;\n\
         st.global.v4.u16 [%base], {%h8, %h7, %h2, %h1};",
    );
    bench.run("test", 1, 1, &[BASE]).unwrap();
    assert_eq!(bench.get::<u16>(0, 4), [8, 7, 2, 1]);
}

#[test]
fn registers_of_128_bits_are_moved_as_a_whole() {
    let bench = module(
        "",
        ".reg .b128 wide, other;\nld.global.b128 wide, [%base];\nmov.b128 other, wide;\n\
         mov.b128 {%d1, %d2}, other;\nmov.b128 wide, {%d2, %d1};\nst.global.b128 [%base+16], wide;",
    );
    bench.put(0, &[7_u64, 9]);
    bench.run("test", 1, 1, &[BASE]).unwrap();
    assert_eq!(bench.get::<u64>(16, 2), [9, 7]);
}

#[test]
fn a_vector_register_has_no_other_parts() {
    for body in ["mov.b32 %r1, pair.z;", "mov.b32 %r1, pair;", "mov.b32 %r1, %r2.x;"] {
        let text = format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.entry test() {{\n\
             .reg .v2 .b32 pair;\n.reg .b32 %r<3>;\n{body}\nret;\n}}\n"
        );
        assert!(hwsim_ptx::Module::load(&text).is_err(), "{body}");
    }
}

#[test]
fn functions_give_back_several_values() {
    let in_memory = ".func (.param .u64 sum, .param .u32 product)\n\
                     both(.param .u64 a, .param .u32 b)\n{\n.reg .b64 %x, %z;\n\
                     .reg .b32 %y, %l;\nld.param.u64 %x, [a];\n\
                     ld.param.u32 %y, [b];\ncvt.u64.u32 %z, %y;\nadd.u64 %z, %z, %x;\n\
                     st.param.u64 [sum], %z;\ncvt.u32.u64 %l, %x;\nmul.lo.u32 %l, %l, %y;\n\
                     st.param.u32 [product], %l;\nret;\n}\n";
    let in_registers = ".func (.reg .u64 sum, .reg .u32 product) both(.reg .u64 a, .reg .u32 b)\n\
                        {\n.reg .b64 %z;\n.reg .b32 %l;\ncvt.u64.u32 %z, b;\n\
                        add.u64 sum, %z, a;\ncvt.u32.u64 %l, a;\nmul.lo.u32 product, %l, b;\n\
                        ret;\n}\n";
    let by_parameters = "{\n.param .u64 s; .param .u32 p; .param .u64 x; .param .u32 y;\n\
                         st.param.u64 [x], %d1;\nst.param.u32 [y], %r1;\n\
                         call (s, p), both, (x, y);\nld.param.u64 %d2, [s];\n\
                         ld.param.u32 %r2, [p];\n}\n";
    let by_registers = "call (%d2, %r2), both, (%d1, %r1);\n";
    for (function, call) in [(in_memory, by_parameters), (in_registers, by_registers)] {
        let bench = module(
            function,
            &format!(
                "mov.u64 %d1, 30;\nmov.u32 %r1, 12;\n{call}st.global.u64 [%base], %d2;\n\
                 st.global.u32 [%base+8], %r2;"
            ),
        );
        bench.run("test", 1, 1, &[BASE]).unwrap();
        assert_eq!((bench.get::<u64>(0, 1)[0], bench.get::<u32>(8, 1)[0]), (42, 360));
    }
}

#[test]
fn vectors_and_predicates_are_passed_to_functions_and_back() {
    let function = ".func (.reg .v2 .u32 sums, .reg .pred same, .reg .b128 turned)\n\
                    mixed(.reg .v2 .u32 a, .reg .pred flag, .reg .b128 wide)\n{\n\
                    .reg .u32 %x;\n.reg .b64 %l, %h;\nadd.u32 sums.x, a.x, a.y;\n\
                    selp.u32 sums.y, 7, 8, flag;\nsetp.eq.u32 same, a.x, a.y;\n\
                    mov.b128 {%l, %h}, wide;\nmov.b128 turned, {%h, %l};\nret;\n}\n";
    let bench = module(
        function,
        ".reg .v2 .u32 pair, sums;\n.reg .b128 wide;\nmov.u32 %r1, %tid.x;\n\
         mov.v2.u32 pair, {%r1, 5};\nsetp.lt.u32 %p1, %r1, 9;\nmov.b128 wide, {3, 4};\n\
         call (sums, %p2, wide), mixed, (pair, %p1, wide);\nselp.u32 %r2, 1, 0, %p2;\n\
         mov.b128 {%d1, %d2}, wide;\ncvt.u32.u64 %r3, %d1;\nmul.wide.u32 %d3, %r1, 16;\n\
         add.u64 %d3, %d3, %base;\nst.global.v4.u32 [%d3], {sums.x, sums.y, %r2, %r3};",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    for lane in 0..32 {
        let flag = if lane < 9 { 7 } else { 8 };
        let expected = [lane + 5, flag, u32::from(lane == 5), 4];
        assert_eq!(bench.get::<u32>(16 * lane as usize, 4), expected);
    }
}

/// LLVM without optimisation copies structures byte by byte, from the address of the parameter.
#[test]
fn aggregates_are_read_through_their_address() {
    let function = ".func (.param .b32 sum) total(.param .align 4 .b8 values[16])\n{\n\
                    .reg .b64 %at, %generic;\n.reg .b32 %s, %x, %i;\n.reg .pred %p;\n\
                    mov.b64 %at, values;\nmov.u32 %s, 0;\nmov.u32 %i, 0;\nLOOP:\n\
                    ld.param.u32 %x, [%at];\nadd.u32 %s, %s, %x;\nadd.u64 %at, %at, 4;\n\
                    add.u32 %i, %i, 1;\nsetp.lt.u32 %p, %i, 3;\n@%p bra LOOP;\n\
                    cvta.param.u64 %generic, %at;\nld.u32 %x, [%generic];\nadd.u32 %s, %s, %x;\n\
                    mov.b64 %at, sum;\nst.param.b32 [%at], %s;\nret;\n}\n";
    let bench = module(
        function,
        "{\n.param .align 4 .b8 v[16]; .param .b32 s;\nmov.b64 %d1, v;\nmov.u32 %r1, %tid.x;\n\
         st.param.u32 [v], 1;\nst.param.u32 [v+4], 20;\nst.param.u32 [%d1+8], 300;\n\
         st.param.u32 [v+12], %r1;\ncall (s), total, (v);\nld.param.u32 %r2, [s];\n}\n\
         mul.wide.u32 %d2, %r1, 4;\nadd.u64 %d2, %d2, %base;\nst.global.u32 [%d2], %r2;",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    let expected: Vec<u32> = (0..32).map(|lane| 321 + lane).collect();
    assert_eq!(bench.get::<u32>(0, 32), expected);
}

/// A kernel's own parameters are still found by their address.
#[test]
fn parameters_of_kernels_are_read_through_their_address() {
    let bench = module(
        "",
        "mov.b64 %d1, p0;\nld.param.u64 %d2, [%d1];\ncvta.param.u64 %d3, %d1;\n\
         ld.u64 %d4, [%d3];\nst.global.v2.u64 [%base], {%d2, %d4};",
    );
    bench.run("test", 1, 32, &[BASE]).unwrap();
    assert_eq!(bench.get::<u64>(0, 2), [BASE, BASE]);
}

#[test]
fn a_source_may_be_a_register_and_an_offset() {
    let bench = module(
        "",
        ".local .align 8 .b8 slot[8];\nmov.u64 %d1, 41;\nst.u64 [slot], %d1 + 1;\n\
         ld.u64 %d2, [slot];\nmov.u32 %r1, 5;\nmov.u32 %r2, %r1-7;\n\
         st.global.u64 [%base], %d2;\nst.global.u32 [%base+8], %r2;",
    );
    bench.run("test", 1, 1, &[BASE]).unwrap();
    assert_eq!((bench.get::<u64>(0, 1)[0], bench.get::<i32>(8, 1)[0]), (42, -2));
}

/// Hardware's flag behind a subtraction is the inverted borrow.
#[test]
fn the_carry_behind_a_subtraction_is_the_inverted_borrow() {
    let bench = module(
        "",
        "mov.u32 %r1, 3;\nsub.cc.s32 %r2, %r1, 5;\naddc.u32 %r3, 0, 0;\n\
         sub.cc.s32 %r2, %r1, 2;\naddc.u32 %r4, 0, 0;\n\
         add.cc.u32 %r2, %r1, -1;\nsubc.u32 %r5, 10, 0;\n\
         add.cc.u32 %r2, %r1, 1;\nsubc.u32 %r6, 10, 0;\n\
         st.global.v4.u32 [%base], {%r3, %r4, %r5, %r6};",
    );
    bench.run("test", 1, 1, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(0, 4), [0, 1, 10, 9]);
}

#[test]
fn pairs_of_halves_are_compared_into_integers() {
    let bench = module(
        "",
        "mov.b32 %r1, 0x3c004000;\nmov.b32 %r2, 0x7e003c00;\n\
         set.gtu.u32.f16x2 %r3, %r1, %r2;\nset.gt.s32.f16x2 %r4, %r1, %r2;\n\
         set.lt.u32.bf16x2 %r5, %r1, %r2;\nst.global.v4.u32 [%base], {%r3, %r4, %r5, 0};",
    );
    bench.run("test", 1, 1, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(0, 3), [0xffff_ffff, 0xffff, 0xffff_0000]);
}

/// The launch asks for 4,096 bytes of dynamic shared memory, the array has 8,192.
#[test]
fn an_extern_array_has_at_least_its_own_size() {
    let bench = module(
        ".extern .shared .align 8 .b8 buffer[8192];",
        "mov.u64 %d1, buffer;\nst.shared.u32 [%d1+8188], 7;\nld.shared.u32 %r1, [buffer+8188];\n\
         st.global.u32 [%base], %r1;",
    );
    bench.run("test", 1, 1, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(0, 1), [7]);
}

/// Taichi's kernels have one for each of their arrays. The launch's own memory is behind them.
#[test]
fn extern_arrays_with_sizes_do_not_share_a_place() {
    let bench = module(
        ".extern .shared .align 8 .b8 one[8];\n.extern .shared .align 16 .b8 two[20];\n\
         .extern .shared .align 16 .b8 dynamic[];\n.shared .align 4 .b8 fixed[4];",
        "st.shared.u32 [one], 1;\nst.shared.u32 [one+4], 2;\n\
         st.shared.u32 [two], 3;\nst.shared.u32 [two+16], 4;\nst.shared.u32 [dynamic], 5;\n\
         st.shared.u32 [dynamic+4092], 6;\nst.shared.u32 [fixed], 7;\n\
         ld.shared.u32 %r1, [one];\nld.shared.u32 %r2, [one+4];\n\
         st.global.v2.u32 [%base], {%r1, %r2};\n\
         ld.shared.u32 %r1, [two];\nld.shared.u32 %r2, [two+16];\n\
         st.global.v2.u32 [%base+8], {%r1, %r2};\n\
         ld.shared.u32 %r1, [dynamic];\nld.shared.u32 %r2, [dynamic+4092];\n\
         st.global.v2.u32 [%base+16], {%r1, %r2};\n\
         ld.shared.u32 %r1, [fixed];\nst.global.u32 [%base+24], %r1;",
    );
    bench.run("test", 1, 1, &[BASE]).unwrap();
    assert_eq!(bench.get::<u32>(0, 7), [1, 2, 3, 4, 5, 6, 7]);
}

/// `%.10d` and its kin; widths and precisions that are arguments, also negative ones.
#[test]
fn printf_formats_as_c_does() {
    let format = "%.10d|%+.3i|%#x|%*d|%-.*s|\0";
    let bytes: Vec<String> = format.bytes().map(|byte| byte.to_string()).collect();
    let bench = module(
        &format!(
            ".extern .func (.param .b32 status) vprintf(.param .b64 format, .param .b64 values);\n\
             .global .align 1 .b8 text[{}] = {{{}}};",
            bytes.len(),
            bytes.join(", ")
        ),
        ".local .align 8 .b8 slots[48];\n.reg .b64 %g;\n.reg .b64 %l;\n\
         mov.u64 %l, slots;\ncvta.local.u64 %l, %l;\nmov.u64 %g, text;\ncvta.global.u64 %g, %g;\n\
         st.u32 [%l], 42;\nst.u32 [%l+4], -7;\nst.u32 [%l+8], 255;\nst.u32 [%l+12], -5;\n\
         st.u32 [%l+16], 3;\nst.u32 [%l+20], 4;\nst.u64 [%l+24], %g;\n\
         {\n.param .b64 f, v; .param .b32 s;\nst.param.b64 [f], %g;\nst.param.b64 [v], %l;\n\
         call (s), vprintf, (f, v);\n}\n",
    );
    bench.run("test", 1, 1, &[BASE]).unwrap();
    let printed = bench.clock.printed.lock().unwrap().clone();
    assert_eq!(printed, "0000000042|-007|0xff|3    |%.10|");
}
