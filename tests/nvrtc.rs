//! Every kernel compiles, for every architecture that is supported: those of the library, and those that are generated for
//! the specs in `graph_specs/` and for random programs. No device is needed, only NVRTC.
//!
//! Without NVRTC the tests say that they were skipped; with `STEPGRAPH_REQUIRE_NVRTC=1` its absence is a failure.

mod common;

use std::collections::BTreeMap;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use stepgraph::codegen::Generator;
use stepgraph::cuda::nvrtc::{Arch, Nvrtc, NvrtcError, Source};
use stepgraph::emit::cache::Cache;
use stepgraph::emit::modules::{ModuleError, compile_source};
use stepgraph::ir::Origins;
use stepgraph::kernel::registry;
use stepgraph::valid::{ValidProgram, validate};

/// The architectures that the project promises: Ampere, Hopper, Blackwell.
const ARCHS: [u32; 3] = [80, 90, 100];

/// The compiler, or `None` where its absence is allowed.
#[expect(clippy::print_stderr, reason = "a skipped test must say so")]
fn compiler() -> Option<Nvrtc> {
    match Nvrtc::load() {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) if std::env::var_os("STEPGRAPH_REQUIRE_NVRTC").is_some_and(|value| value == "1") => {
            panic!("NVRTC is required here: {error}")
        }
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// Compiles for every architecture. A warning fails too: generated code and the library's kernels have none.
fn compiles(nvrtc: &Nvrtc, name: &str, text: &str) {
    for sm in ARCHS {
        match compile_source(name, text, sm, nvrtc, &Cache::disabled()) {
            Ok(module) => assert!(module.log.is_empty(), "{name} for sm_{sm}:\n{}\n{text}", module.log),
            Err(error) => panic!("{name} for sm_{sm}: {error}\n{text}"),
        }
    }
}

/// The generated kernels of all steps, as one source.
fn generated(program: &ValidProgram) -> String {
    let mut sources = Vec::new();
    for (id, step) in program.program().steps.iter() {
        let generator = Generator::new(program, id);
        for node in step.nodes.keys() {
            sources.extend(generator.kernels(node).into_iter().map(|kernel| {
                // Kernel names are unique in a step; here all steps share a source.
                let place = format!("{id}__{}", kernel.name);
                kernel.source.replace(&format!("{}(\n", kernel.name), &format!("{place}(\n"))
            }));
        }
    }
    sources.join("\n")
}

/// Protects: no kernel of the library is broken for an architecture that nobody has at hand.
#[test]
fn library_kernels_compile() {
    let Some(nvrtc) = compiler() else { return };
    let sources: BTreeMap<_, _> = registry::names()
        .map(|name| registry::find(name).expect("listed").decl.source)
        .map(|source| (source.file.clone(), source.text))
        .collect();
    assert!(sources.len() >= 2, "{sources:?}");
    for (file, text) in sources {
        compiles(&nvrtc, &file, &text);
    }
}

/// Protects: whatever a valid program asks for, the generated code is legal CUDA C without warnings.
#[test]
fn generated_kernels_of_random_programs_compile() {
    let Some(nvrtc) = compiler() else { return };
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let recipes = common::random::recipes();
    let mut kernels = 0;
    for case in 0..40 {
        let recipe = recipes.new_tree(&mut runner).expect("a recipe").current();
        let (program, host_fns) = recipe.build();
        let program = validate(program, Origins::default(), host_fns).expect("random programs are valid");
        let source = generated(&program);
        kernels += source.matches("extern \"C\" __global__").count();
        compiles(&nvrtc, &format!("random program {case}"), &source);
    }
    assert!(kernels > 100, "only {kernels} kernels were tried");
}

/// Protects: an error names the kernel's own file and line, not the prelude's or a generated wrapper's.
#[test]
fn errors_point_at_the_kernels_own_lines() {
    let Some(nvrtc) = compiler() else { return };
    let text = "extern \"C\" __global__ void bad(float* x)\n{\n    x[0] = undeclared;\n}\n";
    let error = compile_source("kernels/bad.cu", text, 90, &nvrtc, &Cache::disabled()).expect_err("an undeclared name");
    assert!(matches!(error, ModuleError::Compiler(NvrtcError::Compile { .. })));
    let message = error.to_string();
    assert!(message.contains("kernels/bad.cu(3)"), "{message}");
    assert!(message.contains("x[0] = undeclared;"), "{message}");
}

/// Protects: a device that the compiler does not know gets PTX, and the text is what the driver expects.
#[test]
fn portable_code_is_the_second_choice() {
    let Some(nvrtc) = compiler() else { return };
    let arch = nvrtc.arch_for(999).expect("later than all");
    assert!(matches!(arch, Arch::Virtual(_)), "{arch:?}");
    let source =
        Source { name: "empty.cu", text: "extern \"C\" __global__ void nothing() {}\n", headers: &[], options: &[] };
    let image = nvrtc.compile(&source, arch).expect("compiles");
    assert_eq!(image.bytes.last(), Some(&0), "the driver wants a final NUL");
    assert!(String::from_utf8_lossy(&image.bytes).contains(".visible .entry nothing"));
    let cubin = nvrtc.compile(&source, Arch::Real(90)).expect("compiles");
    assert!(cubin.bytes.starts_with(b"\x7fELF"));
}
