use std::sync::Arc;

use super::{Base, breaks, full, shape};
use crate::entity::KernelId;
use crate::ir::{
    Arg, AxisRange, ConstValue, DType, Dim, Group, KernelCall, KernelDecl, KernelParam, KernelSource, LaunchRule,
    NodeOp, ParamClass, PdlContract, Program, ProgramError, Role, SharedRule, View,
};

const SOURCE: &str = "extern \"C\" __global__ void k(const float* x, float* y, const float* a, unsigned int c, \
                      unsigned int n) {}";

fn param(name: &str, class: ParamClass, dtype: DType, symbols: &[&str]) -> KernelParam {
    let shape = symbols.iter().map(|&symbol| Dim::Symbol(symbol.into())).collect::<Vec<_>>();
    KernelParam { name: name.into(), class, dtype, shape: (!shape.is_empty()).then_some(shape) }
}

/// `k(x: In [r, n], y: Out [r, n], a: Scalar, c: Const<u32>, n: Size)`.
fn decl() -> KernelDecl {
    KernelDecl {
        name: "k".into(),
        source: KernelSource { file: "k.cu".into(), text: Arc::from(SOURCE) },
        params: vec![
            param("x", ParamClass::In, DType::F32, &["r", "n"]),
            param("y", ParamClass::Out, DType::F32, &["r", "n"]),
            param("a", ParamClass::Scalar, DType::F32, &[]),
            param("c", ParamClass::Const, DType::U32, &[]),
            param("n", ParamClass::Size, DType::U32, &[]),
        ],
        launch: LaunchRule::Rows { of: "x".into(), block: 32 },
        shared: SharedRule { base: 0, per_unit: Some((4, "n".into())) },
        cluster: None,
        cooperative: false,
        pdl: None,
    }
}

/// Declares the kernel of this file.
pub(super) fn declare(base: &mut Base) -> KernelId {
    base.program.kernels.push(decl())
}

/// Lets both buffers of the kernel be flat.
pub(super) fn flatten(decl: &mut KernelDecl) {
    decl.params[0].shape = Some(vec![Dim::Symbol("n".into())]);
    decl.params[1].shape = Some(vec![Dim::Symbol("n".into())]);
}

fn args(base: &Base) -> Vec<Arg> {
    vec![Arg::View(full("x")), Arg::View(full("h")), Arg::Scalar(base.cell("lr")), Arg::Const(ConstValue::U32(3))]
}

fn call(change: impl FnOnce(&mut Base, &mut Vec<Arg>)) -> Base {
    let mut base = Base::new();
    let kernel = declare(&mut base);
    let mut args = args(&base);
    change(&mut base, &mut args);
    base.add(NodeOp::Kernel(KernelCall { kernel, args }));
    base
}

/// Protects: an argument is of the declared class; a bare number never stands for a quantity that changes.
#[test]
fn classes_of_arguments() {
    call(|_, _| {}).keeps_every_rule();
    breaks!(call(|_, args| args[2] = Arg::Const(ConstValue::F32(0.1))), ConstForScalar, "`a` changes between launches");
    breaks!(call(|base, args| args[3] = Arg::Scalar(base.cell("n"))), ScalarForConst, "`c` is baked");
    breaks!(call(|_, args| args[2] = Arg::View(full("s"))), ArgClass, "`a` is declared Scalar, but a buffer was given");
    breaks!(call(|base, args| args[0] = Arg::Scalar(base.cell("lr"))), ArgClass, "declared In, but a scalar");
    breaks!(
        call(|_, args| {
            args.pop();
        }),
        MissingArg,
        "the argument `c` of kernel `k` is missing"
    );
    breaks!(call(|_, args| args.push(args[0])), UnknownArg, "kernel `k` has no argument `1 more`");
}

