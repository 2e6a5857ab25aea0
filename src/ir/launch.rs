//! Launch configurations.

use std::fmt;

/// The grid, block and dynamic shared memory of one kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchConfig {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
}

impl LaunchConfig {
    /// A one-dimensional launch without dynamic shared memory.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared: 0 }
    }
}

/// `grid 4×2 block 128 shared 1024`: trailing ones and no shared memory are left out.
impl fmt::Display for LaunchConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "grid ")?;
        write_extents(f, self.grid)?;
        write!(f, " block ")?;
        write_extents(f, self.block)?;
        if self.shared > 0 {
            write!(f, " shared {}", self.shared)?;
        }
        Ok(())
    }
}

fn write_extents(f: &mut fmt::Formatter<'_>, [x, y, z]: [u32; 3]) -> fmt::Result {
    match (y, z) {
        (1, 1) => write!(f, "{x}"),
        (_, 1) => write!(f, "{x}×{y}"),
        _ => write!(f, "{x}×{y}×{z}"),
    }
}
