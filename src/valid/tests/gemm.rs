use super::{Base, breaks, full, load, shape};
use crate::entity::BufferId;
use crate::ir::{AxisRange, Compute, ConstValue, DType, ExprOp, Factor, Gemm, NodeOp, Operand, Role, View};

/// A base with states `a` [4, 3], `b` [3, 8] and a product of them into `h` [4, 8].
fn product(change: impl FnOnce(&mut Base, &mut Gemm)) -> Base {
    let mut base = Base::new();
    let a = base.buffer("a", Role::State, DType::F32, &[4, 3]);
    let b = base.buffer("b", Role::State, DType::F32, &[3, 8]);
    let mut gemm = Gemm {
        a: operand(a, &[4, 3]),
        b: operand(b, &[3, 8]),
        d: full("h"),
        alpha: Factor::Const(1.0),
        add: None,
        compute: Compute::F32,
        epilogue: None,
    };
    change(&mut base, &mut gemm);
    base.add(NodeOp::Gemm(gemm));
    base
}

fn operand(buffer: BufferId, dims: &[u32]) -> Operand {
    Operand { view: View::full(buffer, &shape(dims)), transposed: false }
}

/// Protects: inner extents agree, and D takes the outer ones, transposed or not.
#[test]
fn extents_of_a_product() {
    product(|_, _| {}).keeps_every_rule();
    product(|base, gemm| {
        let turned = base.buffer("bt", Role::State, DType::F32, &[8, 3]);
        gemm.b = Operand { transposed: true, ..operand(turned, &[8, 3]) };
    })
    .keeps_every_rule();
    breaks!(product(|_, gemm| gemm.a.transposed = true), GemmDims, "[3, 4] and [3, 8] is not [4, 8]");
    breaks!(product(|_, gemm| gemm.d = super::boxed("h", &[(0, 4), (0, 7)])), GemmDims, "is not [4, 7]");
    breaks!(
        product(|_, gemm| gemm.add = Some((Factor::Const(1.0), super::boxed("s", &[(0, 4), (0, 7)])))),
        ShapeMismatch,
        "c has the shape [4, 7], expected [4, 8]"
    );
    let vector = product(|base, gemm| {
        let id = base.buffer("v", Role::State, DType::F32, &[4]);
        gemm.a = operand(id, &[4]);
    });
    breaks!(vector, ShapeMismatch, "a has the shape [4], expected a matrix");
}

/// Protects: the combinations of types are those that libraries compute.
#[test]
fn types_of_a_product() {
    let integers = product(|base, gemm| {
        let id = base.buffer("i", Role::State, DType::I32, &[4, 3]);
        gemm.a = operand(id, &[4, 3]);
    });
    breaks!(integers, TypeMismatch, "a is i32, expected f32 or bf16");
    let mixed = product(|base, gemm| {
        let id = base.buffer("half", Role::State, DType::Bf16, &[3, 8]);
        gemm.b = operand(id, &[3, 8]);
    });
    breaks!(mixed, TypeMismatch, "b is bf16, expected f32");
    let narrow = product(|base, gemm| {
        let id = base.buffer("half", Role::State, DType::Bf16, &[4, 8]);
        gemm.d = View::full(id, &shape(&[4, 8]));
    });
    breaks!(narrow, TypeMismatch, "d is bf16, expected f32");
    let factor = product(|base, gemm| gemm.alpha = Factor::Scalar(base.cell("n")));
    breaks!(factor, TypeMismatch, "alpha is u32, expected f32");
    product(|base, gemm| gemm.add = Some((Factor::Scalar(base.cell("lr")), full("s")))).keeps_every_rule();
}

/// Protects: a matrix has a leading dimension: its rows lie side by side.
#[test]
fn rows_with_gaps() {
    let sliced = |axes: [bool; 3]| {
        product(|base, gemm| {
            let cube = base.buffer("cube", Role::State, DType::F32, &[4, 3, 3]);
            let ranges = axes.map(|dropped| AxisRange { start: 0, len: if dropped { 1 } else { 3 }, dropped });
            let mut view = View::from_ranges(cube, &ranges).expect("few axes");
            if !axes[0] {
                view.ranges_mut()[0].len = 4;
            }
            gemm.a = Operand { view, transposed: false };
        })
    };
    sliced([false, true, false]).keeps_every_rule();
    breaks!(sliced([false, false, true]), NotContiguous, "a row of a is not contiguous");
}

/// Protects: an epilogue gives one f32, and may use `acc`.
#[test]
fn epilogues() {
    product(|_, gemm| gemm.epilogue = Some(super::expr([ExprOp::Acc]))).keeps_every_rule();
    product(|_, gemm| gemm.epilogue = Some(super::expr([load(full("s"))]))).keeps_every_rule();
    let integer = product(|_, gemm| gemm.epilogue = Some(super::expr([ExprOp::Const(ConstValue::U32(1))])));
    breaks!(integer, TypeMismatch, "the epilogue is u32, expected f32");
    let none = product(|_, gemm| gemm.epilogue = Some(Default::default()));
    breaks!(none, ResultCount, "epilogue has 0 results");
}

/// Protects: a product reads no memory that it writes, unless C is D itself.
#[test]
fn products_in_place() {
    let square = |change: fn(&mut Gemm, View)| {
        product(|base, gemm| {
            let id = base.buffer("q", Role::State, DType::F32, &[8, 8]);
            let view = View::full(id, &shape(&[8, 8]));
            let other = base.buffer("p", Role::State, DType::F32, &[8, 8]);
            (gemm.a, gemm.b, gemm.d) = (operand(other, &[8, 8]), operand(other, &[8, 8]), view);
            change(gemm, view);
        })
    };
    square(|gemm, d| gemm.add = Some((Factor::Const(1.0), d))).keeps_every_rule();
    breaks!(square(|gemm, d| gemm.a.view = d), ReadsOwnOutput, "a reads memory of `q`");
    breaks!(square(|gemm, d| gemm.b.view = d), ReadsOwnOutput, "b reads memory of `q`");
    breaks!(
        square(|gemm, d| gemm.epilogue = Some(super::expr([load(d)]))),
        ReadsOwnOutput,
        "the epilogue reads memory of `q`"
    );
    let shifted = product(|base, gemm| {
        let id = base.buffer("tall", Role::State, DType::F32, &[6, 8]);
        let rows = |start| {
            let rows = AxisRange { start, len: 4, dropped: false };
            View::from_ranges(id, &[rows, AxisRange { start: 0, len: 8, dropped: false }]).expect("few axes")
        };
        gemm.d = rows(0);
        gemm.add = Some((Factor::Const(1.0), rows(2)));
    });
    breaks!(shifted, ReadsOwnOutput, "c reads memory of `tall`");
}
