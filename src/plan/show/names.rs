//! Names of things in a plan, as the user wrote them.

use crate::entity::{ScalarId, UnitId};
use crate::ir::{Program, Resource, View, Writer};
use crate::plan::types::StepPlan;

/// Looks up names in one plan.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) plan: &'a StepPlan,
    pub(super) program: &'a Program,
}

impl<'a> Names<'a> {
    pub(super) fn new(plan: &'a StepPlan) -> Self {
        Self { plan, program: plan.program.program() }
    }

    pub(super) fn unit(&self, unit: UnitId) -> &'a str {
        &self.plan.units[unit].name
    }

    pub(super) fn scalar(&self, scalar: ScalarId) -> &'a str {
        &self.program.scalars[scalar].name
    }

    /// `x` for a whole buffer, `x[2:5, :, 3]` for a box of it.
    pub(super) fn view(&self, view: &View) -> String {
        let buffer = &self.program.buffers[view.buffer];
        let axes = view.ranges().iter().zip(buffer.shape.dims()).map(|(range, &dim)| match range.dropped {
            true => range.start.to_string(),
            false if range.start == 0 && range.len == dim => ":".to_owned(),
            false => format!("{}:{}", range.start, range.end()),
        });
        let axes: Vec<String> = axes.collect();
        if axes.iter().all(|axis| axis == ":") {
            return buffer.name.clone();
        }
        format!("{}[{}]", buffer.name, axes.join(", "))
    }

    /// `f32[64, 10]`: the element type and the shape of a view.
    pub(super) fn view_type(&self, view: &View) -> String {
        format!("{}{}", self.program.buffers[view.buffer].dtype, view.shape())
    }

    /// `u32 device`: the type and the writer of a scalar.
    pub(super) fn scalar_type(&self, scalar: ScalarId) -> String {
        let scalar = &self.program.scalars[scalar];
        let writer = match scalar.writer {
            Writer::Host => "host",
            Writer::Device => "device",
        };
        format!("{} {writer}", scalar.init.dtype())
    }

    pub(super) fn resource(&self, resource: &Resource) -> String {
        match resource {
            Resource::View(view) => self.view(view),
            Resource::Scalar(scalar) => self.scalar(*scalar).to_owned(),
        }
    }
}
