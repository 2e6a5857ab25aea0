//! Names: well formed, not reserved, each standing for one thing.

use std::collections::HashSet;

use super::report::Report;
use crate::entity::StepId;
use crate::ir::{Item, Program, ProgramError, Step};

/// What expressions of specs understand by these.
const EXPRESSION_WORDS: [&str; 6] = ["acc", "let", "i0", "i1", "i2", "i3"];
/// The tables of a spec that are not steps.
const SPEC_TABLES: [&str; 10] =
    ["program", "dims", "scalar", "input", "param", "state", "temp", "output", "group", "kernel"];

/// Checks the names of everything but nodes and phases, whose variants decide: see [`super::control`].
pub(super) fn check(program: &Program, report: &mut Report<'_>) {
    plain(&Item::Program, "program", &program.name, &[], report);
    let mut taken = HashSet::new();
    for (id, buffer) in program.buffers.iter() {
        symbol(Item::Buffer(id), "buffer", &buffer.name, &mut taken, report);
    }
    for (id, group) in program.groups.iter() {
        symbol(Item::Group(id), "group", &group.name, &mut taken, report);
    }
    for (id, scalar) in program.scalars.iter() {
        symbol(Item::Scalar(id), "scalar", &scalar.name, &mut taken, report);
    }
    let mut kernels = HashSet::new();
    for kernel in program.kernels.values() {
        once("kernel", &kernel.name, &Item::Program, &mut kernels, report);
    }
    let mut steps = HashSet::new();
    for (id, step) in program.steps.iter() {
        plain(&Item::Step(id), "step", &step.name, &SPEC_TABLES, report);
        once("step", &step.name, &Item::Step(id), &mut steps, report);
        variants(id, step, report);
    }
}

/// Checks the form of a phase's name.
pub(super) fn phase(item: &Item, name: &str, report: &mut Report<'_>) {
    plain(item, "phase", name, &["variants"], report);
}

/// Checks the form of a node's name.
pub(super) fn node(item: &Item, name: &str, report: &mut Report<'_>) {
    if !is_name(name) {
        report.add(item, ProgramError::BadName { name: name.into() });
    }
}

fn variants(id: StepId, step: &Step, report: &mut Report<'_>) {
    let mut taken = HashSet::new();
    for variant in &step.variants {
        plain(&Item::Step(id), "variant", variant, &[], report);
        once("variant", variant, &Item::Step(id), &mut taken, report);
    }
}

fn symbol<'a>(item: Item, kind: &'static str, name: &'a str, taken: &mut HashSet<&'a str>, report: &mut Report<'_>) {
    if !is_name(name) {
        report.add(&item, ProgramError::BadName { name: name.into() });
    }
    if EXPRESSION_WORDS.contains(&name) {
        let reason = "has a meaning in expressions";
        report.add(&item, ProgramError::ReservedName { kind, name: name.into(), reason });
    }
    once(kind, name, &item, taken, report);
}

/// A name without dots.
fn plain(item: &Item, kind: &'static str, name: &str, reserved: &[&str], report: &mut Report<'_>) {
    let error = if !is_name(name) {
        ProgramError::BadName { name: name.into() }
    } else if name.contains('.') {
        ProgramError::ReservedName { kind, name: name.into(), reason: "has a dot, which separates steps and phases" }
    } else if reserved.contains(&name) {
        ProgramError::ReservedName { kind, name: name.into(), reason: "is a table of its own in specs" }
    } else {
        return;
    };
    report.add(item, error);
}

fn once<'a>(kind: &'static str, name: &'a str, item: &Item, taken: &mut HashSet<&'a str>, report: &mut Report<'_>) {
    if !taken.insert(name) {
        report.add(item, ProgramError::DuplicateName { kind, name: name.into() });
    }
}

fn is_name(name: &str) -> bool {
    name.split('.').all(is_part)
}

fn is_part(part: &str) -> bool {
    part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
