//! What a session consists of, for users who want to see that it is what they asked for.

use std::fmt;

use super::backend::{Emitted, Lap};
use crate::plan::Region;

/// A session in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionReport {
    /// The device.
    pub device: String,
    /// Each plan, in the order in which they were given.
    pub plans: Vec<PlanReport>,
    /// Bytes of each region; inbox and scratch are the main lane's, whose plans share them.
    pub memory: Vec<(Region, u64)>,
    /// What the other lanes have besides.
    pub lanes: Vec<LaneReport>,
    /// Plans that the device refused, and what runs in their place; see [`OnFailure`](super::OnFailure).
    pub fallbacks: Vec<Fallback>,
    /// How long the parts of opening took on the device; empty on the host.
    pub startup: Vec<Lap>,
    /// Launches so far.
    pub launches: u64,
    /// How many of them had to send the inbox, because a host scalar or an input had changed.
    pub inbox_copies: u64,
}

/// What a lane other than the main one has to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneReport {
    /// The lane's name.
    pub lane: String,
    /// Bytes of its inbox and scratch.
    pub memory: Vec<(Region, u64)>,
}

/// A plan that runs in place of the one that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The step.
    pub step: String,
    /// The variant, where the step has variants.
    pub variant: Option<String>,
    /// The plan that was asked for.
    pub wanted: String,
    /// The plan that runs.
    pub plan: String,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = step_name(&self.step, self.variant.as_deref());
        write!(f, "{name} runs plan {} in place of {}: {}", self.plan, self.wanted, self.reason)
    }
}

/// One plan of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanReport {
    /// The step.
    pub step: String,
    /// The variant, where the step has variants.
    pub variant: Option<String>,
    /// The plan's name: `debug`, `phases`, `mega`, `fast`, or the user's own.
    pub plan: String,
    /// The lane that it runs on.
    pub lane: String,
    /// What it became on the device.
    pub emitted: Emitted,
}

impl fmt::Display for SessionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "device {}", self.device)?;
        for plan in &self.plans {
            let Emitted { graphs, nodes, edges, launches } = plan.emitted;
            let name = step_name(&plan.step, plan.variant.as_deref());
            write!(f, "{name}, plan {}: {graphs} graphs, {nodes} nodes, {edges} edges, ", plan.plan)?;
            writeln!(f, "{launches} launches a run")?;
        }
        for fallback in &self.fallbacks {
            writeln!(f, "{fallback}")?;
        }
        for (region, bytes) in &self.memory {
            writeln!(f, "{} {bytes} bytes", region.name())?;
        }
        for lane in &self.lanes {
            for (region, bytes) in &lane.memory {
                writeln!(f, "lane {}, {} {bytes} bytes", lane.lane, region.name())?;
            }
        }
        for lap in &self.startup {
            writeln!(f, "{:.1} ms to {}", lap.took.as_secs_f64() * 1e3, lap.what)?;
        }
        write!(f, "{} launches so far, {} with an inbox copy", self.launches, self.inbox_copies)
    }
}

/// A step, and its variant, as messages name them.
pub(super) fn step_name(step: &str, variant: Option<&str>) -> String {
    match variant {
        Some(variant) => format!("step `{step}`, variant `{variant}`"),
        None => format!("step `{step}`"),
    }
}
