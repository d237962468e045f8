//! The parser on `by_hand/syntax.ptx`: legal PTX (ptxas accepts it) in forms that no compiler
//! emits today.

mod common;

use common::{instructions, shape};
use hwsim_ptx::ast::{
    Body, Function, Initializer, Instruction, Linkage, Module, Operand, ScalarType, StateSpace,
    Statement, Variable,
};

fn module() -> Module {
    common::module("syntax.ptx", include_str!("by_hand/syntax.ptx"))
}

fn variable(module: &Module, name: &str) -> Variable {
    module.variables.iter().find(|variable| variable.name == name).expect(name).clone()
}

fn function(module: &Module, name: &str) -> Function {
    module.functions.iter().find(|function| function.name == name).expect(name).clone()
}

fn body() -> Body {
    function(&module(), "forms").body.unwrap()
}

/// The first instruction of `forms` with this opcode and these modifiers whose operands satisfy
/// nothing further.
fn all(written: &str) -> Vec<Instruction> {
    let module = module();
    let found = instructions(&module).filter(|instruction| shape(instruction) == written);
    found.cloned().collect()
}

fn name(text: &str) -> Operand {
    Operand::Name(text.to_owned())
}

fn address(base: &str, offset: i64) -> Operand {
    Operand::Address { base: Some(base.to_owned()), offset }
}

#[test]
fn module_variables_keep_type_shape_and_value() {
    let module = module();
    let managed = variable(&module, "managed");
    assert_eq!(managed.linkage, Linkage::Visible);
    assert_eq!((managed.space, managed.scalar), (StateSpace::Global, ScalarType::U32));
    assert_eq!((managed.align, managed.dimensions), (Some(4), vec![2, 3]));
    let row = |values: [i128; 3]| Initializer::List(values.map(Initializer::Integer).to_vec());
    let rows = Initializer::List(vec![row([1, 2, 3]), row([4, 5, 6])]);
    assert_eq!(managed.initializer, Some(rows));

    let singles = Initializer::List(vec![
        Initializer::FloatBits32(0x3f80_0000),
        Initializer::Float(-1.5),
        Initializer::Float(0.25),
        Initializer::FloatBits32(0x7fc0_0001),
    ]);
    assert_eq!(variable(&module, "singles").initializer, Some(singles));
    assert_eq!(variable(&module, "singles").dimensions, [0]);
    assert_eq!(variable(&module, "next_single").scalar, ScalarType::F32);

    let symbol = |name: &str, offset, generic| Initializer::Symbol {
        name: name.to_owned(),
        offset,
        generic,
    };
    let pointers = Initializer::List(vec![
        symbol("managed", 0, false),
        symbol("managed", 4, false),
        symbol("managed", 0, true),
        symbol("singles", 8, true),
    ]);
    assert_eq!(variable(&module, "pointers").initializer, Some(pointers));

    let quad = variable(&module, "quad");
    assert_eq!((quad.space, quad.vector), (StateSpace::Const, 4));
    let bytes = Initializer::List([255, 3, 8, 32].map(Initializer::Integer).to_vec());
    assert_eq!(quad.initializer, Some(bytes));
    assert_eq!(variable(&module, "shared_by_name").linkage, Linkage::Common);
    assert_eq!(variable(&module, "dynamic").dimensions, [0]);
    let weak = variable(&module, "weak_one");
    assert_eq!(weak.linkage, Linkage::Weak);
    assert_eq!(weak.initializer, Some(Initializer::Integer(i64::MIN.into())));
}

