//! Ending loops from outside.

use std::fmt;
use std::sync::Arc;

use super::backend::StopCell;

/// Ends the `While` loops of a session, from any thread and while they run. Cheap to clone.
#[derive(Clone)]
pub struct StopHandle {
    cell: Arc<dyn StopCell>,
}

impl StopHandle {
    pub(super) fn new(cell: Arc<dyn StopCell>) -> Self {
        Self { cell }
    }

    /// Every loop of the session ends after the iteration that it is in, and none starts, until [`StopHandle::clear`].
    pub fn stop(&self) {
        self.cell.set(true);
    }

    /// Lets loops run again. To be called once the launches that were to end have ended.
    pub fn clear(&self) {
        self.cell.set(false);
    }
}

impl fmt::Debug for StopHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StopHandle")
    }
}
