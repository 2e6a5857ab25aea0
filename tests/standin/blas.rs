//! cuBLASLt: products are carried out in float64, column-major as the library is.

use std::ffi::{c_int, c_void};

use cudarc::cublaslt::sys::{
    self as bindings, cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t,
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cublasLtPointerMode_t, cublasStatus_t, cudaDataType,
    cudaStream_t,
};
use half::bf16;

use crate::entry::{get, put};
use crate::graph::{self, KernelCall, NodeKind};
use crate::objects::{Function, Object, Work, World};

/// What a description was told.
#[derive(Clone, Copy, Default)]
pub(crate) struct Description {
    transposed_a: bool,
    transposed_b: bool,
    device_factors: bool,
    epilogue: u32,
    bias: u64,
}

/// A column-major matrix.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    is_bf16: bool,
    rows: u64,
    columns: u64,
    stride: u64,
}

/// One product, ready to be carried out any number of times.
#[derive(Clone)]
pub(crate) struct Product {
    description: Description,
    alpha: Factor,
    beta: Factor,
    a: (u64, Layout),
    b: (u64, Layout),
    c: (u64, Layout),
    d: (u64, Layout),
}

#[derive(Clone, Copy)]
enum Factor {
    Value(f32),
    Cell(u64),
}

fn code(_: u32) -> cublasStatus_t {
    cublasStatus_t::CUBLAS_STATUS_INTERNAL_ERROR
}

impl Layout {
    fn bytes(&self) -> u64 {
        let size = if self.is_bf16 { 2 } else { 4 };
        ((self.columns - 1) * self.stride + self.rows) * size
    }

    fn at(&self, base: u64, row: u64, column: u64) -> u64 {
        base + (column * self.stride + row) * if self.is_bf16 { 2 } else { 4 }
    }

    fn load(&self, base: u64, row: u64, column: u64) -> f64 {
        let address = self.at(base, row, column);
        if self.is_bf16 { get(address as *const bf16).to_f64() } else { f64::from(get(address as *const f32)) }
    }
}

impl Product {
    /// Carries the product out, where all of its memory is alive.
    pub(crate) fn run(&self, world: &mut World) {
        let places = [("A", self.a), ("B", self.b), ("C", self.c), ("D", self.d)];
        for (name, (address, layout)) in places {
            if !world.need_memory(address, layout.bytes(), &format!("{name} of a product")) {
                return;
            }
        }
        let rows = self.d.1.rows;
        let with_bias = self.description.epilogue & 4 != 0;
        if with_bias && !world.need_memory(self.description.bias, rows * 4, "the bias of a product") {
            return;
        }
        let factor = |factor| match factor {
            Factor::Value(value) => f64::from(value),
            Factor::Cell(cell) => f64::from(get(cell as *const f32)),
        };
        let (alpha, beta) = (factor(self.alpha), factor(self.beta));
        let inner = if self.description.transposed_a { self.a.1.rows } else { self.a.1.columns };
        for column in 0..self.d.1.columns {
            for row in 0..rows {
                let sum: f64 = (0..inner).map(|k| self.term(row, column, k)).sum();
                let mut value = alpha * sum;
                if beta != 0.0 {
                    value += beta * self.c.1.load(self.c.0, row, column);
                }
                if with_bias {
                    value += f64::from(get((self.description.bias + 4 * row) as *const f32));
                }
                if self.description.epilogue & 2 != 0 {
                    value = value.max(0.0);
                }
                let address = self.d.1.at(self.d.0, row, column);
                if self.d.1.is_bf16 {
                    put(address as *mut bf16, bf16::from_f64(value));
                } else {
                    put(address as *mut f32, value as f32);
                }
            }
        }
    }

    fn term(&self, row: u64, column: u64, k: u64) -> f64 {
        let (a_row, a_column) = if self.description.transposed_a { (k, row) } else { (row, k) };
        let (b_row, b_column) = if self.description.transposed_b { (column, k) } else { (k, column) };
        self.a.1.load(self.a.0, a_row, a_column) * self.b.1.load(self.b.0, b_row, b_column)
    }
}

fn description(world: &mut World, handle: cublasLtMatmulDesc_t) -> Result<&mut Description, cublasStatus_t> {
    match world.object_mut(handle as usize) {
        Some(Object::Description(description)) => Ok(description),
        _ => Err(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE),
    }
}

fn layout(world: &mut World, handle: cublasLtMatrixLayout_t) -> Result<Layout, cublasStatus_t> {
    match world.object(handle as usize) {
        Some(Object::Layout(layout)) => Ok(*layout),
        _ => {
            world.violation("a product with a layout that is not alive".to_owned());
            Err(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE)
        }
    }
}

