use std::sync::Arc;

use super::*;
use crate::ir::{KernelSource, LaunchRule, PdlContract, SharedRule};

const AXPY: &str = r#"
#include <nothing.h>   // skipped
#define TWICE(x) \
    ((x) + (x))
// extern "C" __global__ void commented(float* x) {}
/* extern "C" __global__ void also_commented(float* x) {} */
static __device__ float helper(float x) { return x; }
template <typename T> __global__ void not_c(T* x) {}

extern "C" __global__ void __launch_bounds__(256, 2)
axpy(
    const float* __restrict__ x,   // read, with a comma
    float * __restrict__ y, /* written */
    float const *a,
    unsigned n, const unsigned int m,
    const __nv_bfloat16*__restrict__ h, int32_t k
) {
    if (n > 1'000) { y[0] = x[0]; }
}

extern "C" {
__global__ void inner(uint32_t* u, int i) { }
}
extern "C" void host_function(float* x);
extern "C" __global__ void none() {}
"#;

fn decl(text: &str, params: &[(&str, ParamClass, DType)]) -> KernelDecl {
    let params = params.iter().map(|(name, class, dtype)| KernelParam {
        name: (*name).into(),
        class: class.clone(),
        dtype: *dtype,
        shape: None,
    });
    KernelDecl {
        name: "k".into(),
        source: KernelSource { file: "k.cu".into(), text: Arc::from(text) },
        params: params.collect(),
        launch: LaunchRule::Fixed { grid: [1; 3], block: [1; 3] },
        shared: SharedRule::default(),
        cluster: None,
        cooperative: false,
        pdl: None,
    }
}

/// Protects: the ways in which people lay out a signature, and that nothing else is taken for one.
#[test]
fn finds_every_c_kernel_and_nothing_else() {
    let found = parse(AXPY).expect("well formed");
    let names: Vec<_> = found.iter().map(|signature| signature.name.as_str()).collect();
    assert_eq!(names, ["axpy", "inner", "none"]);
    let axpy: Vec<_> = found[0].params.iter().map(|param| format!("{param} {}", param.name)).collect();
    let expected = [
        "const float* x",
        "float* y",
        "const float* a",
        "unsigned int n",
        "unsigned int m",
        "const __nv_bfloat16* h",
        "int k",
    ];
    assert_eq!(axpy, expected);
    assert_eq!(found[0].line, 11);
    assert!(found[2].params.is_empty());
}

/// Protects: what cannot be read is refused at its place, not guessed.
#[test]
fn unreadable_sources_are_refused_at_their_place() {
    let cases = [
        ("/* open", 1, 1, "never closed"),
        ("\n  \"open", 2, 3, "never closed"),
        ("extern \"C\" __global__ void k(float* x", 1, 29, "never closed"),
        ("extern \"C\" __global__ int k() {}", 1, 23, "return type"),
        ("extern \"C\" __global__ void", 1, 27, "the end of the file"),
        ("extern \"C\" __global__ void (float* x) {}", 1, 28, "the name"),
        ("extern \"C\" __global__ void k(\n  double x) {}", 2, 3, "double x"),
        ("extern \"C\" __global__ void k(float** x) {}", 1, 30, "float * * x"),
        ("extern \"C\" __global__ void k(float x[4]) {}", 1, 30, "float x [ 4 ]"),
        ("extern \"C\" __global__ void k(unsigned long long x) {}", 1, 30, "long long"),
        ("extern \"C\" __global__ void k(float*) {}", 1, 30, "no name"),
        ("extern \"C\" __global__ void k(float x,) {}", 1, 38, "no name"),
    ];
    for (text, line, column, message) in cases {
        let error = parse(text).expect_err(text);
        assert_eq!((error.line, error.column), (line, column), "{text}: {error}");
        assert!(error.to_string().contains(message), "{text}: {error}");
    }
}

/// Protects: a declaration that differs from its source in any way is refused.
#[test]
fn declarations_are_compared_with_the_source() {
    const TEXT: &str = "extern \"C\" __global__ void k(const float* x, float* y, float c, unsigned int n) {}";
    let params = [
        ("x", ParamClass::In, DType::F32),
        ("y", ParamClass::Out, DType::F32),
        ("c", ParamClass::Const, DType::F32),
        ("n", ParamClass::Size, DType::U32),
    ];
    assert_eq!(check(&decl(TEXT, &params)), Ok(()));
    let mut scalars = params.clone();
    scalars[0].1 = ParamClass::Scalar;
    scalars[1].1 = ParamClass::ScalarInOut;
    assert_eq!(check(&decl(TEXT, &scalars)), Ok(()));

    let damage: [(usize, (&str, ParamClass, DType), &str); 6] = [
        (0, ("x", ParamClass::InOut, DType::F32), "`const float*` in the source, but InOut<f32> means `float*`"),
        (1, ("y", ParamClass::In, DType::F32), "In<f32> means `const float*`"),
        (1, ("y", ParamClass::Out, DType::Bf16), "means `__nv_bfloat16*`"),
        (2, ("c", ParamClass::Scalar, DType::F32), "`float` in the source, but Scalar<f32> means `const float*`"),
        (2, ("d", ParamClass::Const, DType::F32), "parameter 3 is `c` in the source and `d`"),
        (3, ("n", ParamClass::Const, DType::I32), "`unsigned int` in the source"),
    ];
    for (at, wrong, message) in damage {
        let mut params = params.clone();
        params[at] = wrong;
        let fault = check(&decl(TEXT, &params)).expect_err(message);
        assert!(fault.to_string().contains(message), "{fault}");
    }
    assert!(matches!(check(&decl(TEXT, &params[..3])), Err(DeclFault::Count { source_count: 4, declared: 3 })));
    assert!(matches!(check(&decl("", &params)), Err(DeclFault::NoKernel { .. })));
}

/// Protects: a kernel with one half of programmatic dependent launch, which would race silently, is refused.
#[test]
fn both_halves_of_pdl_or_neither() {
    let kernel = |body: &str| format!("extern \"C\" __global__ void k() {{ {body} }}");
    let check_with = |text: &str, declared: bool| {
        let pdl = declared.then(|| PdlContract { early: vec![] });
        check(&KernelDecl { pdl, ..decl(text, &[]) })
    };
    let (wait, trigger) =
        (r#"asm volatile("griddepcontrol.wait;");"#, r#"asm volatile("griddepcontrol.launch_dependents;");"#);
    let both = kernel(&format!("{wait} {trigger}"));
    assert_eq!(check_with(&both, true), Ok(()));
    assert_eq!(check_with(&kernel("pdl_wait(); pdl_trigger();"), true), Ok(()));
    assert_eq!(check_with(&kernel("/* pdl_wait(); */"), false), Ok(()));
    for (text, declared) in [
        (both.clone(), false),
        (kernel(wait), true),
        (kernel(trigger), true),
        (kernel(wait), false),
        (kernel(trigger), false),
        (kernel(""), true),
        (kernel("/* pdl_wait(); */ pdl_trigger();"), true),
        (kernel("pdl_trigger(); pdl_wait();"), true),
        (format!("static __device__ void unused() {{ {wait} {trigger} }} {}", kernel("")), true),
    ] {
        assert!(matches!(check_with(&text, declared), Err(DeclFault::Pdl { .. })), "{text}");
    }
    let through_helpers = format!(
        "#define BEGIN() do {{ \\\n {wait} }} while (0)\n\
         static __device__ void inner() {{ pdl_trigger(); }}\n\
         static __device__ void end(int x) {{ inner(); }}\n{}",
        kernel("BEGIN(); end(1);")
    );
    assert_eq!(check_with(&through_helpers, true), Ok(()));
}

/// Protects: no text makes the parser panic; every prefix of a real one is a text that an editor saves.
#[test]
fn every_prefix_is_read_or_refused() {
    let text = format!("{AXPY}\nfloat µ = 'x'; // ünïcode \\\n#define Q \"\n#");
    for (end, _) in text.char_indices() {
        let _ = parse(&text[..end]);
    }
}
