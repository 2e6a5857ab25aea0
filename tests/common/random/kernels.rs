//! The hand-written kernels that random programs call, with host functions.

use std::sync::Arc;

use stepgraph::entity::KernelId;
use stepgraph::ir::{
    DType, Dim, KernelDecl, KernelParam, KernelSource, LaunchRule, ParamClass, PdlContract, Program, SharedRule,
};
use stepgraph::kernel::{HostArgs, HostFn, HostFns, cell, elements, elements_mut, size, value};

const SOURCE: &str = r#"
// y = a * x, element by element.
extern "C" __global__ void __launch_bounds__(64)
random_scale(const float* __restrict__ x, float* __restrict__ y, const float* __restrict__ a, unsigned int n) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    pdl_wait();
    pdl_trigger();
    if (i < n) y[i] = *a * x[i];
}

// p = p + k * g, element by element.
extern "C" __global__ void random_axpy(float* __restrict__ p, const float* __restrict__ g, float k, unsigned int n) {
    for (unsigned int j = 0; j < 2; ++j) {
        unsigned int i = (blockIdx.x * 2 + j) * blockDim.x + threadIdx.x;
        if (i < n) p[i] = p[i] + k * g[i];
    }
}

/* y[r] = sum over c of x[r, c], in order. */
extern "C" __global__ void random_row_sum(const float* __restrict__ x, float* __restrict__ y, unsigned int c) {
    if (threadIdx.x != 0) return;
    float sum = 0.0f;
    for (unsigned int j = 0; j < c; ++j) sum = sum + x[blockIdx.x * c + j];
    y[blockIdx.x] = sum;
}

// y = transpose of x.
extern "C" __global__ void random_transpose(const float* __restrict__ x, float* __restrict__ y,
                                            unsigned int r, unsigned int c) {
    for (unsigned int k = threadIdx.x; k < 16; k += blockDim.x) {
        unsigned int row = blockIdx.y * 4 + k / 4, column = blockIdx.x * 4 + k % 4;
        if (row < r && column < c) y[column * r + row] = x[row * c + column];
    }
}

// last = t; t = t + by.
extern "C" __global__ void random_tick(unsigned int* __restrict__ t, unsigned int* __restrict__ last, unsigned int by) {
    if (threadIdx.x != 0) return;
    *last = *t;
    *t = *t + by;
}
"#;

/// The kernels of a program.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    pub(super) scale: KernelId,
    pub(super) axpy: KernelId,
    pub(super) row_sum: KernelId,
    pub(super) transpose: KernelId,
    pub(super) tick: KernelId,
}

impl Kernels {
    /// Declares every kernel.
    pub(super) fn declare(program: &mut Program, host_fns: &mut HostFns) -> Self {
        let source = KernelSource { file: "random.cu".into(), text: Arc::from(SOURCE) };
        let mut declare = |decl: KernelDecl, host: fn(&mut HostArgs<'_>)| {
            let id = program.kernels.push(KernelDecl { source: source.clone(), ..decl });
            host_fns[id] = Some(HostFn(host));
            id
        };
        Self {
            scale: declare(scale_decl(), scale),
            axpy: declare(axpy_decl(), axpy),
            row_sum: declare(row_sum_decl(), row_sum),
            transpose: declare(transpose_decl(), transpose),
            tick: declare(tick_decl(), tick),
        }
    }
}

fn decl(name: &str, params: Vec<KernelParam>, launch: LaunchRule) -> KernelDecl {
    KernelDecl {
        name: name.into(),
        source: KernelSource { file: String::new(), text: Arc::from("") },
        params,
        launch,
        shared: SharedRule::default(),
        cluster: None,
        cooperative: false,
        pdl: None,
    }
}

fn param(name: &str, class: ParamClass, dtype: DType, shape: Option<&[&str]>) -> KernelParam {
    let shape = shape.map(|symbols| symbols.iter().map(|&symbol| Dim::Symbol(symbol.into())).collect());
    KernelParam { name: name.into(), class, dtype, shape }
}