#[test]
fn signatures_keep_parameters_limits_and_hints() {
    let module = module();
    assert_eq!((module.version, module.target.as_str()), ((7, 8), "sm_90"));

    let report = function(&module, "report");
    assert_eq!((report.linkage, report.body), (Linkage::Extern, None));
    assert_eq!((report.returns.len(), report.params.len()), (1, 2));

    let old_style = function(&module, "old_style");
    assert_eq!(old_style.returns[0].space, StateSpace::Reg);

    let never = function(&module, "never");
    assert_eq!((never.linkage, never.hints), (Linkage::Weak, vec!["noreturn".to_owned()]));

    let forms = function(&module, "forms");
    assert!(forms.is_entry);
    assert_eq!((forms.max_block, forms.block_is_exact), (Some([128, 2, 1]), false));
    assert_eq!(forms.hints, ["minnctapersm 2", "maxnreg 64"]);
    // The alignment behind `.ptr` is that of the buffer, not of the parameter.
    assert_eq!(forms.params[0].align, None);
    assert_eq!((forms.params[1].align, &forms.params[1].dimensions[..]), (Some(8), &[24][..]));

    let exactly = function(&module, "exactly");
    assert_eq!((exactly.max_block, exactly.block_is_exact), (Some([32, 1, 1]), true));
    let clusters = exactly.clusters;
    assert_eq!((clusters.required, clusters.explicit), (Some([2, 1, 1]), true));
    assert_eq!((clusters.most, clusters.counted), (None, false));
}

#[test]
fn addresses_take_every_offset() {
    let addresses: Vec<Operand> =
        all("ld.global.u32").into_iter().map(|i| i.operands[1].clone()).collect();
    let expected = [address("%rd1", 16), address("%rd1", -8), address("managed", 4)];
    assert_eq!(addresses, expected);
    assert_eq!(all("ld.shared.f32")[0].operands[1], address("tile", 76));
    assert_eq!(all("ld.global.v4.u32")[0].operands[1], address("%rd1", -16));
    let offset = Operand::NameOffset("managed".to_owned(), 8);
    assert!(all("mov.u64").iter().any(|instruction| instruction.operands[1] == offset));
}

#[test]
fn operands_take_every_form() {
    let vector = Operand::Vector(vec![name("%f0"), Operand::Sink]);
    assert_eq!(all("ld.param.v2.f32")[0].operands[0], vector);

    let compare = &all("setp.lt.and.s32")[0].operands;
    assert_eq!(compare[0], Operand::Pair(Box::new(name("%p0")), Box::new(name("%p1"))));
    assert_eq!(compare[3], Operand::Negated("%p2".to_owned()));
    let sink = Operand::Pair(Box::new(name("%r10")), Box::new(Operand::Sink));
    assert_eq!(all("shfl.sync.up.b32")[0].operands[0], sink);
    assert_eq!(all("shfl.sync.idx.b32")[0].operands[4], Operand::Integer(-1));

    assert_eq!(all("setp.ne.u32")[0].operands[2], Operand::Integer(0xffff_ffff));
    assert_eq!(all("mul.lo.s32")[0].operands[2], Operand::Integer(64));
    assert_eq!(all("fma.rn.f32")[0].operands[2..], [Operand::Float(2.0), Operand::Float(-5.0)]);
    assert_eq!(all("mov.f64")[0].operands[1], Operand::Float(std::f64::consts::PI));
    let bits = Operand::FloatBits32(0x4049_0fdb);
    assert!(all("mov.f32").iter().any(|instruction| instruction.operands[1] == bits));
    assert!(all("mov.f32").iter().any(|instruction| instruction.operands[1] == name("%pair.y")));
    assert!(all("mov.u32").iter().any(|instruction| instruction.operands[1] == name("%tid.x")));
    assert_eq!(all("vadd.s32.s32.u32.sat")[0].operands[1], name("%r1.b0"));
}

#[test]
fn guards_and_lines_survive_several_instructions_a_line() {
    let add = all("add.s32").into_iter().find(|add| add.guard.is_some()).unwrap();
    let sub = &all("sub.s32")[0];
    let multiply = &all("mul.lo.s32")[0];
    let guards: Vec<_> = [&add, sub].map(|one| one.guard.clone().unwrap().negated).to_vec();
    assert_eq!(guards, [false, true]);
    assert_eq!((sub.line, multiply.line), (add.line, add.line + 1));
    assert_eq!(sub.operands[2], Operand::Integer(!3));
    let load = &all("ld.relaxed.sys.global.L1::no_allocate.u32")[0];
    assert_eq!(load.modifiers, ["relaxed", "sys", "global", "L1::no_allocate", "u32"]);
}

