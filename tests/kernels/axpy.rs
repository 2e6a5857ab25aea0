//! A small kernel for tests of declarations.

stepgraph::kernel! {
    /// y ← y + a·x.
    pub axpy in "tests/kernels/axpy.cu" (
        x: In<f32>[n], y: InOut<f32>[n], a: Scalar<f32>, n: Size,
    )
    launch elements(x, block = 256, per_thread = 1)
    host axpy_host
}

fn axpy_host(call: axpy::Host<'_>) {
    for (y, x) in call.y.iter_mut().zip(call.x) {
        *y += call.a * x;
    }
}
