//! Names in generated code: the user's own, made fit for C and unique.

use std::collections::HashSet;

use crate::entity::EntityRef;
use crate::ir::Step;

/// The name of each node's kernel, by node: `phase__node`, numbered where two nodes would share it.
pub(super) fn kernel_names(step: &Step) -> Vec<String> {
    let phases = step.phase_of_nodes();
    let mut taken = HashSet::new();
    let names = step.nodes.iter().map(|(id, node)| {
        let phase = phases[id.index()].map_or("node", |phase| step.phases[phase].name.as_str());
        unique(kernel_name(&identifier(phase), &identifier(&node.name)), &mut taken)
    });
    names.collect()
}

/// A C identifier does not start with a digit.
fn kernel_name(phase: &str, node: &str) -> String {
    let prefix = if phase.starts_with(|c: char| c.is_ascii_digit()) { "k" } else { "" };
    format!("{prefix}{phase}__{node}")
}

/// `name` itself, or with the first number that makes it new; it counts as taken from then on.
pub(super) fn unique(name: String, taken: &mut HashSet<String>) -> String {
    if taken.insert(name.clone()) {
        return name;
    }
    let mut number = 2u32;
    loop {
        let candidate = format!("{name}_{number}");
        if taken.insert(candidate.clone()) {
            return candidate;
        }
        number += 1;
    }
}

/// The name in letters, digits and single underscores. Two underscores in a row are left for joining parts.
pub(super) fn identifier(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let text = words.collect::<Vec<_>>().join("_");
    if text.is_empty() { "x".into() } else { text }
}
