//! Links: how one lane hands what it wrote to another.

use super::backend::LinkPlan;
use super::error::RuntimeError;
use super::lanes::Lanes;
use super::report::step_name;
use crate::entity::{BufferId, GroupId, ProgramTag};
use crate::handle::{Place, Tensor};
use crate::ir::{Element, Program, Role, Symbol};
use crate::plan::{Placement, StepPlan};

/// Parameters or state of one lane, and the copy of them that another lane reads.
///
/// [`Session::publish`](super::Session::publish) copies them over. In between lie two slots that belong to the session, so that
/// the writing lane goes on at once, and the reading lane sees either all of a publication or nothing of it.
///
/// Each source has the same type and shape as its target: a whole buffer each, or a whole group each. A target may be the source of
/// another link.
///
/// ```
/// use stepgraph::Builder;
/// use stepgraph::ir::Init;
/// use stepgraph::plan::{FusionPlan, Target, Tuning};
/// use stepgraph::runtime::{Device, Link, Session};
///
/// let mut p = Builder::new("beside");
/// let w = p.param::<f32>("w", [4], Init::Zeros);
/// let seen = p.state::<f32>("seen", [4], Init::Zeros);
/// let total = p.device_scalar("total", 0.0f32);
/// p.step("train", |s| {
///     s.phase("main", |f| {
///         f.map_to("w", w, w + 1.0f32);
///     });
/// });
/// p.step("validate", |s| s.phase("main", |f| f.sum("total", &[0], seen.val()).to_scalar(total)));
/// let program = p.build()?;
/// let plan = |step| program.plan(step, &FusionPlan::mega(), &Target::default(), &Tuning::default());
///
/// let mut session = Session::builder()
///     .lane("validation", [plan("validate")?])
///     .link(Link::new("weights").copy(w, seen))
///     .open(Device::Host, [plan("train")?])?;
/// session.launch("train")?;
/// session.publish("weights")?;
/// let validated = session.launch("validate")?;
/// session.launch("train")?; // beside it, on a device
/// assert_eq!(validated.wait(&mut session)?.read_scalar(total)?, 4.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Link {
    name: String,
    parts: Vec<[End; 2]>,
}

#[derive(Clone, Debug)]
enum End {
    Handle { tag: ProgramTag, place: Place },
    Name(String),
}

/// Whether a publication was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Publish {
    /// The reading lane's next launch sees it.
    Done,
    /// Both slots wait for the reading lane; nothing was done.
    Busy,
}

impl Link {
    /// A link of this name that copies nothing yet.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), parts: Vec::new() }
    }

    /// Also copies this tensor to that one.
    #[must_use]
    pub fn copy<T: Element>(mut self, from: Tensor<T>, to: Tensor<T>) -> Self {
        let end = |tensor: Tensor<T>| End::Handle { tag: tensor.tag, place: tensor.place };
        self.parts.push([end(from), end(to)]);
        self
    }

    /// Also copies the buffer or group of this name to the one of that name.
    #[must_use]
    pub fn copy_by_name(mut self, from: &str, to: &str) -> Self {
        self.parts.push([from, to].map(|name| End::Name(name.to_owned())));
        self
    }

    /// The link's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Notes what the link writes, and on which lane. To be done for all links before any is resolved: one may take over what another
    /// has brought.
    pub(super) fn note_targets(&self, plans: &[StepPlan], lanes: &mut Lanes) -> Result<(), RuntimeError> {
        let resolver = Resolver { link: &self.name, plan: &plans[0] };
        for [_, to] in &self.parts {
            let to = resolver.whole(to)?;
            let reader = resolver.reader(&to, plans, lanes)?;
            to.buffers.iter().for_each(|&target| lanes.is_target(target, reader));
        }
        Ok(())
    }

    /// What a publication copies, and between which lanes.
    pub(super) fn resolve(&self, plans: &[StepPlan], lanes: &Lanes) -> Result<LinkPlan, RuntimeError> {
        let resolver = Resolver { link: &self.name, plan: &plans[0] };
        let mut joined: Option<(usize, usize)> = None;
        let mut copies = Vec::new();
        for [from, to] in &self.parts {
            let (from, to) = (resolver.whole(from)?, resolver.whole(to)?);
            resolver.check_alike(&from, &to)?;
            let ends = (resolver.writer(&from, lanes)?, resolver.reader(&to, plans, lanes)?);
            if ends.0 == ends.1 {
                let lane = &lanes.names()[ends.0];
                let remedy = "read the source, or move the step to another lane";
                let problem = format!("source and target are both of lane `{lane}`: {remedy}");
                return Err(resolver.wrong(to.name, problem));
            }
            if *joined.get_or_insert(ends) != ends {
                return Err(
                    resolver.wrong(to.name, "it joins other lanes than the first part: make two links".to_owned())
                );
            }
            copies.extend(resolver.copies(&from, &to));
        }
        let Some((from, to)) = joined else {
            let remedy = "a link copies at least one tensor: name one with `copy`".to_owned();
            return Err(resolver.wrong(self.name.clone(), remedy));
        };
        Ok(LinkPlan { from, to, copies })
    }
}

/// Looks a link's parts up.
struct Resolver<'a> {
    link: &'a str,
    plan: &'a StepPlan,
}

/// A whole buffer, or all of a group.
struct Whole {
    name: String,
    buffers: Vec<BufferId>,
    group: Option<GroupId>,
}

