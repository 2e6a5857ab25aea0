//! Kernel declarations: consistent in themselves and equal to their sources.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::report::Report;
use crate::entity::{KernelId, PrimaryMap};
use crate::ir::{
    DType, Dim, Item, KernelDecl, KernelParam, LaunchRule, MAX_OPERANDS, MAX_RANK, ParamClass, Program, ProgramError,
};
use crate::kernel::signature::{self, Signature, SignatureError};

/// The symbols of each kernel's shapes, in the order in which they first stand.
pub(super) type Symbols = PrimaryMap<KernelId, Vec<String>>;

/// Checks every declaration.
pub(super) fn check(program: &Program, report: &mut Report<'_>) -> Symbols {
    let mut sources = Sources::default();
    let mut symbols = Symbols::new();
    for (id, decl) in program.kernels.iter() {
        let own = symbols_of(decl);
        for reason in faults(decl, &own, &mut sources) {
            let (kernel, file) = (decl.name.clone(), decl.source.file.clone());
            report.add(&Item::Kernel(id), ProgramError::BadKernel { kernel, file, reason });
        }
        symbols.push(own);
    }
    symbols
}

/// The signatures of each source text; many kernels share one.
#[derive(Default)]
struct Sources(FxHashMap<(*const u8, usize), Result<Vec<Signature>, SignatureError>>);

impl Sources {
    fn get(&mut self, text: &Arc<str>) -> &Result<Vec<Signature>, SignatureError> {
        self.0.entry((text.as_ptr(), text.len())).or_insert_with(|| signature::parse(text))
    }
}

fn symbols_of(decl: &KernelDecl) -> Vec<String> {
    let mut seen = FxHashSet::default();
    let dims = decl.params.iter().flat_map(|param| param.shape.iter().flatten());
    let names = dims.filter_map(|dim| match dim {
        Dim::Symbol(name) => Some(name),
        Dim::Fixed(_) => None,
    });
    names.filter(|name| seen.insert(name.as_str())).cloned().collect()
}

fn faults(decl: &KernelDecl, symbols: &[String], sources: &mut Sources) -> Vec<String> {
    let mut faults = Vec::new();
    if decl.params.len() > MAX_OPERANDS {
        let found = decl.params.len();
        return vec![format!("it has {found} parameters, at most {MAX_OPERANDS} fit in one launch")];
    }
    let mut names = FxHashSet::default();
    for param in &decl.params {
        if !names.insert(param.name.as_str()) {
            faults.push(format!("two parameters are named `{}`", param.name));
        }
        faults.extend(param_fault(param, symbols));
    }
    faults.extend(launch_fault(decl));
    faults.extend(resource_fault(decl, symbols));
    let fault = match sources.get(&decl.source.text) {
        Ok(signatures) => signature::check_against(decl, signatures).err().map(|fault| fault.to_string()),
        Err(error) => Some(error.to_string()),
    };
    faults.extend(fault);
    faults
}

fn param_fault(param: &KernelParam, symbols: &[String]) -> Option<String> {
    let (name, class) = (&param.name, param.class.name());
    if let Some(shape) = &param.shape {
        if !param.class.is_buffer() {
            return Some(format!("`{name}` is {class}, and only buffers have a shape"));
        }
        if shape.len() > MAX_RANK {
            return Some(format!("`{name}` has {} axes: at most {MAX_RANK} are supported", shape.len()));
        }
        if shape.contains(&Dim::Fixed(0)) {
            return Some(format!("`{name}` has an extent of 0"));
        }
    }
    if param.class == ParamClass::Size {
        if param.dtype != DType::U32 {
            return Some(format!("the size `{name}` is {}: sizes are u32", param.dtype));
        }
        if !symbols.contains(name) {
            return Some(format!("no buffer's shape has the symbol `{name}` that the size is named after"));
        }
    }
    let is_cell = param.class.is_scalar() || param.class == ParamClass::Const;
    (is_cell && param.dtype == DType::Bf16)
        .then(|| format!("`{name}` is bf16: scalars and constants are f32, i32 or u32"))
}

fn launch_fault(decl: &KernelDecl) -> Option<String> {
    let (of, extents): (Option<&String>, Vec<u32>) = match &decl.launch {
        LaunchRule::Elements { of, block, per_thread } => (Some(of), vec![*block, *per_thread]),
        LaunchRule::Rows { of, block } => (Some(of), vec![*block]),
        LaunchRule::Tiles { of, tile, block } => (Some(of), vec![tile[0], tile[1], *block]),
        LaunchRule::Fixed { grid, block } => (None, [*grid, *block].concat()),
    };
    if extents.contains(&0) {
        return Some("its launch rule has an extent of 0".into());
    }
    let of = of?;
    match decl.param(of) {
        Some((_, param)) if param.class.is_buffer() => None,
        Some((_, param)) => Some(format!("its launch follows `{of}`, which is {}: name a buffer", param.class.name())),
        None => Some(format!("its launch follows `{of}`, which is no parameter")),
    }
}

fn resource_fault(decl: &KernelDecl, symbols: &[String]) -> Option<String> {
    if decl.cluster.is_some_and(|cluster| cluster.contains(&0)) {
        return Some("its cluster has an extent of 0".into());
    }
    if let Some((_, symbol)) = decl.shared.per_unit.as_ref().filter(|(_, symbol)| !symbols.contains(symbol)) {
        return Some(format!("its shared memory follows `{symbol}`, which is no symbol of a buffer's shape"));
    }
    let early = decl.pdl.iter().flat_map(|contract| &contract.early);
    early.into_iter().find_map(|name| match decl.param(name) {
        Some((_, param)) if param.class.reads() => None,
        Some((_, param)) => Some(format!("`{name}` is read early, but is {}", param.class.name())),
        None => Some(format!("`{name}` is read early, but is no parameter")),
    })
}
