//! Matrix products: from a node to a described library call, and from a recorded call to nodes of the real graph.

use super::address::Addresses;
use super::error::{At, EmitError};
use super::lane::Lane;
use crate::cuda::{Epilogue, Factors, GraphBody, Harvest, Matmul, MatmulSpec, Precision};
use crate::ir::{Compute, Expr, Factor, Gemm, View};
use crate::pass::{LibraryEpilogue, library_epilogue};
use crate::plan::GemmImpl;

/// Describes a product and chooses its algorithm. `cell` gives a device cell that holds a constant.
pub(super) fn describe(
    at: &Addresses<'_>,
    lane: &Lane,
    gemm: &Gemm,
    implementation: GemmImpl,
    cell: impl FnMut(f32) -> Result<u64, EmitError>,
) -> Result<Matmul, EmitError> {
    let GemmImpl::Library { algo, .. } = implementation;
    let spec = spec(at, gemm, cell)?;
    let library = lane.blas().at(|| at.place())?;
    Matmul::new(library, &spec, algo).at(|| at.place())
}

/// Records a product on the lane's private stream and takes its nodes over.
pub(super) fn harvest(
    lane: &Lane,
    product: &Matmul,
    into: &mut GraphBody<'_>,
) -> Result<Harvest, crate::cuda::CudaError> {
    let source = lane.capture().capture(|stream| product.on_stream(stream))?;
    Harvest::new(source, into)
}

fn spec(
    at: &Addresses<'_>,
    gemm: &Gemm,
    cell: impl FnMut(f32) -> Result<u64, EmitError>,
) -> Result<MatmulSpec, EmitError> {
    let (a, b, d) = (at.matrix(&gemm.a.view)?, at.matrix(&gemm.b.view)?, at.matrix(&gemm.d)?);
    if a.is_bf16 != b.is_bf16 {
        let name = |view: &View| at.program.buffers[view.buffer].dtype.name();
        return Err(EmitError::OperandTypes {
            place: Box::new(at.place()),
            a: name(&gemm.a.view),
            b: name(&gemm.b.view),
        });
    }
    let (workspace, workspace_bytes) = at.workspace()?.unwrap_or((0, 0));
    Ok(MatmulSpec {
        a,
        transposed_a: gemm.a.transposed,
        b,
        transposed_b: gemm.b.transposed,
        c: gemm.add.map_or(Ok(d), |(_, c)| at.matrix(&c))?,
        d,
        factors: factors(at, gemm, cell)?,
        precision: match gemm.compute {
            Compute::F32 => Precision::F32,
            Compute::Tf32 => Precision::Tf32,
            Compute::Bf16 => Precision::Bf16,
        },
        epilogue: gemm.epilogue.as_ref().map_or(Ok(Epilogue::None), |expr| epilogue(at, gemm, expr))?,
        workspace,
        workspace_bytes,
    })
}

/// α and β. Where one of them is a cell the library wants both on the device, so that a constant gets a cell of its own.
fn factors(
    at: &Addresses<'_>,
    gemm: &Gemm,
    mut cell: impl FnMut(f32) -> Result<u64, EmitError>,
) -> Result<Factors, EmitError> {
    let beta = gemm.add.map_or(Factor::Const(0.0), |(beta, _)| beta);
    if let (Factor::Const(alpha), Factor::Const(beta)) = (gemm.alpha, beta) {
        return Ok(Factors::Host(alpha, beta));
    }
    let mut address = |factor| match factor {
        Factor::Const(value) => cell(value),
        Factor::Scalar(scalar) => at.scalar(scalar),
    };
    Ok(Factors::Device(address(gemm.alpha)?, address(beta)?))
}

/// The library's epilogue. The pass `split` leaves only what it has.
fn epilogue(at: &Addresses<'_>, gemm: &Gemm, expr: &Expr) -> Result<Epilogue, EmitError> {
    let unfit = |found: &str| EmitError::Epilogue { place: Box::new(at.place()), found: found.to_owned() };
    let LibraryEpilogue { bias, relu } = library_epilogue(at.program, gemm, expr).map_err(unfit)?;
    let Some((view, row)) = bias else { return Ok(if relu { Epilogue::Relu } else { Epilogue::None }) };
    let buffer = &at.program.buffers[view.buffer];
    let start = if row == 0 { 0 } else { u64::from(row) * view.strides(&buffer.shape)[0] };
    let address = at.view(&view)? + start * buffer.dtype.size();
    Ok(if relu { Epilogue::ReluBias(address) } else { Epilogue::Bias(address) })
}