impl Resolver<'_> {
    fn program(&self) -> &Program {
        self.plan.program().program()
    }

    fn wrong(&self, name: String, problem: String) -> RuntimeError {
        RuntimeError::Link { link: self.link.to_owned(), name, problem }
    }

    fn whole(&self, end: &End) -> Result<Whole, RuntimeError> {
        let program = self.program();
        let unknown = |name: &str| RuntimeError::UnknownName { kind: "buffer or group", name: name.to_owned() };
        let place = match end {
            End::Handle { tag, .. } if self.plan.program().origins().tag() != Some(*tag) => {
                return Err(RuntimeError::ForeignHandle { what: "a tensor of a link" });
            }
            End::Handle { place, .. } => *place,
            End::Name(name) => match program.symbols().get(name.as_str()) {
                Some(&Symbol::Buffer(buffer)) => {
                    Place::View(crate::ir::View::full(buffer, &program.buffers[buffer].shape))
                }
                Some(&Symbol::Group(group)) => Place::Group(group),
                _ => return Err(unknown(name)),
            },
        };
        let whole = match place {
            Place::View(view) => {
                let name = buffer_name(program, view.buffer);
                if view.shape().elements() != program.buffers[view.buffer].shape.elements() {
                    return Err(self.wrong(name, "a link copies whole buffers, not a box of one".to_owned()));
                }
                Whole { name, buffers: vec![view.buffer], group: None }
            }
            Place::Group(group) => {
                let declared = &program.groups[group];
                Whole { name: declared.name.clone(), buffers: declared.members.clone(), group: Some(group) }
            }
        };
        let wrong = whole.buffers.iter().map(|&buffer| &program.buffers[buffer]);
        match wrong.into_iter().find(|buffer| !matches!(buffer.role, Role::Param | Role::State)) {
            Some(buffer) => {
                let problem = format!("it is {}, and a link copies parameters and state", buffer.role.name());
                Err(self.wrong(buffer.name.clone(), problem))
            }
            None => Ok(whole),
        }
    }

    fn check_alike(&self, from: &Whole, to: &Whole) -> Result<(), RuntimeError> {
        let program = self.program();
        let facts = |whole: &Whole| -> Vec<_> {
            let declared = whole.buffers.iter().map(|&buffer| &program.buffers[buffer]);
            declared.map(|buffer| (buffer.dtype, buffer.shape)).collect()
        };
        if facts(from) == facts(to) && from.group.is_some() == to.group.is_some() {
            return Ok(());
        }
        let text = |whole: &Whole| {
            let declared = facts(whole).into_iter();
            declared.map(|(dtype, shape)| format!("{dtype} {shape}")).collect::<Vec<_>>().join(", ")
        };
        let problem = format!("it is {}, and its target `{}` is {}: they must be alike", text(from), to.name, text(to));
        Err(self.wrong(from.name.clone(), problem))
    }

    /// The one lane that writes the source; the main one where none does.
    fn writer(&self, from: &Whole, lanes: &Lanes) -> Result<usize, RuntimeError> {
        // What nobody writes is the same on every lane.
        let writers = from.buffers.iter().filter_map(|&source| lanes.writing_lane(source));
        let several = "steps of two lanes write its members: make two links";
        self.one_lane(writers, several, &from.name).map(|lane| lane.unwrap_or(0))
    }

    /// The one lane that reads the target, which no step writes.
    fn reader(&self, to: &Whole, plans: &[StepPlan], lanes: &Lanes) -> Result<usize, RuntimeError> {
        for &target in &to.buffers {
            if let Some(plan) = lanes.writing_plan(target) {
                let step = step_name(plans[plan].step_name(), plans[plan].variant());
                let name = buffer_name(self.program(), target);
                return Err(self.wrong(name, format!("{step} writes it: only the link may write its target")));
            }
        }
        let readers = to.buffers.iter().flat_map(|&target| lanes.touching(target));
        let several = "steps of two lanes read it: give each lane a copy of its own";
        let nobody = "no step of this session reads it: pass the plan of the step that does";
        let reader = self.one_lane(readers, several, &to.name)?;
        reader.ok_or_else(|| self.wrong(to.name.clone(), nobody.to_owned()))
    }

    fn one_lane(
        &self,
        mut found: impl Iterator<Item = usize>,
        several: &str,
        name: &str,
    ) -> Result<Option<usize>, RuntimeError> {
        let first = found.next();
        match found.all(|lane| Some(lane) == first) {
            true => Ok(first),
            false => Err(self.wrong(name.to_owned(), several.to_owned())),
        }
    }

    /// One copy for a group, whose members lie side by side, padding included; one for a buffer.
    fn copies(&self, from: &Whole, to: &Whole) -> Vec<(Placement, Placement)> {
        let program = self.program();
        let place = |whole: &Whole| -> Option<Placement> {
            let first = self.plan.arena().buffers[*whole.buffers.first()?]?;
            let bytes = whole.group.map_or(first.bytes, |group| program.group_layout(group).1);
            Some(Placement { bytes, ..first })
        };
        place(from).zip(place(to)).into_iter().collect()
    }
}

/// A program's name for a buffer.
fn buffer_name(program: &Program, buffer: BufferId) -> String {
    program.buffers[buffer].name.clone()
}