fn scale_decl() -> KernelDecl {
    let params = vec![
        param("x", ParamClass::In, DType::F32, Some(&["n"])),
        param("y", ParamClass::Out, DType::F32, Some(&["n"])),
        param("a", ParamClass::Scalar, DType::F32, None),
        param("n", ParamClass::Size, DType::U32, None),
    ];
    let launch = LaunchRule::Elements { of: "y".into(), block: 64, per_thread: 1 };
    KernelDecl { pdl: Some(PdlContract { early: vec![] }), ..decl("random_scale", params, launch) }
}

fn axpy_decl() -> KernelDecl {
    let params = vec![
        param("p", ParamClass::InOut, DType::F32, Some(&["n"])),
        param("g", ParamClass::In, DType::F32, Some(&["n"])),
        param("k", ParamClass::Const, DType::F32, None),
        param("n", ParamClass::Size, DType::U32, None),
    ];
    decl("random_axpy", params, LaunchRule::Elements { of: "p".into(), block: 32, per_thread: 2 })
}

fn row_sum_decl() -> KernelDecl {
    let params = vec![
        param("x", ParamClass::In, DType::F32, Some(&["r", "c"])),
        param("y", ParamClass::Out, DType::F32, Some(&["r"])),
        param("c", ParamClass::Size, DType::U32, None),
    ];
    decl("random_row_sum", params, LaunchRule::Rows { of: "x".into(), block: 32 })
}

fn transpose_decl() -> KernelDecl {
    let params = vec![
        param("x", ParamClass::In, DType::F32, Some(&["r", "c"])),
        param("y", ParamClass::Out, DType::F32, Some(&["c", "r"])),
        param("r", ParamClass::Size, DType::U32, None),
        param("c", ParamClass::Size, DType::U32, None),
    ];
    decl("random_transpose", params, LaunchRule::Tiles { of: "x".into(), tile: [4, 4], block: 16 })
}

fn tick_decl() -> KernelDecl {
    let params = vec![
        param("t", ParamClass::ScalarInOut, DType::U32, None),
        param("last", ParamClass::ScalarOut, DType::U32, None),
        param("by", ParamClass::Const, DType::U32, None),
    ];
    decl("random_tick", params, LaunchRule::Fixed { grid: [1, 1, 1], block: [32, 1, 1] })
}

fn scale(args: &mut HostArgs<'_>) {
    let (x, y, a) = (elements::<f32>(args.take()), elements_mut::<f32>(args.take()), value::<f32>(args.take()));
    y.iter_mut().zip(x).for_each(|(y, x)| *y = a * x);
}

fn axpy(args: &mut HostArgs<'_>) {
    let (p, g, k) = (elements_mut::<f32>(args.take()), elements::<f32>(args.take()), value::<f32>(args.take()));
    p.iter_mut().zip(g).for_each(|(p, g)| *p += k * g);
}

fn row_sum(args: &mut HostArgs<'_>) {
    let (x, y) = (elements::<f32>(args.take()), elements_mut::<f32>(args.take()));
    let columns = size(args.take()) as usize;
    y.iter_mut().zip(x.chunks(columns)).for_each(|(y, row)| *y = row.iter().fold(0.0, |sum, x| sum + x));
}

fn transpose(args: &mut HostArgs<'_>) {
    let (x, y) = (elements::<f32>(args.take()), elements_mut::<f32>(args.take()));
    let (rows, columns) = (size(args.take()) as usize, size(args.take()) as usize);
    for (at, &x) in x.iter().enumerate() {
        y[at % columns * rows + at / columns] = x;
    }
}

fn tick(args: &mut HostArgs<'_>) {
    let (t, last, by) = (cell::<u32>(args.take()), cell::<u32>(args.take()), value::<u32>(args.take()));
    *last = *t;
    *t = t.wrapping_add(by);
}
