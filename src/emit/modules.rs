//! The device code of a plan: sources in, compiled images out. Loading them is emission's business.
//!
//! Every hand-written source file is a module of its own, and the generated kernels of a plan are one more. So a change of
//! the program recompiles the generated kernels alone, a hand-written file is compiled once for all plans that use it, and
//! two files may each have a helper of the same name.

use std::collections::HashSet;
use std::sync::Arc;

use indexmap::IndexMap;
use thiserror::Error;

use super::cache::{Cache, CacheEntry, CacheKey, CacheOutcome};
use crate::codegen::{GeneratedKernel, Generator, PRELUDE};
use crate::cuda::nvrtc::{Arch, Image, Nvrtc, NvrtcError, Source};
use crate::entity::{KernelId, NodeId, SecondaryMap};
use crate::ir::{KernelSource, NodeOp};
use crate::plan::StepPlan;

/// The name under which sources include the prelude.
const PRELUDE_NAME: &str = "stepgraph/prelude.cuh";

/// The compiler's options. Contraction is off, so that `a * b + c` rounds twice as on the host; a kernel that wants one
/// rounding writes `fmaf`. The rest are defaults that must not change.
const OPTIONS: [&str; 6] =
    ["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--generate-line-info"];

/// What can go wrong between a plan and its device code.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModuleError {
    /// The compiler is missing, or refuses a source.
    #[error(transparent)]
    Compiler(#[from] NvrtcError),
    /// The compiler is too new for the device.
    #[error(
        "NVRTC {} does not compile for sm_{sm} any more (it knows sm_{oldest} and later): install an earlier NVRTC",
        version_text(*.version)
    )]
    DeviceTooOld {
        /// The device's compute capability times ten.
        sm: u32,
        /// The first that the compiler knows.
        oldest: u32,
        /// The compiler's version.
        version: (i32, i32),
    },
}

/// A compiler of translation units: NVRTC, or a stand-in.
pub trait Compiler {
    /// The version, which is part of the cache's key.
    fn version(&self) -> (i32, i32);

    /// The compute capabilities (times ten) that it knows, ascending.
    fn archs(&self) -> &[u32];

    /// What to compile for, for a device of this compute capability.
    fn arch_for(&self, sm: u32) -> Option<Arch>;

    /// Compiles a translation unit.
    ///
    /// # Errors
    /// Whatever the compiler says.
    fn compile(&self, source: &Source<'_>, arch: Arch) -> Result<Image, NvrtcError>;
}

impl Compiler for Nvrtc {
    fn version(&self) -> (i32, i32) {
        self.version()
    }

    fn archs(&self) -> &[u32] {
        self.archs()
    }

    fn arch_for(&self, sm: u32) -> Option<Arch> {
        self.arch_for(sm)
    }

    fn compile(&self, source: &Source<'_>, arch: Arch) -> Result<Image, NvrtcError> {
        self.compile(source, arch)
    }
}

/// A compiled module, and how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledModule {
    /// The source's name: the file's, or `generated` with the step's.
    pub name: String,
    /// What it was compiled for.
    pub arch: Arch,
    /// A CUBIN, or PTX.
    pub image: Arc<[u8]>,
    /// The compiler's messages.
    pub log: String,
    /// What the cache did.
    pub outcome: CacheOutcome,
}

/// The device code of a plan.
#[derive(Clone, Debug)]
pub struct PlanModules {
    modules: Vec<CompiledModule>,
    of_kernel: SecondaryMap<KernelId, Option<usize>>,
    of_generated: Option<usize>,
    generated: SecondaryMap<NodeId, Vec<GeneratedKernel>>,
}

