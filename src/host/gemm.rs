//! Matrix products through the `gemm` crate, in float32 whatever the operands, and their epilogues.
//!
//! One thread, so that the order of summation, and with it the result, depends on nothing but the operands.

use super::error::HostError;
use super::expr::{Code, Registers};
use super::memory::{Cell, HostMemory};
use super::resolve::Resolver;
use super::store::{Sink, accesses, sinks, store_chunk};
use super::walk::{Access, CHUNK, Walk};
use crate::ir::{Compute, DType, ExprBuilder, ExprOp, Factor, Gemm, Operand, Shape, Store, Target, ValueType, View};

/// A product, ready to run.
#[derive(Clone, Debug)]
pub(super) struct GemmRun {
    a: Matrix,
    b: Matrix,
    /// Rows and columns of D, and the inner extent.
    dims: [usize; 3],
    alpha: Scale,
    add: Option<(Scale, Read)>,
    epilogue: Code,
    walk: Walk,
    sinks: Vec<Sink>,
}

/// Memory for the product and for operands that are not read in place; kept from run to run.
#[derive(Clone, Debug, Default)]
pub(super) struct Packing {
    product: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    addend: Vec<u32>,
}

/// A float32 matrix inside a slice.
#[derive(Clone, Copy, Debug)]
struct Operand2d<'a> {
    words: &'a [f32],
    row_stride: usize,
    column_stride: usize,
}

/// An operand.
#[derive(Clone, Debug)]
struct Matrix {
    read: Read,
    /// Extents and strides as the product takes the operand: after transposition.
    strides: [usize; 2],
    packed_strides: [usize; 2],
    /// What is done to each element; an operand that is read in place needs nothing.
    round: Option<fn(f32) -> f32>,
}

/// A view that is read element by element.
#[derive(Clone, Debug)]
struct Read {
    access: Access,
    walk: Walk,
}

#[derive(Clone, Copy, Debug)]
enum Scale {
    Const(f32),
    Cell(Cell),
}

impl GemmRun {
    pub(super) fn new(resolver: &Resolver<'_>, gemm: &Gemm) -> Result<Self, HostError> {
        let (m, n, k) = gemm.dims().unwrap_or_default();
        let space = Shape::new(&[m, n]).unwrap_or_default();
        let product = {
            let mut builder = ExprBuilder::new();
            let acc = builder.push(ExprOp::Acc);
            builder.finish(&[acc])
        };
        let mut epilogue = Code::new(resolver, gemm.epilogue.as_ref().unwrap_or(&product), ValueType::F32)?;
        let store = Store { target: Target::View(gemm.d), scatter: None };
        let mut sinks = sinks(resolver, &epilogue, &[store])?;
        let walk = epilogue.onto(space.dims(), &[0, 1], accesses(&mut sinks));
        let add = match gemm.add {
            Some((beta, c)) => Some((Scale::new(resolver, beta)?, Read::new(resolver, &c)?)),
            None => None,
        };
        Ok(Self {
            a: Matrix::new(resolver, &gemm.a, gemm.compute)?,
            b: Matrix::new(resolver, &gemm.b, gemm.compute)?,
            dims: [m, n, k].map(|extent| extent as usize),
            alpha: Scale::new(resolver, gemm.alpha)?,
            add,
            epilogue,
            walk,
            sinks,
        })
    }

    pub(super) fn run(&mut self, memory: &mut HostMemory, registers: &mut Registers, packing: &mut Packing) {
        let [m, n, _] = self.dims;
        let Packing { product, a, b, addend } = packing;
        product.clear();
        product.resize(m * n, 0.0);
        multiply(product, self.dims, self.a.operand(memory, a), self.b.operand(memory, b));

        let alpha = self.alpha.value(memory);
        if alpha != 1.0 {
            product.iter_mut().for_each(|p| *p *= alpha);
        }
        if let Some((beta, c)) = &self.add {
            let beta = beta.value(memory);
            c.read(memory, addend);
            product.iter_mut().zip(&*addend).for_each(|(p, &c)| *p += beta * f32::from_bits(c));
        }

        let product: &[u32] = bytemuck::cast_slice(product);
        self.epilogue.begin(&self.walk, memory, registers);
        for (start, len) in self.walk.chunks() {
            let acc = &product[start..][..len];
            self.epilogue.chunk(&self.walk, memory, (start, len), acc, registers);
            store_chunk(&mut self.sinks, &self.epilogue, &self.walk, memory, len, registers);
        }
    }
}

impl Matrix {
    fn new(resolver: &Resolver<'_>, operand: &Operand, compute: Compute) -> Result<Self, HostError> {
        let read = Read::new(resolver, &operand.view)?;
        let in_place = resolver.view(&operand.view)?;
        let columns = operand.view.shape().dims().get(1).copied().unwrap_or(1) as usize;
        let turn = |[row, column]: [usize; 2]| if operand.transposed { [column, row] } else { [row, column] };
        let round: Option<fn(f32) -> f32> = match compute {
            Compute::F32 if in_place.dtype == DType::F32 => None,
            Compute::F32 => Some(|x| x),
            Compute::Tf32 => Some(to_tf32),
            Compute::Bf16 => Some(to_bf16),
        };
        let strides = turn([in_place.steps[0], in_place.steps[1]]);
        Ok(Self { read, strides, packed_strides: turn([columns, 1]), round })
    }

