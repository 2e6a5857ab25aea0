//! Ending loops from outside.

use std::fmt;
use std::sync::Arc;

use super::backend::StopCell;

/// Ends the `While` loops of a session, or of one of its lanes, from any thread and while they run. Cheap to clone.
#[derive(Clone)]
pub struct StopHandle {
    cells: Vec<Arc<dyn StopCell>>,
}

impl StopHandle {
    pub(super) fn new(cells: impl IntoIterator<Item = Arc<dyn StopCell>>) -> Self {
        Self { cells: cells.into_iter().collect() }
    }

    /// Every loop ends after the iteration that it is in, and none starts, until [`StopHandle::clear`].
    pub fn stop(&self) {
        self.cells.iter().for_each(|cell| cell.set(true));
    }

    /// Lets loops run again. To be called once the launches that were to end have ended.
    pub fn clear(&self) {
        self.cells.iter().for_each(|cell| cell.set(false));
    }
}

impl fmt::Debug for StopHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StopHandle")
    }
}
