//! Matrix products of cuBLASLt: a problem is described and its algorithm chosen once, then it runs any number of times.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtEpilogue_t, cublasLtMatmulAlgo_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreferenceAttributes_t, cublasLtPointerMode_t, cublasStatus_t,
    cudaDataType,
};

use super::context::Context;
use super::error::{CudaError, ignore};
use super::probe::Library;
use super::stream::Stream;

/// How many suggestions are asked for, always: so that a suggestion's number means the same whichever is taken.
const SUGGESTIONS: usize = 32;

/// A handle of the library. One lane uses one handle.
pub struct BlasLt {
    raw: sys::cublasLtHandle_t,
    context: Context,
}

// SAFETY: the library documents its handle as usable from any thread.
unsafe impl Send for BlasLt {}
// SAFETY: as above; its calls do not change the handle.
unsafe impl Sync for BlasLt {}

impl BlasLt {
    /// Opens the library.
    ///
    /// # Errors
    /// [`CudaError::LibraryMissing`], and whatever the library says.
    pub fn new(context: &Context) -> Result<Arc<Self>, CudaError> {
        Library::CublasLt.require()?;
        context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the library is present, the context is current, and `raw` outlives the call.
        unsafe { blas_call!(cublasLtCreate(&raw mut raw)) }?;
        Ok(Arc::new(Self { raw, context: context.clone() }))
    }
}

impl fmt::Debug for BlasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlasLt").finish_non_exhaustive()
    }
}

impl Drop for BlasLt {
    fn drop(&mut self) {
        ignore(self.context.bind());
        // SAFETY: the handle is ours, and every product that was described with it keeps it alive.
        ignore(unsafe { blas_call!(cublasLtDestroy(self.raw)) });
    }
}

/// The arithmetic; accumulation is in float32 always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Precision {
    F32,
    Tf32,
    Bf16,
}

/// What happens to a result before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Epilogue {
    None,
    /// max(x, 0); NaN stays NaN (measured on an H200 with CUDA 13.0).
    Relu,
    /// Adds one float per column of D, at this address.
    Bias(u64),
    /// Adds the bias, then takes the maximum with 0.
    ReluBias(u64),
}

/// A row-major matrix in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MatrixSpec {
    /// Address of the first element.
    pub(crate) address: u64,
    /// Rows as stored.
    pub(crate) rows: u64,
    /// Columns as stored.
    pub(crate) columns: u64,
    /// Elements from one row to the next.
    pub(crate) row_stride: u64,
    /// Whether elements are bfloat16 rather than float.
    pub(crate) is_bf16: bool,
}

/// Where α and β are: both on the host, or both in device cells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Factors {
    Host(f32, f32),
    Device(u64, u64),
}

/// `D = epilogue(α · op(A) · op(B) + β · C)` over row-major matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatmulSpec {
    pub(crate) a: MatrixSpec,
    pub(crate) transposed_a: bool,
    pub(crate) b: MatrixSpec,
    pub(crate) transposed_b: bool,
    /// C where β is not 0; D otherwise.
    pub(crate) c: MatrixSpec,
    pub(crate) d: MatrixSpec,
    pub(crate) factors: Factors,
    pub(crate) precision: Precision,
    pub(crate) epilogue: Epilogue,
    /// Address of the workspace.
    pub(crate) workspace: u64,
    /// Bytes of the workspace.
    pub(crate) workspace_bytes: u64,
}

/// A described product with its algorithm.
///
/// The library is column-major. A row-major matrix is its transpose there, so D^T = op(B)^T · op(A)^T is asked for: the
/// operands change places, and nothing is copied.
pub(crate) struct Matmul {
    spec: MatmulSpec,
    description: Description,
    layouts: [Layout; 4],
    algorithm: cublasLtMatmulAlgo_t,
    library: Arc<BlasLt>,
}

// SAFETY: descriptors are plain heap objects of the library that only calls taking `&self` read.
unsafe impl Send for Matmul {}

