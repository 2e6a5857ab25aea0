//! What can go wrong in a session, one rule per variant.

use std::error::Error;

use crate::emit::modules::ModuleError;
use crate::host::HostError;
use crate::ir::{DType, Shape};

/// A mistake in using a session, a program that breaks its own promises, or a device that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// A session runs at least one plan.
    #[error("a session needs at least one plan: pass the plan of a step")]
    NoPlans,
    /// Each step and variant has one plan in a session.
    #[error("two plans are for {step}: keep one of them")]
    DuplicatePlan {
        /// The step, and the variant where it has variants.
        step: String,
    },
    /// All plans of a session are of one program.
    #[error("the plan of {step} is of program `{found}`, the others are of `{expected}` or of another build of it")]
    OtherProgram {
        /// The step, and the variant where it has variants.
        step: String,
        /// The other plans' program.
        expected: String,
        /// This plan's program.
        found: String,
    },
    /// A context, stream or buffer of the user is for a device, not for the host.
    #[error("a CUDA {what} was given, but the session is opened on the host: open it on the device, or leave it out")]
    NotOnHost {
        /// What was given.
        what: &'static str,
    },
    /// Each lane of a session has a name of its own.
    #[error("two lanes are called `{name}`: a session's lanes, `main` among them, have different names")]
    DuplicateLane {
        /// The name.
        name: String,
    },
    /// Lanes are called by their names.
    #[error("a lane has an empty name: reports and errors need one to call it by")]
    UnnamedLane,
    /// A lane is called by its name.
    #[error("there is no lane `{name}`; this session has {have}")]
    NoLane {
        /// The name.
        name: String,
        /// What there is.
        have: String,
    },
    /// What a lane writes is touched by that lane alone.
    #[error(
        "{kind} `{name}` is written by {writer} and used by {other}: lanes are not ordered; give the latter a copy of its own and \
         publish to it through a link"
    )]
    SharedAcrossLanes {
        /// Buffer or scalar.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The step that writes it, with its lane, and the variant where it has variants.
        writer: String,
        /// A step of another lane that touches it, likewise.
        other: String,
    },
    /// A link copies parameters or state of one lane to memory that one other lane only reads.
    #[error("link `{link}`: `{name}`: {problem}")]
    Link {
        /// The link.
        link: String,
        /// The buffer or group.
        name: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// Each link of a session has a name of its own.
    #[error("two links are called `{name}`: give them different names")]
    DuplicateLink {
        /// The name.
        name: String,
    },
    /// A link is called by its name.
    #[error("there is no link `{name}`; this session has {have}")]
    NoLink {
        /// The name.
        name: String,
        /// What there is.
        have: String,
    },
    /// A launch names a step that the session has a plan for.
    #[error("there is no plan for {step}; this session has {have}")]
    NoPlan {
        /// The step, and the variant where one was named.
        step: String,
        /// What there is.
        have: String,
    },
    /// A name stands for something that the program declares.
    #[error("the program has no {kind} `{name}`")]
    UnknownName {
        /// What was looked for.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A handle is used with a session of the program that made it.
    #[error("{what} is a handle of another program: use the one that this program's builder gave")]
    ForeignHandle {
        /// What the handle would name here.
        what: &'static str,
    },
    /// Values have the type of the memory that they go to.
    #[error("`{name}` holds {expected}, {found} was given")]
    WrongType {
        /// The buffer or scalar.
        name: String,
        /// Its type.
        expected: DType,
        /// The type given.
        found: DType,
    },
    /// A box of a buffer lies inside of it.
    #[error("the handle takes {found} of `{name}`, whose shape is {shape}: slice inside of it")]
    OutOfBounds {
        /// The buffer.
        name: String,
        /// The box.
        found: String,
        /// The buffer's shape.
        shape: Shape,
    },
    /// As many values are given as there are elements.
    #[error("`{name}` takes {expected} elements, {found} were given")]
    WrongLength {
        /// The buffer or view.
        name: String,
        /// How many it has.
        expected: u64,
        /// How many were given.
        found: u64,
    },
    /// Each role is written and read in its own way.
    #[error("`{name}` is {role} and cannot be {action}: {remedy}")]
    WrongRole {
        /// The buffer or scalar.
        name: String,
        /// What it is.
        role: &'static str,
        /// What was tried.
        action: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The padding between members of a group stays zero.
    #[error(
        "group `{name}`: element {index} is padding between two members and must be 0: load the members one by one"
    )]
    NonzeroPadding {
        /// The group.
        name: String,
        /// The element of the flat array.
        index: usize,
    },
    /// A ticket reads what its own launch wrote.
    #[error("`{name}` no longer holds what launch {launch} wrote: {by} has overwritten it; read it before")]
    Superseded {
        /// The buffer or scalar.
        name: String,
        /// The ticket's launch.
        launch: u64,
        /// What overwrote it.
        by: String,
    },
    /// A ticket reads what its own step writes.
    #[error("{step} does not write `{name}`: read it from the session instead")]
    NotWritten {
        /// The buffer or scalar.
        name: String,
        /// The step, and the variant where it has variants.
        step: String,
    },
    /// A `Temp` is read after a launch that uses it, and only where its memory is not reused.
    #[error("temp `{name}` holds nothing to read: tap it, and launch a step that writes it")]
    NotKept {
        /// The buffer.
        name: String,
    },
    /// A ticket is used with the session that issued it.
    #[error("the ticket is of another session: use it with the one whose launch returned it")]
    ForeignTicket,
    /// A device is `host`, `cuda`, `cuda:N` or `auto`.
    #[error("`{text}` is not a device: use host, cuda, cuda:N or auto")]
    UnknownDevice {
        /// What was given.
        text: String,
    },
    /// The device asked for is there.
    #[error("cannot use {device}: {reason}")]
    DeviceUnavailable {
        /// The device.
        device: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The host executor cannot run the program.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The device code of a plan compiles.
    #[error("step `{step}`: {error}")]
    Compile {
        /// The step.
        step: String,
        /// What the compiler says.
        error: ModuleError,
    },
    /// The device failed.
    #[error("{context}")]
    Device {
        /// What was being done: launch, step, phase, node and call, as far as known.
        context: String,
        /// The failure.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl RuntimeError {
    /// Whether the device is at fault and not the program or its user: exit code 3 of the command line.
    pub const fn is_device_failure(&self) -> bool {
        matches!(self, Self::Device { .. } | Self::DeviceUnavailable { .. })
    }
}