fn need_handle(world: &mut World, handle: cublasLtHandle_t) -> Result<(), cublasStatus_t> {
    if matches!(world.object(handle as usize), Some(Object::Blas)) {
        return Ok(());
    }
    world.violation("a library call with a handle that is not alive".to_owned());
    Err(cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED)
}

/// Whether extents of the operands fit together, as the library checks them.
fn fits(description: Description, [a, b, c, d]: [Layout; 4]) -> bool {
    let (m, k) = if description.transposed_a { (a.columns, a.rows) } else { (a.rows, a.columns) };
    let (n, k2) = if description.transposed_b { (b.rows, b.columns) } else { (b.columns, b.rows) };
    let strides = [a, b, c, d].iter().all(|layout| layout.stride >= layout.rows);
    strides && k == k2 && [c, d].iter().all(|out| out.rows == m && out.columns == n) && a.is_bf16 == b.is_bf16
}

exports! {
    bindings, cublasStatus_t, code, cublasStatus_t::CUBLAS_STATUS_SUCCESS;

    fn cublasLtCreate(world, handle: *mut cublasLtHandle_t) {
        world.need_context("cublasLtCreate").map_err(|_| cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED)?;
        put(handle, world.add(Object::Blas) as cublasLtHandle_t);
        Ok(())
    }

    #[release]
    fn cublasLtDestroy(world, handle: cublasLtHandle_t) {
        need_handle(world, handle)?;
        world.remove(handle as usize, "destruction of a library handle").map(drop).map_err(|_| code(0))
    }

    fn cublasLtMatmulDescCreate(
        world, place: *mut cublasLtMatmulDesc_t, _compute: cublasComputeType_t, _scale: cudaDataType
    ) {
        put(place, world.add(Object::Description(Description::default())) as cublasLtMatmulDesc_t);
        Ok(())
    }

    #[release]
    fn cublasLtMatmulDescDestroy(world, handle: cublasLtMatmulDesc_t) {
        world.remove(handle as usize, "destruction of a description").map(drop).map_err(|_| code(0))
    }

    fn cublasLtMatmulDescSetAttribute(
        world,
        handle: cublasLtMatmulDesc_t,
        attribute: cublasLtMatmulDescAttributes_t,
        value: *const c_void,
        size: usize
    ) {
        use cublasLtMatmulDescAttributes_t as Attribute;
        let description = description(world, handle)?;
        let expected = if attribute == Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER { 8 } else { 4 };
        if size != expected {
            return Err(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE);
        }
        match attribute {
            Attribute::CUBLASLT_MATMUL_DESC_TRANSA => description.transposed_a = get(value.cast::<i32>()) == 1,
            Attribute::CUBLASLT_MATMUL_DESC_TRANSB => description.transposed_b = get(value.cast::<i32>()) == 1,
            Attribute::CUBLASLT_MATMUL_DESC_POINTER_MODE => {
                description.device_factors = get(value.cast::<u32>()) == cublasLtPointerMode_t::CUBLASLT_POINTER_MODE_DEVICE as u32;
            }
            Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE => {
                let epilogue = get(value.cast::<u32>());
                let none = cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT as u32;
                description.epilogue = if epilogue == none { 0 } else { epilogue };
            }
            Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER => description.bias = get(value.cast::<u64>()),
            _ => return Err(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED),
        }
        Ok(())
    }

    fn cublasLtMatrixLayoutCreate(
        world, place: *mut cublasLtMatrixLayout_t, type_: cudaDataType, rows: u64, columns: u64, stride: i64
    ) {
        let is_bf16 = type_ == cudaDataType::CUDA_R_16BF;
        let layout = Layout { is_bf16, rows, columns, stride: stride.unsigned_abs() };
        put(place, world.add(Object::Layout(layout)) as cublasLtMatrixLayout_t);
        Ok(())
    }

    #[release]
    fn cublasLtMatrixLayoutDestroy(world, handle: cublasLtMatrixLayout_t) {
        world.remove(handle as usize, "destruction of a layout").map(drop).map_err(|_| code(0))
    }

    fn cublasLtMatmulPreferenceCreate(world, place: *mut cublasLtMatmulPreference_t) {
        put(place, world.add(Object::Preference) as cublasLtMatmulPreference_t);
        Ok(())
    }

    #[release]
    fn cublasLtMatmulPreferenceDestroy(world, handle: cublasLtMatmulPreference_t) {
        world.remove(handle as usize, "destruction of a preference").map(drop).map_err(|_| code(0))
    }

    fn cublasLtMatmulPreferenceSetAttribute(
        _world,
        _handle: cublasLtMatmulPreference_t,
        attribute: cublasLtMatmulPreferenceAttributes_t,
        _value: *const c_void,
        size: usize
    ) {
        let workspace = attribute == cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        if size == if workspace { 8 } else { 4 } { Ok(()) } else { Err(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE) }
    }

    fn cublasLtMatmulAlgoGetHeuristic(
        world,
        handle: cublasLtHandle_t,
        operation: cublasLtMatmulDesc_t,
        a: cublasLtMatrixLayout_t,
        b: cublasLtMatrixLayout_t,
        c: cublasLtMatrixLayout_t,
        d: cublasLtMatrixLayout_t,
        _preference: cublasLtMatmulPreference_t,
        wanted: c_int,
        found: *mut cublasLtMatmulHeuristicResult_t,
        count: *mut c_int
    ) {
        need_handle(world, handle)?;
        let description = *description(world, operation)?;
        let layouts = [layout(world, a)?, layout(world, b)?, layout(world, c)?, layout(world, d)?];
        if !fits(description, layouts) {
            return Err(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE);
        }
        // Algorithm 0 records one kernel, algorithm 1 a memset and a kernel behind it, algorithm 2 every kind of node that a library
        // may record.
        for number in 0..3.min(wanted) {
            put(found.wrapping_add(number as usize), cublasLtMatmulHeuristicResult_t {
                algo: cublasLtMatmulAlgo_t { data: [u64::from(number.unsigned_abs()); 8] },
                workspaceSize: 64 * number.unsigned_abs() as usize,
                state: cublasStatus_t::CUBLAS_STATUS_SUCCESS,
                wavesCount: 1.0,
                reserved: [0; 4],
            });
        }
        put(count, 3.min(wanted));
        Ok(())
    }

    fn cublasLtMatmul(
        world,
        handle: cublasLtHandle_t,
        operation: cublasLtMatmulDesc_t,
        alpha: *const c_void,
        a: *const c_void,
        a_layout: cublasLtMatrixLayout_t,
        b: *const c_void,
        b_layout: cublasLtMatrixLayout_t,
        beta: *const c_void,
        c: *const c_void,
        c_layout: cublasLtMatrixLayout_t,
        d: *mut c_void,
        d_layout: cublasLtMatrixLayout_t,
        algorithm: *const cublasLtMatmulAlgo_t,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: cudaStream_t
    ) {
        need_handle(world, handle)?;
        let description = *description(world, operation)?;
        let layouts = [a_layout, b_layout, c_layout, d_layout].map(|handle| layout(world, handle));
        let [a_layout, b_layout, c_layout, d_layout] = [layouts[0]?, layouts[1]?, layouts[2]?, layouts[3]?];
        if !fits(description, [a_layout, b_layout, c_layout, d_layout]) {
            return Err(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE);
        }
        let factor = |place: *const c_void| {
            if description.device_factors { Factor::Cell(place as u64) } else { Factor::Value(get(place.cast::<f32>())) }
        };
        let product = Product {
            description,
            alpha: factor(alpha),
            beta: factor(beta),
            a: (a as u64, a_layout),
            b: (b as u64, b_layout),
            c: (c as u64, c_layout),
            d: (d as u64, d_layout),
        };
        let function = world.add(Object::Function(Function {
            home: handle as usize,
            name: c"standin_product".to_owned(),
            params: Vec::new(),
            max_shared: 0,
            product: Some(product),
        }));
        let number = get(algorithm).data[0];
        let (grid, block, args) = ([1, 1, 1], [128, 1, 1], Vec::new());
        let call = KernelCall { function, grid, block, shared: 1024, args, by_handle: number == 2 };
        let mut nodes = vec![NodeKind::Kernel(call)];
        if number == 2 {
            let (from, to) = (workspace as u64, workspace as u64 + 32);
            let rows = graph::Rows { from, from_pitch: 32, to, to_pitch: 32, width: 32, height: 1 };
            nodes.splice(0..0, [NodeKind::Copy(rows), NodeKind::Empty]);
        }
        if number > 0 {
            let clear = graph::Fill { to: workspace as u64, pitch: 0, value: 0, element: 1, width: 64, height: 1 };
            if workspace_bytes < 64 {
                return Err(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE);
            }
            nodes.insert(0, NodeKind::Fill(clear));
        }
        for node in nodes {
            graph::queue(world, stream as usize, Work::Node(node)).map_err(|_| cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED)?;
        }
        Ok(())
    }
}