impl PlanModules {
    /// Compiles what a plan launches, for a device of compute capability `sm` (times ten).
    ///
    /// # Errors
    /// The first source that does not compile, or a device that the compiler does not know.
    pub fn compile(plan: &StepPlan, sm: u32, compiler: &dyn Compiler, cache: &Cache) -> Result<Self, ModuleError> {
        let sources = PlanSources::of(plan);
        let build = Build { arch: arch_for(compiler, sm)?, compiler, cache };
        let mut modules = sources
            .files
            .iter()
            .map(|(_, source)| build.module(&source.file, &source.text))
            .collect::<Result<Vec<_>, _>>()?;
        let of_generated = (!sources.text.is_empty()).then_some(modules.len());
        if of_generated.is_some() {
            modules.push(build.module(&format!("generated:{}", plan.step_name()), &sources.text)?);
        }
        Ok(Self { modules, of_kernel: sources.of_kernel, of_generated, generated: sources.generated })
    }

    /// The modules, in a stable order.
    pub fn modules(&self) -> &[CompiledModule] {
        &self.modules
    }

    /// The place in [`modules`](Self::modules) of a hand-written kernel, if the plan launches it.
    pub fn module_of(&self, kernel: KernelId) -> Option<usize> {
        self.of_kernel[kernel]
    }

    /// The place in [`modules`](Self::modules) of the generated kernels, if there are any.
    pub fn generated_module(&self) -> Option<usize> {
        self.of_generated
    }

    /// The generated kernels of a node, as [`Generator::kernels`] gives them.
    pub fn generated(&self, node: NodeId) -> &[GeneratedKernel] {
        &self.generated[node]
    }
}

/// The text of a source as the compiler gets it: the prelude included, and lines counted from the source's own first one.
pub fn translation_unit(name: &str, text: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() || c == '"' || c == '\\' { '_' } else { c }).collect();
    format!("#include \"{PRELUDE_NAME}\"\n#line 1 \"{name}\"\n{text}")
}

/// Compiles one source for a device of compute capability `sm` (times ten); a plan's sources all go through here.
///
/// # Errors
/// The source does not compile, or the compiler does not know the device.
pub fn compile_source(
    name: &str,
    text: &str,
    sm: u32,
    compiler: &dyn Compiler,
    cache: &Cache,
) -> Result<CompiledModule, ModuleError> {
    Build { arch: arch_for(compiler, sm)?, compiler, cache }.module(name, text)
}

fn arch_for(compiler: &dyn Compiler, sm: u32) -> Result<Arch, ModuleError> {
    compiler.arch_for(sm).ok_or_else(|| ModuleError::DeviceTooOld {
        sm,
        oldest: compiler.archs().first().copied().unwrap_or_default(),
        version: compiler.version(),
    })
}

/// What a plan needs compiled.
struct PlanSources<'a> {
    files: IndexMap<(&'a str, &'a str), &'a KernelSource>,
    of_kernel: SecondaryMap<KernelId, Option<usize>>,
    text: String,
    generated: SecondaryMap<NodeId, Vec<GeneratedKernel>>,
}

impl<'a> PlanSources<'a> {
    fn of(plan: &'a StepPlan) -> Self {
        let program = plan.program().program();
        let generator = Generator::new(plan.program(), plan.step());
        let mut sources = Self {
            files: IndexMap::new(),
            of_kernel: SecondaryMap::new(),
            text: String::new(),
            generated: SecondaryMap::new(),
        };
        let mut seen = HashSet::new();
        for unit in plan.units().values().filter(|unit| seen.insert(unit.node)) {
            if let NodeOp::Kernel(call) = &program.steps[plan.step()].nodes[unit.node].op {
                let source = &program.kernels[call.kernel].source;
                let (place, _) = sources.files.insert_full((&source.file, &source.text), source);
                sources.of_kernel[call.kernel] = Some(place);
            }
            let kernels = generator.kernels(unit.node);
            kernels.iter().for_each(|kernel| sources.text.push_str(&format!("{}\n", kernel.source)));
            sources.generated[unit.node] = kernels;
        }
        sources
    }
}

/// A compiler with a cache in front of it.
struct Build<'a> {
    compiler: &'a dyn Compiler,
    cache: &'a Cache,
    arch: Arch,
}

