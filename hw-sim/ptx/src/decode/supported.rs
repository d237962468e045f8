//! The instruction subset as data, for documents and tests.

/// One opcode of the subset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode {
    /// First word.
    pub name: &'static str,
    /// Types and modifiers in words.
    pub forms: &'static str,
}

const INTEGER: &str = "u16 u32 u64 s16 s32 s64";
const BITS: &str = "b16 b32 b64";

/// Every opcode that decodes.
pub const fn supported() -> &'static [Opcode] {
    SUPPORTED
}

const fn op(name: &'static str, forms: &'static str) -> Opcode {
    Opcode { name, forms }
}

const SUPPORTED: &[Opcode] = &[
    op("abs", "s16 s32 s64 f16(x2) bf16(x2) f32 f64; .ftz"),
    op("activemask", "b32"),
    op("add", "integers; .sat.s32, .cc; f16(x2) bf16(x2) f32 f64 with rounding, .ftz, .sat"),
    op("addc", "u32 s32 u64 s64; .cc"),
    op("and", "b16 b32 b64 pred"),
    op("applypriority", "no effect"),
    op("atom", "add and or xor min max inc dec exch cas; every scope and order; no vectors"),
    op("bar", "sync arrive red (popc and or), warp.sync"),
    op("barrier", "the same, .aligned or not; .cluster"),
    op("bfe", "u32 u64 s32 s64"),
    op("bfi", "b32 b64"),
    op("bfind", "u32 u64 s32 s64; .shiftamt"),
    op("bmsk", "b32; .clamp .wrap"),
    op("bra", ".uni"),
    op("brev", "b32 b64"),
    op("brkpt", "as trap"),
    op("brx", ".idx"),
    op("call", "direct and indirect; built in: vprintf, __assertfail, malloc, free"),
    op("clz", "b32 b64"),
    op("cnot", BITS),
    op("copysign", "f32 f64"),
    op("cos", ".approx.f32"),
    op(
        "cp",
        ".async.ca .async.cg, done at once; .async.commit_group .wait_group .wait_all; \
         .async.mbarrier.arrive; .async.bulk and .async.bulk.tensor (.tile, .im2col), with \
         .multicast or without, and .reduce.async.bulk and .tensor, done at once",
    ),
    op(
        "cvt",
        "between all integer and float types; roundings, .ftz, .sat; f16x2 bf16x2 packs; tf32; \
         e4m3x2 e5m2x2 from and to f16x2, from f32; .pack.sat",
    ),
    op("cvta", "to and from generic: global shared local const param; u64"),
    op("discard", "no effect"),
    op("div", "integers; f32 f64 with rounding; .approx and .full are exact"),
    op("dp2a", "u32 s32; .lo .hi"),
    op("dp4a", "u32 s32"),
    op("elect", ".sync"),
    op("ex2", ".approx f32 f16(x2) bf16(x2)"),
    op("exit", ""),
    op("fence", ".sc .acq_rel .acquire .release; proxies have no effect"),
    op("fma", "f16(x2) bf16(x2) f32 f64 with rounding, .ftz, .sat, .relu; rounded once"),
    op("getctarank", "u32 u64"),
    op("griddepcontrol", "no effect"),
    op("isspacep", "global shared local const param"),
    op("ld", "every space; v2 v4 v8; .volatile .relaxed .acquire .mmio; cache words ignored"),
    op("ldmatrix", ".m8n8 .x1 .x2 .x4 .trans; b16"),
    op("ldu", "as ld"),
    op("lg2", ".approx.f32"),
    op("lop3", "b32"),
    op("mad", "integers .lo .hi .wide, .hi.sat.s32, .cc; f32 f64"),
    op("mad24", "u32 s32; .lo .hi"),
    op("madc", "u32 s32 u64 s64; .lo .hi; .cc"),
    op("mapa", "u32 u64"),
    op("match", ".any .all; b32 b64"),
    op("max", "integers; f16(x2) bf16(x2) f32 f64; .ftz .NaN"),
    op(
        "mbarrier",
        ".init .inval .arrive .arrive_drop .noComplete .expect_tx .complete_tx .test_wait \
         .try_wait .pending_count",
    ),
    op("membar", ".cta .gl .sys"),
    op("min", "as max"),
    op(
        "mma",
        "m8n8k4 m16n8k8 m16n8k16 f16; m16n8k8 m16n8k16 bf16; m16n8k4 m16n8k8 tf32; \
         m16n8k32 e4m3 e5m2; m8n8k16 m16n8k16 m16n8k32 s8 u8; m8n8k4 m16n8k4 m16n8k8 m16n8k16 \
         f64; no .sp",
    ),
    op("mov", "all types; .v2 .v4 .v8; b128; packs and unpacks; addresses; special registers"),
    op("movmatrix", ".m8n8.trans.b16"),
    op("mul", "integers .lo .hi .wide; f16(x2) bf16(x2) f32 f64 with rounding, .ftz, .sat"),
    op("mul24", "u32 s32; .lo .hi"),
    op("nanosleep", "a nap: others run"),
    op("neg", "s16 s32 s64 f16(x2) bf16(x2) f32 f64; .ftz"),
    op("not", "b16 b32 b64 pred"),
    op("or", "b16 b32 b64 pred"),
    op("pmevent", "no effect"),
    op("popc", "b32 b64"),
    op("prefetch", "no effect"),
    op("prefetchu", "no effect"),
    op("prmt", "b32; all modes"),
    op("rcp", "f32 f64 with rounding; .approx is exact"),
    op("red", "as atom; .async with a barrier"),
    op("redux", "add min max and or xor; u32 s32 b32"),
    op("rem", INTEGER),
    op("ret", ""),
    op("rsqrt", ".approx f32 f64"),
    op("sad", INTEGER),
    op("selp", "16, 32 and 64 bits"),
    op("set", "integers f16(x2) bf16(x2) f32 f64 to u16 s16 u32 s32 f16(x2) bf16(x2) f32"),
    op("setmaxnreg", "no effect"),
    op("setp", "integers f16(x2) bf16(x2) f32 f64; all comparisons; and or xor"),
    op("shf", ".l .r .clamp .wrap b32"),
    op("shfl", ".up .down .bfly .idx; with or without .sync"),
    op("shl", BITS),
    op("shr", "b16 b32 b64 and integers"),
    op("sin", ".approx.f32"),
    op("slct", "by s32 or f32"),
    op("sqrt", "f32 f64 with rounding; .approx is exact"),
    op("st", "as ld; .async with a barrier"),
    op("stmatrix", "as ldmatrix"),
    op("sub", "as add; .cc leaves the inverted borrow in the carry"),
    op("subc", "as addc"),
    op("szext", "u32 s32; .clamp .wrap"),
    op("tanh", ".approx f32 f16(x2) bf16(x2)"),
    op("tensormap", ".replace.tile .cp_fenceproxy"),
    op("testp", "f32 f64"),
    op("trap", "ends the kernel with an error"),
    op("vabsdiff", "as vadd"),
    op("vabsdiff2", "as vadd2"),
    op("vabsdiff4", "as vadd2"),
    op("vadd", "u32 s32; .sat; .add .min .max; parts .b0 to .b3, .h0 .h1"),
    op("vadd2", "u32 s32; .sat; .add; no masks, no choice of parts"),
    op("vadd4", "as vadd2"),
    op("vavrg2", "as vadd2"),
    op("vavrg4", "as vadd2"),
    op("vmax", "as vadd"),
    op("vmax2", "as vadd2"),
    op("vmax4", "as vadd2"),
    op("vmin", "as vadd"),
    op("vmin2", "as vadd2"),
    op("vmin4", "as vadd2"),
    op("vote", ".all .any .uni .ballot; with or without .sync"),
    op("vset", "eq ne lt le gt ge; otherwise as vadd"),
    op("vset2", "eq ne lt le gt ge; otherwise as vadd2"),
    op("vset4", "as vset2"),
    op("vshl", ".clamp .wrap; otherwise as vadd"),
    op("vshr", "as vshl"),
    op("vsub", "as vadd"),
    op("vsub2", "as vadd2"),
    op("vsub4", "as vadd2"),
    op(
        "wgmma",
        ".mma_async, done at once: m64n8k16 to m64n256k16 f16 bf16, k8 tf32, k32 e4m3 e5m2 s8 u8; \
         .fence .commit_group .wait_group; no .sp",
    ),
    op(
        "wmma",
        ".load .mma .store: m16n16k16 m32n8k16 m8n32k16 f16 bf16 s8 u8; m16n16k8 tf32; m8n8k4 f64",
    ),
    op("xor", "b16 b32 b64 pred"),
];
