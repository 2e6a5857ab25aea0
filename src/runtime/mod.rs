//! Running plans: sessions, lanes, tickets, the inbox.
//!
//! A session owns a device's memory and executables for all plans of one program. It blocks on the device
//! only where the caller waits, reads, loads, resets or resumes, where a launch finds no free slot for a changed inbox, and where
//! a plan without graphs has conditionals. It never moves memory, and never changes a plan.

mod backend;
pub mod checkpoint;
mod cuda;
mod device;
mod error;
mod fallback;
mod finite;
mod history;
mod host;
mod init;
mod lanes;
mod link;
mod open;
mod report;
mod session;
mod stop;
mod ticket;
mod values;

pub use backend::{Emitted, Lap, RawHandles};
pub use checkpoint::{CheckpointError, CheckpointFolder, CheckpointTicket};
pub use device::Device;
pub use error::RuntimeError;
pub use fallback::OnFailure;
pub use finite::NonFinite;
pub use link::{Link, Publish};
pub use open::SessionBuilder;
pub use report::{Fallback, LaneReport, PlanReport, SessionReport};
pub use session::Session;
pub use stop::StopHandle;
pub use ticket::{Outputs, Ticket};
pub use values::TensorData;