/// Which copy a name of a nested scope means; a wrong one is a wrong result without any message.
#[test]
fn nested_scopes_hide_names_and_labels() {
    let moves: Vec<(Operand, Operand)> = all("mov.b32")
        .into_iter()
        .map(|instruction| (instruction.operands[0].clone(), instruction.operands[1].clone()))
        .collect();
    let expected = [
        // `%r<2>` hides %r0 and %r1 of `%r<20>`, not %r2.
        ("%r#1#1", "%r2"),
        ("t#1", "%r#1#1"),
        // Two levels deep: t is the inner one, %r1 that of the scope around it.
        ("t#2", "%r#1#1"),
        // The next scope sees nothing of its predecessor.
        ("t#3", "%r1"),
    ];
    assert_eq!(moves, expected.map(|(to, from)| (name(to), name(from))));
    let targets: Vec<Operand> =
        all("bra").into_iter().map(|branch| branch.operands[0].clone()).collect();
    // Forward, forward in the inner scope, and out to the function's own.
    assert_eq!(targets, ["inner#1", "inner#2", "outer"].map(name));
    assert_eq!(all("bra.uni")[0].operands, [name("inner#3")]);

    let body = body();
    let label = |label: &str| Statement::Label(label.to_owned());
    for wanted in ["inner#1", "inner#2", "inner#3", "outer", "case0"] {
        assert!(body.statements.contains(&label(wanted)), "{wanted}");
    }
    let params: Vec<&str> = body
        .variables
        .iter()
        .filter(|variable| variable.space == StateSpace::Param)
        .map(|variable| variable.name.as_str())
        .collect();
    assert_eq!(params, ["argument#4", "answer#4", "argument#5", "answer#5"]);
    assert_eq!(all("call.uni")[0].operands[2], Operand::List(vec![name("argument#4")]));
}

#[test]
fn calls_take_every_form() {
    let calls: Vec<Vec<Operand>> = all("call").into_iter().map(|call| call.operands).collect();
    let list = |names: &[&str]| Operand::List(names.iter().map(|item| name(item)).collect());
    let (answer, argument) = (list(&["answer#5"]), list(&["argument#5"]));
    assert_eq!(calls[0], [answer.clone(), name("%rd4"), argument.clone(), name("prototype#5")]);
    assert_eq!(calls[1], [answer, name("%rd4"), argument, name("choices#5")]);
    let mixed = Operand::List(vec![name("%r16"), Operand::Integer(7)]);
    assert_eq!(calls[2], [list(&["%r18"]), name("old_style"), mixed]);
    assert_eq!(calls[3], [name("never")]);
    assert_eq!(calls[4], [name("never"), list(&[])]);

    let body = body();
    let (label, returns, params) = &body.prototypes[0];
    assert_eq!((label.as_str(), returns.len(), params.len()), ("prototype#5", 1, 1));
    let lists = [
        ("choices#5".to_owned(), vec!["first".to_owned(), "second".to_owned()]),
        ("table".to_owned(), ["case0", "case1", "outer"].map(str::to_owned).to_vec()),
    ];
    assert_eq!(body.target_lists, lists);
    assert_eq!(all("brx.idx.uni")[0].operands, [name("%r18"), name("table")]);
}

#[test]
fn registers_keep_ranges_and_vectors() {
    let body = body();
    let find = |name: &str| body.registers.iter().find(|one| one.name == name).expect(name);
    assert_eq!((find("%r").count, find("%r").scalar), (Some(20), ScalarType::B32));
    assert_eq!((find("%solo").count, find("%solo").scalar), (None, ScalarType::Pred));
    assert_eq!((find("%pair").vector, find("%pair").scalar), (2, ScalarType::F32));
    assert_eq!(find("%r#1#").count, Some(2));
    assert_eq!(body.variables[0].align, Some(16));
    assert_eq!(body.variables[1].dimensions, [4, 8]);
}
