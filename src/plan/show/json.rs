//! The JSON form, for tools.

use serde_json::{Value, json};

use super::describe::{Argument, describe};
use super::edges::{Wait, Waits};
use super::memory::owners;
use super::names::Names;
use crate::entity::UnitId;
use crate::ir::LaunchConfig;
use crate::plan::counts::Counts;
use crate::plan::options::{Fuse, Graphs, Repeat, Schedule};
use crate::plan::types::{Body, Region, StepPlan};

impl StepPlan {
    /// The plan as JSON: what the text form says, as data. Keys are in a fixed order.
    pub fn json(&self) -> Value {
        let names = Names::new(self);
        let waits = Waits::new(names);
        let graphs: Vec<Value> = self
            .graphs
            .iter()
            .map(|graph| json!({ "name": graph.name, "units": body(&names, &waits, &graph.body) }))
            .collect();
        let counts = Counts::of(self);
        let units: serde_json::Map<String, Value> =
            counts.units.iter().map(|&(kind, count)| (kind.to_owned(), json!(count))).collect();
        json!({
            "program": names.program.name,
            "step": self.step_name(),
            "variant": self.variant(),
            "identity": self.identity().to_string(),
            "plan": options(self),
            "target": {
                "sm": self.target.sm,
                "multiprocessors": self.target.multiprocessors,
                "shared_per_block": self.target.shared_per_block,
                "driver": self.target.driver,
            },
            "graphs": graphs,
            "counts": {
                "graphs": counts.graphs,
                "launches": counts.launches,
                "steps": counts.steps,
                "units": units,
                "edges": counts.edges,
                "levels": counts.levels,
            },
            "memory": Region::ALL.map(|region| memory(&names, region)),
        })
    }
}

fn options(plan: &StepPlan) -> Value {
    let fusion = &plan.fusion;
    let graphs = match fusion.graphs {
        Graphs::PerNode => "per-node",
        Graphs::PerPhase => "per-phase",
        Graphs::Mega => "mega",
    };
    let schedule = match fusion.schedule {
        Schedule::Chain => "chain",
        Schedule::Dag => "dag",
    };
    let fuse = match &fusion.fuse {
        Fuse::None => json!("none"),
        Fuse::All => json!("all"),
        Fuse::Named(passes) => json!(passes),
    };
    let kind = match fusion.repeat {
        Repeat::Once => "once",
        Repeat::Unroll(_) => "unroll",
        Repeat::Loop(_) => "loop",
    };
    json!({
        "name": fusion.name,
        "graphs": graphs,
        "schedule": schedule,
        "fuse": fuse,
        "pdl": fusion.pdl,
        "repeat": { "kind": kind, "steps": fusion.repeat.steps() },
    })
}

fn body(names: &Names<'_>, waits: &Waits<'_>, of: &Body) -> Vec<Value> {
    let mut waiting = waits.of(of);
    let unit = |&id: &UnitId| {
        let unit = &names.plan.units[id];
        let description = describe(names, unit);
        let bodies: Vec<Value> = description
            .bodies
            .iter()
            .map(|(label, inner)| json!({ "name": label, "units": body(names, waits, inner) }))
            .collect();
        json!({
            "name": unit.name,
            "kind": names.program.steps[names.plan.step].nodes[unit.node].op.kind(),
            "runs": description.headline,
            "launches": description.launches.iter().map(launch).collect::<Vec<_>>(),
            "arguments": description.arguments.iter().map(argument).collect::<Vec<_>>(),
            "formulas": description.formulas,
            "after": waiting.remove(&id).unwrap_or_default().iter().map(wait).collect::<Vec<_>>(),
            "bodies": bodies,
        })
    };
    of.units.iter().map(unit).collect()
}

fn launch(config: &LaunchConfig) -> Value {
    json!({ "grid": config.grid, "block": config.block, "shared": config.shared })
}

fn argument(argument: &Argument) -> Value {
    json!({ "name": argument.name, "class": argument.class, "value": argument.value, "type": argument.detail })
}

fn wait(wait: &Wait<'_>) -> Value {
    let kind = if wait.programmatic { "programmatic" } else { "full" };
    json!({ "unit": wait.from, "via": wait.via, "for": wait.to, "causes": wait.causes, "kind": kind })
}

fn memory(names: &Names<'_>, region: Region) -> Value {
    let owners: Vec<Value> = owners(names, region)
        .into_iter()
        .map(|(placement, owner)| json!({ "offset": placement.offset, "bytes": placement.bytes, "owner": owner }))
        .collect();
    json!({ "region": region.name(), "bytes": names.plan.arena.size(region), "owners": owners })
}
