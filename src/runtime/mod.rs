//! Running plans: sessions, tickets, the inbox.
//!
//! A session owns a device's memory and executables for all plans of one program. It never blocks on the device except where
//! the caller waits, reads or loads.

mod backend;
mod device;
mod error;

pub use backend::{Emitted, RawHandles};
pub use device::Device;
pub use error::RuntimeError;
