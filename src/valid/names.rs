//! Names: well formed, each standing for one thing.

use rustc_hash::FxHashSet;

use super::report::Report;
use crate::ir::{Item, Program, ProgramError};

/// Checks the names of everything but nodes and phases, whose variants decide: see [`super::control`].
pub(super) fn check(program: &Program, report: &mut Report<'_>) {
    form(&Item::Program, &program.name, report);
    let mut symbols = Names::default();
    for (id, buffer) in program.buffers.iter() {
        symbols.add(&Item::Buffer(id), "buffer", &buffer.name, report);
    }
    for (id, group) in program.groups.iter() {
        symbols.add(&Item::Group(id), "group", &group.name, report);
    }
    for (id, scalar) in program.scalars.iter() {
        symbols.add(&Item::Scalar(id), "scalar", &scalar.name, report);
    }
    let (mut kernels, mut steps) = (Names::default(), Names::default());
    for (id, kernel) in program.kernels.iter() {
        kernels.add(&Item::Kernel(id), "kernel", &kernel.name, report);
    }
    for (id, step) in program.steps.iter() {
        steps.add(&Item::Step(id), "step", &step.name, report);
        let mut variants = Names::default();
        for variant in &step.variants {
            variants.add(&Item::Step(id), "variant", variant, report);
        }
    }
}

/// Checks that a name can be written in specs and dumps.
pub(super) fn form(item: &Item, name: &str, report: &mut Report<'_>) {
    if !name.split('.').all(is_part) {
        report.add(item, ProgramError::BadName { name: name.into() });
    }
}

/// Names of one kind, or of kinds that share one space.
#[derive(Default)]
struct Names<'a>(FxHashSet<&'a str>);

impl<'a> Names<'a> {
    fn add(&mut self, item: &Item, kind: &'static str, name: &'a str, report: &mut Report<'_>) {
        form(item, name, report);
        if !self.0.insert(name) {
            report.add(item, ProgramError::DuplicateName { kind, name: name.into() });
        }
    }
}

fn is_part(part: &str) -> bool {
    part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