impl Matmul {
    /// Describes a product and takes the library's suggestion of this number. Not to be called during a capture.
    pub(crate) fn new(library: &Arc<BlasLt>, spec: &MatmulSpec, algorithm: u32) -> Result<Self, CudaError> {
        library.context.bind()?;
        let description = Description::new(spec)?;
        let layouts = [Layout::new(&spec.b)?, Layout::new(&spec.a)?, Layout::new(&spec.c)?, Layout::new(&spec.d)?];
        let suggestions = suggestions(library, spec, &description, &layouts)?;
        let chosen = suggestions.get(algorithm as usize).ok_or(CudaError::NoAlgorithm {
            wanted: algorithm,
            found: u32::try_from(suggestions.len()).unwrap_or(u32::MAX),
            workspace: spec.workspace_bytes,
        })?;
        Ok(Self { spec: *spec, description, layouts, algorithm: chosen.algo, library: Arc::clone(library) })
    }

    /// Queues the product.
    pub(crate) fn on_stream(&self, stream: &Stream) -> Result<(), CudaError> {
        let spec = &self.spec;
        let (alpha, beta): (*const c_void, *const c_void) = match &spec.factors {
            Factors::Host(alpha, beta) => (ptr::from_ref(alpha).cast(), ptr::from_ref(beta).cast()),
            &Factors::Device(alpha, beta) => (device_pointer(alpha), device_pointer(beta)),
        };
        let [b, a, c, d] = &self.layouts;
        // SAFETY: handle, descriptors and stream are alive; host factors outlive the call, which copies them; every address
        // is one of the plan's memory and its extents lie inside it.
        unsafe {
            blas_call!(cublasLtMatmul(
                self.library.raw,
                self.description.0,
                alpha,
                device_pointer(spec.b.address),
                b.0,
                device_pointer(spec.a.address),
                a.0,
                beta,
                device_pointer(spec.c.address),
                c.0,
                device_pointer(spec.d.address).cast_mut(),
                d.0,
                &raw const self.algorithm,
                device_pointer(spec.workspace).cast_mut(),
                spec.workspace_bytes as usize,
                stream.raw().cast(),
            ))
        }
    }
}

impl fmt::Debug for Matmul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matmul").field("spec", &self.spec).finish_non_exhaustive()
    }
}

fn suggestions(
    library: &BlasLt,
    spec: &MatmulSpec,
    description: &Description,
    [b, a, c, d]: &[Layout; 4],
) -> Result<Vec<cublasLtMatmulHeuristicResult_t>, CudaError> {
    use cublasLtMatmulPreferenceAttributes_t as Attribute;
    let preference = Preference::new()?;
    let workspace = spec.workspace_bytes as usize;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace)?;
    // The library assumes 256-byte alignment unless told otherwise.
    let alignments = [
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, spec.b),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, spec.a),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, spec.c),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, spec.d),
    ];
    for (attribute, matrix) in alignments {
        preference.set(attribute, &alignment(matrix.address))?;
    }
    let mut found = [EMPTY_SUGGESTION; SUGGESTIONS];
    let mut count = 0;
    // SAFETY: handle and descriptors are alive; the array has room for as many suggestions as are asked for.
    let asked = unsafe {
        blas_call!(cublasLtMatmulAlgoGetHeuristic(
            library.raw,
            description.0,
            b.0,
            a.0,
            c.0,
            d.0,
            preference.0,
            SUGGESTIONS as i32,
            found.as_mut_ptr(),
            &raw mut count,
        ))
    };
    match asked {
        Ok(()) => {}
        // The library's way of saying that there is none.
        Err(CudaError::Call { code, .. }) if code == cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED as u32 => {
            return Ok(Vec::new());
        }
        Err(other) => return Err(other),
    }
    let count = usize::try_from(count).unwrap_or(0).min(SUGGESTIONS);
    Ok(found[..count].iter().filter(|found| found.state == cublasStatus_t::CUBLAS_STATUS_SUCCESS).copied().collect())
}

const EMPTY_SUGGESTION: cublasLtMatmulHeuristicResult_t = cublasLtMatmulHeuristicResult_t {
    algo: cublasLtMatmulAlgo_t { data: [0; 8] },
    workspaceSize: 0,
    state: cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
    wavesCount: 0.0,
    reserved: [0; 4],
};

/// The largest power of two, up to 256, that divides an address.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

fn device_pointer(address: u64) -> *const c_void {
    ptr::without_provenance(address as usize)
}

/// Operation, arithmetic, epilogue and pointer mode.
struct Description(sys::cublasLtMatmulDesc_t);