/// Protects: an argument is of the declared type, contiguous, and of the declared shape.
#[test]
fn types_and_shapes_of_arguments() {
    breaks!(call(|base, args| args[2] = Arg::Scalar(base.cell("n"))), TypeMismatch, "`a` is u32, expected f32");
    breaks!(call(|_, args| args[3] = Arg::Const(ConstValue::I32(3))), TypeMismatch, "`c` is i32, expected u32");
    let columns = super::boxed("x", &[(0, 4), (0, 4)]);
    breaks!(call(|_, args| args[0] = Arg::View(columns)).without_symbols(), NotContiguous, "`x` is not contiguous");
    let rows = super::boxed("h", &[(0, 2), (0, 8)]);
    breaks!(call(|_, args| args[1] = Arg::View(rows)), SymbolMismatch, "`y` gives `r` the extent 2, but it is 4");
    let flat = call(|base, args| {
        let id = base.buffer("flat", Role::State, DType::F32, &[32]);
        args[1] = Arg::View(View::full(id, &shape(&[32])));
    });
    breaks!(flat, ShapeMismatch, "`y` has the shape [32], expected [r, n]");
    let half = call(|base, args| {
        let id = base.buffer("half", Role::State, DType::Bf16, &[4, 8]);
        args[0] = Arg::View(View::full(id, &shape(&[4, 8])));
    });
    breaks!(half, TypeMismatch, "`x` is bf16, expected f32");
    let mut fixed = call(|_, _| {});
    for decl in fixed.program.kernels.values_mut() {
        decl.params[1].shape = Some(vec![Dim::Symbol("r".into()), Dim::Fixed(9)]);
    }
    breaks!(fixed, ShapeMismatch, "expected [r, 9]");
    let dropped = AxisRange { start: 2, len: 1, dropped: true };
    let row = View::from_ranges(Base::new().id("x"), &[dropped, AxisRange { start: 0, len: 8, dropped: false }]);
    breaks!(
        call(|_, args| args[0] = Arg::View(row.expect("few axes"))),
        ShapeMismatch,
        "`x` has the shape [8], expected [r, n]"
    );
}

impl Base {
    /// Lets every buffer of the kernel take any shape.
    fn without_symbols(mut self) -> Self {
        for decl in self.program.kernels.values_mut() {
            decl.params.iter_mut().for_each(|param| param.shape = None);
            decl.params.pop();
            decl.shared = SharedRule::default();
            decl.source.text = Arc::from(SOURCE.replace(", unsigned int n)", ")"));
        }
        self
    }
}

/// Protects: a group is one flat axis of its padded length, and symbols bind to it.
#[test]
fn groups_as_arguments() {
    let mut base = Base::new();
    let kernel = declare(&mut base);
    base.program.kernels.values_mut().for_each(flatten);
    let mut groups = [("p", Role::Param), ("g", Role::State)].map(|(name, role)| {
        let members = [("3", 3), ("5", 5)];
        let members =
            members.map(|(suffix, extent)| base.buffer(&format!("{name}{suffix}"), role, DType::F32, &[extent]));
        base.program.groups.push(Group { name: name.into(), members: members.to_vec() })
    });
    let (lr, const_arg) = (Arg::Scalar(base.cell("lr")), Arg::Const(ConstValue::U32(0)));
    let args = vec![Arg::Group(groups[0]), Arg::Group(groups[1]), lr, const_arg];
    let node = base.add(NodeOp::Kernel(KernelCall { kernel, args: args.clone() }));
    let program: Program = base.program.clone();
    let valid = super::validate(program, Default::default(), Default::default()).expect("valid");
    // 3 floats are padded to 4, 5 to 8.
    assert_eq!(valid.sizes(super::first_step(), node).collect::<Vec<_>>(), [("n", 12)]);
    assert_eq!(valid.size(super::first_step(), node, "n"), Some(12));
    assert_eq!(valid.size(super::first_step(), node, "m"), None);

    groups[1] = groups[0];
    let args = vec![Arg::Group(groups[0]), Arg::Group(groups[1]), lr, const_arg];
    base.step().nodes[node].op = NodeOp::Kernel(KernelCall { kernel, args });
    breaks!(base, ReadsOwnOutput, "`x` reads memory of `p3`");
}

