//! Every kernel compiles, for every architecture that is supported: those of the library, and those that are generated for
//! the specs in `graph_specs/` and for random programs. No device is needed, only NVRTC.
//!
//! Without NVRTC the tests say that they were skipped; with `STEPGRAPH_REQUIRE_NVRTC=1` its absence is a failure.

mod common;

use std::fs;
use std::path::PathBuf;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use stepgraph::codegen::{Generator, ParamSource};
use stepgraph::cuda::nvrtc::{Arch, Nvrtc, NvrtcError, Source};
use stepgraph::emit::cache::{Cache, CacheOutcome};
use stepgraph::emit::modules::{ModuleError, PlanModules, compile_source};
use stepgraph::ir::{NodeOp, Origins};
use stepgraph::kernel::registry;
use stepgraph::plan::{FusionPlan, StepPlan, Target, Tuning, Work, plan};
use stepgraph::spec::{self, SpecOptions};
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

/// Protects: no hand-written kernel is broken for an architecture that nobody has at hand.
#[test]
fn hand_written_kernels_compile() {
    let Some(nvrtc) = compiler() else { return };
    let files = files_in("kernels", "cu");
    for name in registry::names() {
        let file = registry::find(name).expect("listed").decl.source.file;
        assert!(files.contains(&PathBuf::from(&file)), "{name} is in {file}, which is not among {files:?}");
    }
    for file in files {
        let text = fs::read_to_string(&file).expect("a readable file");
        compiles(&nvrtc, &file.display().to_string(), &text);
    }
}

/// Protects: every spec's plans get all the code that they launch, compiled; the second time nothing is compiled.
#[test]
fn plans_of_specs_compile() {
    let Some(nvrtc) = compiler() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let cache = Cache::at(folder.path());
    let specs = files_in("graph_specs", "toml");
    assert!(!specs.is_empty());
    for file in specs {
        let parsed = spec::read(&file, &SpecOptions::default()).unwrap_or_else(|errors| panic!("{errors}"));
        let program = parsed.validate().unwrap_or_else(|errors| panic!("{errors}"));
        let steps: Vec<_> = program.program().steps.values().cloned().collect();
        for (step, variant) in steps.iter().flat_map(|step| step.forms().into_iter().map(move |form| (step, form))) {
            let fusion = FusionPlan::mega();
            let plan = plan(&program, &step.name, variant, &fusion, &Target::default(), &Tuning::default())
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let context = format!("{} {} {variant:?}", file.display(), step.name);
            plan_compiles(&nvrtc, &plan, &cache, &context);
        }
    }
}

fn plan_compiles(nvrtc: &Nvrtc, plan: &StepPlan, cache: &Cache, context: &str) {
    let sm = plan.target().sm;
    let modules = PlanModules::compile(plan, sm, nvrtc, cache).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(modules.modules().iter().all(|module| module.log.is_empty()), "{context}: {:?}", modules.modules());
    for (id, unit) in plan.units().iter() {
        let (kernels, name) = (modules.generated(unit.node), &unit.name);
        match &unit.work {
            Work::Kernel(_) => {
                let NodeOp::Kernel(call) = &plan.program().program().steps[plan.step()].nodes[unit.node].op else {
                    panic!("{context}: {name} is no kernel");
                };
                assert!(modules.module_of(call.kernel).is_some(), "{context}: {name} has no module");
            }
            Work::Map(launch) => assert_eq!(kernels.iter().map(|k| k.launch).collect::<Vec<_>>(), [*launch], "{name}"),
            Work::Reduce(schedule) => {
                let launches: Vec<_> = std::iter::once(schedule.first).chain(schedule.second).collect();
                assert_eq!(kernels.iter().map(|k| k.launch).collect::<Vec<_>>(), launches, "{context}: {name}");
            }
            _ => {}
        }
        let workspace = kernels.iter().any(|kernel| kernel.params.contains(&ParamSource::Workspace));
        assert!(!workspace || plan.arena().workspaces[id].is_some(), "{context}: {name} has no workspace");
    }
    let again = PlanModules::compile(plan, sm, nvrtc, cache).expect("compiled before");
    assert!(again.modules().iter().all(|module| module.outcome == CacheOutcome::Hit), "{context}");
}

/// The files of a folder of the crate with this extension, in order.
fn files_in(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("readable").path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|own| own == extension)).collect();
    files.sort();
    files
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