impl Build<'_> {
    fn module(&self, name: &str, text: &str) -> Result<CompiledModule, ModuleError> {
        let _span = tracing::debug_span!("compile", name).entered();
        let text = translation_unit(name, text);
        let (major, minor) = self.compiler.version();
        let (version, arch) = (format!("nvrtc {major}.{minor}"), self.arch.name());
        let parts = [text.as_str(), PRELUDE_NAME, PRELUDE, version.as_str(), arch.as_str()];
        let key = CacheKey::new(parts.into_iter().chain(OPTIONS));
        let (entry, outcome) = self.cache.get_or_build(key, || {
            let source = Source { name, text: &text, headers: &[(PRELUDE_NAME, PRELUDE)], options: &OPTIONS };
            self.compiler.compile(&source, self.arch).map(|Image { bytes, log }| CacheEntry { image: bytes, log })
        })?;
        tracing::debug!(name, ?outcome, log = entry.log, "device code");
        Ok(CompiledModule { name: name.into(), arch: self.arch, image: entry.image.into(), log: entry.log, outcome })
    }
}

fn version_text((major, minor): (i32, i32)) -> String {
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A compiler whose code is the source, and that counts what it compiles.
    struct Echo {
        version: (i32, i32),
        compiled: Cell<u32>,
    }

    impl Compiler for Echo {
        fn version(&self) -> (i32, i32) {
            self.version
        }

        fn archs(&self) -> &[u32] {
            &[80, 90]
        }

        fn arch_for(&self, sm: u32) -> Option<Arch> {
            (sm >= 80).then_some(Arch::Real(sm))
        }

        fn compile(&self, source: &Source<'_>, _: Arch) -> Result<Image, NvrtcError> {
            self.compiled.set(self.compiled.get() + 1);
            if source.text.contains("error") {
                return Err(NvrtcError::Compile { name: source.name.into(), log: "no".into() });
            }
            Ok(Image { bytes: source.text.as_bytes().to_vec(), log: "a warning".into() })
        }
    }

    fn echo(version: (i32, i32)) -> Echo {
        Echo { version, compiled: Cell::new(0) }
    }

    /// Protects: code is compiled again exactly when something that it follows from has changed, and messages are kept.
    #[test]
    fn every_ingredient_is_part_of_the_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path());
        let (old, new) = (echo((12, 8)), echo((13, 0)));
        let run = |name: &str, text: &str, sm, compiler: &Echo| {
            compile_source(name, text, sm, compiler, &cache).expect("compiles").outcome
        };
        assert_eq!(run("a.cu", "x", 90, &new), CacheOutcome::Built);
        assert_eq!(run("a.cu", "x", 90, &new), CacheOutcome::Hit);
        assert_eq!(run("b.cu", "x", 90, &new), CacheOutcome::Built, "the name stands in messages and line tables");
        assert_eq!(run("a.cu", "y", 90, &new), CacheOutcome::Built);
        assert_eq!(run("a.cu", "x", 80, &new), CacheOutcome::Built);
        assert_eq!(run("a.cu", "x", 90, &old), CacheOutcome::Built);
        assert_eq!((new.compiled.get(), old.compiled.get()), (4, 1));
        let hit = compile_source("a.cu", "x", 90, &new, &cache).expect("compiles");
        assert_eq!((hit.log.as_str(), new.compiled.get()), ("a warning", 4));
    }

    /// Protects: an error is never kept, and a device that the compiler dropped is named as such.
    #[test]
    fn errors_are_typed_and_not_cached() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::at(folder.path());
        let compiler = echo((13, 0));
        for _ in 0..2 {
            let error = compile_source("a.cu", "error", 90, &compiler, &cache).expect_err("it does not compile");
            assert!(matches!(error, ModuleError::Compiler(NvrtcError::Compile { .. })), "{error}");
        }
        assert_eq!(compiler.compiled.get(), 2);
        let error = compile_source("a.cu", "x", 70, &compiler, &cache).expect_err("an old device");
        assert_eq!(
            error.to_string(),
            "NVRTC 13.0 does not compile for sm_70 any more (it knows sm_80 and later): install an earlier NVRTC"
        );
    }

    /// Protects: a file's name cannot break out of the `#line` directive.
    #[test]
    fn names_are_quoted() {
        assert!(translation_unit("a\"\n#error \\b", "x").contains("\n#line 1 \"a__#error _b\"\nx"));
    }
}