/// Protects: `__restrict__` holds: what a kernel writes through one argument no other touches.
#[test]
fn arguments_that_share_memory() {
    breaks!(call(|_, args| args[0] = Arg::View(full("s"))).writes("s"), ReadsOwnOutput, "`x` reads memory of `s`");
    let mut two = Base::new();
    let kernel = declare(&mut two);
    for decl in two.program.kernels.values_mut() {
        decl.params[0].class = ParamClass::Out;
        decl.source.text = Arc::from(SOURCE.replace("const float* x", "float* x"));
    }
    let mut given = args(&two);
    (given[0], given[1]) = (Arg::View(full("s")), Arg::View(full("s")));
    two.add(NodeOp::Kernel(KernelCall { kernel, args: given }));
    breaks!(two, OverlappingOutputs, "x and y overlap in `s`");
}

impl Base {
    /// Lets the kernel's output be all of a buffer.
    fn writes(mut self, name: &str) -> Self {
        let id = crate::entity::NodeId::from_u32(0);
        if let NodeOp::Kernel(call) = &mut self.step().nodes[id].op {
            call.args[1] = Arg::View(full(name));
        }
        self
    }
}

/// Protects: a declaration that cannot work, or differs from its source, is refused before anything is compiled.
#[test]
fn declarations_that_cannot_work() {
    type Damage = dyn Fn(&mut KernelDecl);
    fn symbol(name: &str) -> Option<Vec<Dim>> {
        Some(vec![Dim::Symbol(name.into())])
    }
    let damage: [(&str, &Damage); 17] = [
        ("no `extern", &|decl| decl.name = "other".into()),
        ("the source has 5 parameters, the declaration 4", &|decl| {
            decl.params.pop();
        }),
        ("two parameters are named `x`", &|decl| decl.params[1].name = "x".into()),
        ("only buffers have a shape", &|decl| decl.params[2].shape = symbol("r")),
        ("has 5 axes", &|decl| decl.params[0].shape = Some(vec![Dim::Fixed(1); 5])),
        ("an extent of 0", &|decl| decl.params[0].shape = Some(vec![Dim::Fixed(0)])),
        ("sizes are u32", &|decl| decl.params[4].dtype = DType::F32),
        ("the symbol `n` that the size is named after", &|decl| {
            decl.params[0].shape = symbol("r");
            decl.params[1].shape = symbol("r");
        }),
        ("scalars and constants are", &|decl| decl.params[2].dtype = DType::Bf16),
        ("launch rule has an extent of 0", &|decl| decl.launch = LaunchRule::Rows { of: "x".into(), block: 0 }),
        ("follows `z`, which is no parameter", &|decl| decl.launch = LaunchRule::Rows { of: "z".into(), block: 1 }),
        ("follows `a`, which is Scalar", &|decl| decl.launch = LaunchRule::Rows { of: "a".into(), block: 1 }),
        ("cluster has an extent of 0", &|decl| decl.cluster = Some([1, 0, 1])),
        ("shared memory follows `m`", &|decl| decl.shared.per_unit = Some((4, "m".into()))),
        ("never waits", &|decl| decl.pdl = Some(PdlContract { early: vec![] })),
        ("`y` is read early, but is Out", &|decl| decl.pdl = Some(PdlContract { early: vec!["y".into()] })),
        ("line 1, column 1: this comment is never closed", &|decl| decl.source.text = Arc::from("/*")),
    ];
    for (text, damage) in damage {
        let mut base = call(|_, _| {});
        base.program.kernels.values_mut().for_each(damage);
        let errors = base.errors();
        let named =
            |error: &ProgramError| matches!(error, ProgramError::BadKernel { .. }) && error.to_string().contains(text);
        assert!(errors.iter().any(named), "{text}: {errors:#?}");
    }
}