impl Description {
    fn new(spec: &MatmulSpec) -> Result<Self, CudaError> {
        use cublasLtMatmulDescAttributes_t as Attribute;
        let mut raw = ptr::null_mut();
        let compute = compute_type(spec);
        // SAFETY: the library is present (the handle exists), and `raw` outlives the call.
        unsafe { blas_call!(cublasLtMatmulDescCreate(&raw mut raw, compute, cudaDataType::CUDA_R_32F)) }?;
        let description = Self(raw);
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &operation(spec.transposed_b))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &operation(spec.transposed_a))?;
        let mode = match spec.factors {
            Factors::Host(..) => cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_HOST,
            Factors::Device(..) => cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_DEVICE,
        };
        description.set(Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode)?;
        let (epilogue, bias) = match spec.epilogue {
            Epilogue::None => (cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT, None),
            Epilogue::Relu => (cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU, None),
            Epilogue::Bias(bias) => (cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS, Some(bias)),
            Epilogue::ReluBias(bias) => (cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS, Some(bias)),
        };
        description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        if let Some(bias) = bias {
            description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        Ok(description)
    }

    fn set<T>(&self, attribute: cublasLtMatmulDescAttributes_t, value: &T) -> Result<(), CudaError> {
        // SAFETY: the description is alive, and the value outlives the call, which copies its bytes.
        unsafe {
            blas_call!(cublasLtMatmulDescSetAttribute(self.0, attribute, ptr::from_ref(value).cast(), size_of::<T>()))
        }
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: the description is ours.
        ignore(unsafe { blas_call!(cublasLtMatmulDescDestroy(self.0)) });
    }
}

/// A matrix's type, extents and stride.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// The column-major layout of a row-major matrix: rows and columns change places.
    fn new(matrix: &MatrixSpec) -> Result<Self, CudaError> {
        let mut raw = ptr::null_mut();
        let type_ = if matrix.is_bf16 { cudaDataType::CUDA_R_16BF } else { cudaDataType::CUDA_R_32F };
        let stride = i64::try_from(matrix.row_stride).unwrap_or(i64::MAX);
        // SAFETY: the library is present (the handle exists), and `raw` outlives the call.
        unsafe { blas_call!(cublasLtMatrixLayoutCreate(&raw mut raw, type_, matrix.columns, matrix.rows, stride)) }?;
        Ok(Self(raw))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: the layout is ours.
        ignore(unsafe { blas_call!(cublasLtMatrixLayoutDestroy(self.0)) });
    }
}

/// What an algorithm may use.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new() -> Result<Self, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the library is present (the handle exists), and `raw` outlives the call.
        unsafe { blas_call!(cublasLtMatmulPreferenceCreate(&raw mut raw)) }?;
        Ok(Self(raw))
    }

    fn set<T>(&self, attribute: cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<(), CudaError> {
        // SAFETY: the preference is alive, and the value outlives the call, which copies its bytes.
        unsafe {
            blas_call!(cublasLtMatmulPreferenceSetAttribute(
                self.0,
                attribute,
                ptr::from_ref(value).cast(),
                size_of::<T>()
            ))
        }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: the preference is ours.
        ignore(unsafe { blas_call!(cublasLtMatmulPreferenceDestroy(self.0)) });
    }
}

/// The library's number of an operation: `CUBLAS_OP_N` or `CUBLAS_OP_T`, which the bindings lack.
fn operation(transposed: bool) -> i32 {
    i32::from(transposed)
}

fn compute_type(spec: &MatmulSpec) -> cublasComputeType_t {
    match spec.precision {
        // bfloat16 operands need no rounding, and the fast types are for float operands only.
        _ if spec.a.is_bf16 => cublasComputeType_t::CUBLAS_COMPUTE_32F,
        Precision::F32 => cublasComputeType_t::CUBLAS_COMPUTE_32F,
        Precision::Tf32 => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        Precision::Bf16 => cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_16BF,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: the library is told the alignment that an address really has.
    #[test]
    fn alignment_is_the_largest_power_of_two() {
        assert_eq!(alignment(0x7000_0100), 256);
        assert_eq!(alignment(0x7000_0400), 256);
        assert_eq!(alignment(0x7000_0110), 16);
        assert_eq!(alignment(0x7000_0104), 4);
    }
}
