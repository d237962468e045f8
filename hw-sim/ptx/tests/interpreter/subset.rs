//! The table of supported instructions against the decoder: one example for each of its lines.

use hwsim_ptx::{Module, supported};

const EXAMPLES: &[&str] = &[
    "abs.bf16x2 %r1, %r2",
    "activemask.b32 %r1",
    "add.rz.ftz.sat.f32 %f1, %f2, %f3",
    "addc.cc.u64 %d1, %d2, %d3",
    "and.pred %p1, %p2, !%p3",
    "applypriority.global.L2::evict_normal [%base], 128",
    "atom.acq_rel.sys.global.cas.b64 %d1, [%base], %d2, %d3",
    "bar.red.popc.u32 %r1, 0, %p1",
    "barrier.cta.sync.aligned 1, 64",
    "bfe.s64 %d1, %d2, %r1, %r2",
    "bfi.b64 %d1, %d2, %d3, %r1, %r2",
    "bfind.shiftamt.s64 %r1, %d1",
    "bmsk.wrap.b32 %r1, %r2, %r3",
    "bra.uni HERE",
    "brev.b64 %d1, %d2",
    "brkpt",
    "brx.idx %r1, TABLE",
    "call helper, ()",
    "clz.b64 %r1, %d1",
    "cnot.b16 %h1, %h2",
    "copysign.f64 %g1, %g2, %g3",
    "cos.approx.ftz.f32 %f1, %f2",
    "cvt.rn.relu.f16x2.f32 %r1, %f1, %f2",
    "cvta.to.shared.u64 %d1, %d2",
    "discard.global.L2 [%base], 128",
    "div.full.ftz.f32 %f1, %f2, %f3",
    "dp2a.lo.s32.u32 %r1, %r2, %r3, %r4",
    "dp4a.u32.u32 %r1, %r2, %r3, %r4",
    "elect.sync _|%p1, %r1",
    "ex2.approx.ftz.f32 %f1, %f2",
    "exit",
    "fence.proxy.async.global",
    "fma.rn.ftz.sat.f16x2 %r1, %r2, %r3, %r4",
    "griddepcontrol.wait",
    "isspacep.shared %p1, %d1",
    "ld.relaxed.gpu.global.L1::no_allocate.L2::128B.v4.f32 {%f1, %f2, _, %f4}, [%base+16]",
    "ldu.global.u32 %r1, [%base]",
    "lg2.approx.f32 %f1, %f2",
    "lop3.b32 %r1, %r2, %r3, %r4, 0x80",
    "mad.lo.cc.u32 %r1, %r2, %r3, %r4",
    "mad24.lo.s32 %r1, %r2, %r3, %r4",
    "madc.hi.cc.s64 %d1, %d2, %d3, %d4",
    "match.all.sync.b64 %r1|%p1, %d1, -1",
    "max.NaN.bf16 %h1, %h2, %h3",
    "membar.sys",
    "min.u16 %h1, %h2, %h3",
    "mov.b64 {%r1, _}, %d1",
    "mul.wide.s16 %r1, %h1, %h2",
    "mul24.hi.u32 %r1, %r2, %r3",
    "nanosleep.u32 20",
    "neg.ftz.f32 %f1, %f2",
    "not.b64 %d1, %d2",
    "or.b16 %h1, %h2, %h3",
    "pmevent 7",
    "popc.b64 %r1, %d1",
    "prefetch.global.L2 [%base]",
    "prefetchu.L1 [%base]",
    "prmt.b32.rc16 %r1, %r2, %r3, %r4",
    "rcp.approx.ftz.f64 %g1, %g2",
    "red.relaxed.gpu.global.add.noftz.f16x2 [%base], %r1",
    "redux.sync.xor.b32 %r1, %r2, -1",
    "rem.s64 %d1, %d2, %d3",
    "ret",
    "rsqrt.approx.f64 %g1, %g2",
    "sad.u16 %h1, %h2, %h3, %h4",
    "selp.f64 %g1, %g2, %g3, %p1",
    "set.ltu.and.f32.f64 %f1, %g1, %g2, %p1",
    "setmaxnreg.inc.sync.aligned.u32 40",
    "setp.num.xor.f16x2 %p1|%p2, %r1, %r2, %p3",
    "shf.r.wrap.b32 %r1, %r2, %r3, %r4",
    "shfl.sync.up.b32 %r1|%p1, %r2, 1, 0, -1",
    "shl.b16 %h1, %h2, %r1",
    "shr.s16 %h1, %h2, 3",
    "sin.approx.f32 %f1, %f2",
    "slct.f32.s32 %f1, %f2, %f3, %r1",
    "sqrt.approx.ftz.f32 %f1, %f2",
    "st.release.sys.global.v2.b64 [%base+16], {%d1, 5}",
    "sub.cc.s32 %r1, %r2, %r3",
    "subc.u32 %r1, %r2, %r3",
    "szext.clamp.s32 %r1, %r2, %r3",
    "tanh.approx.bf16x2 %r1, %r2",
    "testp.infinite.f64 %p1, %g1",
    "trap",
    "vote.sync.uni.pred %p1, !%p2, -1",
    "xor.b32 %r1, %r2, %r3",
];

#[test]
fn the_table_names_what_decodes() {
    let mut named = Vec::new();
    for example in EXAMPLES {
        let opcode = example.split(['.', ' ']).next().unwrap();
        named.push(opcode);
        let kernel = crate::common::module_text(&format!(
            "TABLE: .branchtargets HERE, HERE;\n{example};\nHERE:"
        ));
        let (header, kernel) = kernel.split_at(kernel.find(".visible").unwrap());
        let text = format!("{header}.func helper() {{ ret; }}\n{kernel}");
        if let Err(error) = Module::load(&text) {
            panic!("{error}");
        }
    }
    let listed: Vec<&str> = supported().iter().map(|opcode| opcode.name).collect();
    assert_eq!(listed, named, "the table and these examples must name the same opcodes");
}
