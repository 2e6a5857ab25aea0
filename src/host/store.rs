//! Results of maps and reductions on their way to memory, and the promises of scattered stores.

use super::error::HostError;
use super::expr::{Code, Registers};
use super::memory::{Cell, HostMemory};
use super::resolve::Resolver;
use super::walk::{Access, Walk};
use crate::ir::{ScatterRule, Store, Target, ValueType};

/// Where one result goes.
#[derive(Clone, Debug)]
pub(super) enum Sink {
    View(Access),
    Scalar(Cell),
    Scatter(Scattered),
}

/// A store to computed places, applied once all elements are known.
#[derive(Clone, Debug)]
pub(super) struct Scattered {
    access: Access,
    rule: Option<ScatterRule>,
    target: String,
    /// The buffer's first element, for errors.
    origin: usize,
    /// Place and bits of each element so far, kept from run to run for their memory.
    pending: Vec<(usize, u32)>,
}

/// The sinks of a node's stores; their accesses join the walk through [`accesses`].
pub(super) fn sinks(resolver: &Resolver<'_>, code: &Code, stores: &[Store]) -> Result<Vec<Sink>, HostError> {
    stores.iter().map(|store| sink(resolver, code, store)).collect()
}

fn sink(resolver: &Resolver<'_>, code: &Code, store: &Store) -> Result<Sink, HostError> {
    let view = match store.target {
        Target::Scalar(scalar) => return resolver.cell(scalar).map(Sink::Scalar),
        Target::View(view) => view,
    };
    let Some(scatter) = &store.scatter else { return resolver.view(&view).map(Sink::View) };
    let access = resolver.access(&view, &scatter.index, |value| code.type_of(value) == ValueType::I32)?;
    let buffer = &resolver.program.buffers[view.buffer];
    Ok(Sink::Scatter(Scattered {
        rule: scatter.rule,
        target: buffer.name.clone(),
        origin: (resolver.buffer(view.buffer)?.offset / buffer.dtype.size()) as usize,
        access,
        pending: Vec::new(),
    }))
}

/// The accesses of sinks that step along the index space.
pub(super) fn accesses(sinks: &mut [Sink]) -> Vec<&mut Access> {
    let stepping = sinks.iter_mut().filter_map(|sink| match sink {
        Sink::View(access) => Some(access),
        Sink::Scatter(scattered) => Some(&mut scattered.access),
        Sink::Scalar(_) => None,
    });
    stepping.collect()
}

/// Stores the present chunk of `len` elements; scattered elements wait for [`finish`].
pub(super) fn store_chunk(
    sinks: &mut [Sink],
    code: &Code,
    walk: &Walk,
    memory: &mut HostMemory,
    len: usize,
    registers: &Registers,
) {
    for (sink, &root) in sinks.iter_mut().zip(code.roots()) {
        let values = registers.values(root, len);
        match sink {
            Sink::View(access) => walk.store(memory, access, &registers.runs, values),
            Sink::Scalar(cell) => memory.set_cell(*cell, values[0]),
            Sink::Scatter(scattered) => scattered.collect(walk, values, registers),
        }
    }
}

/// Checks and applies scattered stores.
pub(super) fn finish(sinks: &mut [Sink], memory: &mut HostMemory, node: &str) -> Result<(), HostError> {
    for sink in sinks {
        if let Sink::Scatter(scattered) = sink {
            scattered.apply(memory, node)?;
        }
    }
    Ok(())
}

impl Scattered {
    fn collect(&mut self, walk: &Walk, values: &[u32], registers: &Registers) {
        let mut places = vec![0; values.len()];
        walk.places(&self.access, &registers.runs, &mut places);
        for (number, (&value, &place)) in values.iter().zip(&places).enumerate() {
            let along = |term: &super::walk::Computed| term.checked(registers.values(term.value, values.len())[number]);
            let computed: Option<usize> = self.access.computed.iter().map(along).sum();
            if let Some(computed) = computed {
                self.pending.push((place + computed, self.access.element_bits(value)));
            }
        }
    }

    fn apply(&mut self, memory: &mut HostMemory, node: &str) -> Result<(), HostError> {
        // Stable: where places meet, the element that comes last in the index space is stored last.
        self.pending.sort_by_key(|&(place, _)| place);
        let broken = self.pending.windows(2).find(|pair| match self.rule {
            Some(ScatterRule::Unique) => pair[0].0 == pair[1].0,
            Some(ScatterRule::SameValue) => pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1,
            None => false,
        });
        if let (Some(pair), Some(rule)) = (broken, self.rule) {
            let error = HostError::BrokenScatterRule {
                node: node.to_owned(),
                target: self.target.clone(),
                rule: rule.name(),
                place: (pair[0].0 - self.origin) as u64,
            };
            self.pending.clear();
            return Err(error);
        }
        for (place, bits) in self.pending.drain(..) {
            self.access.put(memory, place, bits);
        }
        Ok(())
    }
}