    fn operand<'a>(&self, memory: &'a HostMemory, packed: &'a mut Vec<f32>) -> Operand2d<'a> {
        let Some(round) = self.round else {
            let words: &[f32] = bytemuck::cast_slice(memory.words(self.read.access.region));
            let [row_stride, column_stride] = self.strides;
            return Operand2d { words: &words[self.read.access.first..], row_stride, column_stride };
        };
        packed.resize(self.read.walk.elements(), 0.0);
        self.read.read_into(memory, bytemuck::cast_slice_mut(packed));
        packed.iter_mut().for_each(|x| *x = round(*x));
        let [row_stride, column_stride] = self.packed_strides;
        Operand2d { words: packed, row_stride, column_stride }
    }
}

impl Read {
    fn new(resolver: &Resolver<'_>, view: &View) -> Result<Self, HostError> {
        let mut access = resolver.view(view)?;
        let order: Vec<usize> = (0..view.shape().rank()).collect();
        let walk = Walk::new(view.shape().dims(), &order, &mut [&mut access], &mut []);
        Ok(Self { access, walk })
    }

    fn read(&self, memory: &HostMemory, out: &mut Vec<u32>) {
        out.resize(self.walk.elements(), 0);
        self.read_into(memory, out);
    }

    fn read_into(&self, memory: &HostMemory, out: &mut [u32]) {
        let mut runs = Vec::new();
        for ((start, len), out) in self.walk.chunks().zip(out.chunks_mut(CHUNK)) {
            self.walk.runs(start, len, &mut runs);
            self.walk.load(memory, &self.access, &runs, out);
        }
    }
}

impl Scale {
    fn new(resolver: &Resolver<'_>, factor: Factor) -> Result<Self, HostError> {
        match factor {
            Factor::Const(value) => Ok(Self::Const(value)),
            Factor::Scalar(scalar) => resolver.cell(scalar).map(Self::Cell),
        }
    }

    fn value(self, memory: &HostMemory) -> f32 {
        match self {
            Self::Const(value) => value,
            Self::Cell(cell) => f32::from_bits(memory.cell(cell)),
        }
    }
}

/// `product = a · b`, row-major m × n.
///
/// # Panics
/// If an operand's last element lies outside its slice, or `product` is not m · n long.
#[expect(unsafe_code, reason = "the gemm crate has no safe entry; every extent is checked against its slice first")]
fn multiply(product: &mut [f32], [m, n, k]: [usize; 3], a: Operand2d<'_>, b: Operand2d<'_>) {
    if m == 0 || n == 0 {
        return;
    }
    assert_eq!(product.len(), m * n);
    assert!(a.spans(m, k) && b.spans(k, n), "an operand lies outside its memory");
    // SAFETY: the product is m · n contiguous elements, lent to this call alone; the last element of each operand, and so,
    // strides being non-negative, every one, lies inside its slice.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            product.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.words.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.words.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

impl Operand2d<'_> {
    /// Whether a matrix of these extents lies inside the slice.
    fn spans(&self, rows: usize, columns: usize) -> bool {
        rows > 0 && columns > 0 && (rows - 1) * self.row_stride + (columns - 1) * self.column_stride < self.words.len()
    }
}

/// The nearest value with 10 mantissa bits, ties away from zero, as `cvt.rna.tf32.f32` rounds.
fn to_tf32(x: f32) -> f32 {
    const DROPPED: u32 = 13;
    if !x.is_finite() {
        return x;
    }
    f32::from_bits((x.to_bits() + (1 << (DROPPED - 1))) & !((1 << DROPPED) - 1))
}

/// The nearest value with 7 mantissa bits, ties to even.
fn to_bf16(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: TF32 keeps ten mantissa bits, rounds to nearest, and passes infinities and NaN through.
    #[test]
    fn tf32_rounds_to_nearest() {
        let ulp = f32::powi(2.0, -10);
        assert_eq!(to_tf32(1.0 + ulp), 1.0 + ulp);
        assert_eq!(to_tf32(1.0 + 0.49 * ulp), 1.0);
        assert_eq!(to_tf32(1.0 + 0.5 * ulp), 1.0 + ulp);
        assert_eq!(to_tf32(-(1.0 + 0.51 * ulp)), -(1.0 + ulp));
        assert_eq!(to_tf32(f32::INFINITY), f32::INFINITY);
        assert!(to_tf32(f32::from_bits(0x7F80_0001)).is_nan());
    }

    /// Protects: transposed operands and ones with gaps between rows give the product by definition.
    #[test]
    fn strided_operands() {
        let (m, n, k) = (5, 7, 3);
        let a: Vec<f32> = (0..64).map(|i| i as f32 * 0.25 - 4.0).collect();
        let b: Vec<f32> = (0..64).map(|i| 3.0 - i as f32 * 0.5).collect();
        // A is stored transposed with rows of 8, B with rows of 9; all products and sums are exact in float32.
        let at = Operand2d { words: &a, row_stride: 1, column_stride: 8 };
        let bt = Operand2d { words: &b, row_stride: 9, column_stride: 1 };
        let mut product = vec![f32::NAN; m * n];
        multiply(&mut product, [m, n, k], at, bt);
        for (place, &found) in product.iter().enumerate() {
            let (row, column) = (place / n, place % n);
            let expected: f32 = (0..k).map(|inner| a[row + 8 * inner] * b[9 * inner + column]).sum();
            assert_eq!(found, expected, "row {row} column {column}");
        }
    }
}
