//! The memory that plans run over: one aligned piece per region, addressed by the plan's own offsets.
//!
//! Nothing is allocated per buffer, so that a plan which reuses memory wrongly goes wrong here as it would on a device.

use super::error::HostError;
use crate::entity::ScalarId;
use crate::plan::{Arena, Placement, Region};

/// What poisoned memory holds: NaN as `f32` and as `bf16`, -1 as `i32`.
const POISON: u8 = 0xFF;

/// The regions of one session, or of one run.
#[derive(Clone, Debug, Default)]
pub struct HostMemory {
    regions: [Vec<u128>; Region::ALL.len()],
}

/// A scratch region that waits for its turn: each lane has its own.
#[derive(Clone, Debug, Default)]
pub struct HostScratch(Vec<u128>);

impl HostScratch {
    /// Zeroed scratch that is large enough for each of these arenas.
    ///
    /// # Errors
    /// [`HostError::OutOfMemory`].
    pub fn for_arenas<'a>(arenas: impl IntoIterator<Item = &'a Arena>) -> Result<Self, HostError> {
        let bytes = arenas.into_iter().map(|arena| arena.size(Region::Scratch)).max().unwrap_or(0);
        zeroed(bytes).map(Self).ok_or(HostError::OutOfMemory { region: Region::Scratch.name(), bytes })
    }
}

impl HostMemory {
    /// Zeroed memory that is large enough for each of these arenas.
    ///
    /// # Errors
    /// [`HostError::OutOfMemory`].
    pub fn for_arenas<'a>(arenas: impl IntoIterator<Item = &'a Arena>) -> Result<Self, HostError> {
        let mut sizes = [0u64; Region::ALL.len()];
        for arena in arenas {
            for (size, region) in sizes.iter_mut().zip(Region::ALL) {
                *size = (*size).max(arena.size(region));
            }
        }
        let mut memory = Self::default();
        for ((words, bytes), region) in memory.regions.iter_mut().zip(sizes).zip(Region::ALL) {
            *words = zeroed(bytes).ok_or(HostError::OutOfMemory { region: region.name(), bytes })?;
        }
        Ok(memory)
    }

    /// The bytes of a placement.
    ///
    /// # Panics
    /// If the placement does not lie in the memory.
    pub fn bytes(&self, at: Placement) -> &[u8] {
        &self.region(at.region)[range(at)]
    }

    /// The bytes of a placement, to be changed.
    ///
    /// # Panics
    /// If the placement does not lie in the memory.
    pub fn bytes_mut(&mut self, at: Placement) -> &mut [u8] {
        &mut self.region_mut(at.region)[range(at)]
    }

    /// All of a region; up to 15 bytes longer than the arena says.
    pub fn region(&self, region: Region) -> &[u8] {
        bytemuck::cast_slice(&self.regions[region as usize])
    }

    /// All of a region, to be changed.
    pub fn region_mut(&mut self, region: Region) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.regions[region as usize])
    }

    /// Fills the scratch region with NaN, so that a read of what nobody wrote shows.
    pub fn poison_scratch(&mut self) {
        self.region_mut(Region::Scratch).fill(POISON);
    }

    /// Puts another scratch region in the place of the present one.
    pub fn exchange_scratch(&mut self, other: &mut HostScratch) {
        std::mem::swap(&mut self.regions[Region::Scratch as usize], &mut other.0);
    }

    pub(super) fn words(&self, region: Region) -> &[u32] {
        bytemuck::cast_slice(&self.regions[region as usize])
    }

    pub(super) fn words_mut(&mut self, region: Region) -> &mut [u32] {
        bytemuck::cast_slice_mut(&mut self.regions[region as usize])
    }

    pub(super) fn halves(&self, region: Region) -> &[u16] {
        bytemuck::cast_slice(&self.regions[region as usize])
    }

    pub(super) fn halves_mut(&mut self, region: Region) -> &mut [u16] {
        bytemuck::cast_slice_mut(&mut self.regions[region as usize])
    }

    pub(super) fn cell(&self, cell: Cell) -> u32 {
        self.words(cell.region)[cell.word]
    }

    pub(super) fn set_cell(&mut self, cell: Cell, bits: u32) {
        self.words_mut(cell.region)[cell.word] = bits;
    }

    /// All regions at once, each to be lent in pieces.
    pub(super) fn regions_mut(&mut self) -> [&mut [u8]; Region::ALL.len()] {
        self.regions.each_mut().map(|region| bytemuck::cast_slice_mut(region.as_mut_slice()))
    }
}

/// Zeros, or `None` where there is no room for them. The reservation only asks: it is given back for memory that the system
/// has zeroed, which costs nothing until it is used.
fn zeroed(bytes: u64) -> Option<Vec<u128>> {
    let words = usize::try_from(bytes.div_ceil(16)).ok()?;
    Vec::<u128>::new().try_reserve_exact(words).ok()?;
    Some(vec![0; words])
}

fn range(at: Placement) -> std::ops::Range<usize> {
    at.offset as usize..at.end() as usize
}

/// Where a scalar lies: a word of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) region: Region,
    pub(super) word: usize,
}

impl Cell {
    /// The scalar's place, or `None` where the plan has none.
    pub(super) fn of(arena: &Arena, scalar: ScalarId) -> Option<Self> {
        let at = inside(arena, arena.scalars[scalar])?;
        Some(Self { region: at.region, word: at.offset as usize / 4 })
    }
}

/// The placement, where there is one and it lies in its region.
pub(super) fn inside(arena: &Arena, at: Option<Placement>) -> Option<Placement> {
    at.filter(|at| at.offset.checked_add(at.bytes).is_some_and(|end| end <= arena.size(at.region)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Protects: each region is found under its own number, since `Region::ALL` and the variants are in one order.
    #[test]
    fn regions_are_numbered_in_their_listed_order() {
        let numbers: Vec<_> = Region::ALL.iter().map(|&region| region as usize).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
    }

    /// Protects: a plan that needs more memory than there is is an error and not an abort.
    #[test]
    fn too_much_memory_is_an_error() {
        for bytes in [1 << 62, u64::MAX] {
            let mut arena = Arena::default();
            arena.sizes.insert(Region::Scratch, bytes);
            let error = HostMemory::for_arenas([&arena]).expect_err("no machine has so much");
            assert_eq!(error, HostError::OutOfMemory { region: "scratch", bytes });
        }
    }
}
