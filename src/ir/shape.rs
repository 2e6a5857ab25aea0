//! Shapes, and views: boxes inside a buffer.

use std::fmt;

use crate::entity::BufferId;

/// The most axes that a shape can have.
pub const MAX_RANK: usize = 4;

/// The largest extent of one axis, and the largest element count of one buffer: 2³¹ - 1, so that kernels can index with
/// 32 bits.
pub const MAX_ELEMENTS: u64 = (1 << 31) - 1;

/// A row-major shape of up to [`MAX_RANK`] axes; no axis at all is a single element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shape {
    dims: [u32; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// The shape of a single element.
    pub const SCALAR: Self = Self { dims: [0; MAX_RANK], rank: 0 };

    /// The shape with these extents, or `None` where there are more than [`MAX_RANK`].
    pub fn new(dims: &[u32]) -> Option<Self> {
        let mut shape = Self { dims: [0; MAX_RANK], rank: u8::try_from(dims.len()).ok()? };
        shape.dims.get_mut(..dims.len())?.copy_from_slice(dims);
        Some(shape)
    }

    /// The extents, outermost first.
    pub fn dims(&self) -> &[u32] {
        &self.dims[..self.rank()]
    }

    /// The number of axes.
    pub const fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The number of elements: the product of the extents, 1 without axes.
    pub fn elements(&self) -> u64 {
        self.dims().iter().fold(1u64, |product, &dim| product.saturating_mul(u64::from(dim)))
    }

    /// Elements between neighbours along each axis, outermost first.
    pub fn strides(&self) -> [u64; MAX_RANK] {
        let mut strides = [0; MAX_RANK];
        let mut stride = 1u64;
        for (slot, &dim) in strides[..self.rank()].iter_mut().zip(self.dims()).rev() {
            *slot = stride;
            stride = stride.saturating_mul(u64::from(dim));
        }
        strides
    }

    /// The same shape without the axes for which `drop` holds.
    pub fn without(&self, drop: impl Fn(usize) -> bool) -> Self {
        let mut kept = Self::SCALAR;
        for (_, &dim) in self.dims().iter().enumerate().filter(|(axis, _)| !drop(*axis)) {
            kept.dims[kept.rank()] = dim;
            kept.rank += 1;
        }
        kept
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (axis, dim) in self.dims().iter().enumerate() {
            write!(f, "{}{dim}", if axis == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a view takes of one axis of its buffer: `start .. start + len`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AxisRange {
    /// The first index.
    pub start: u32,
    /// How many indices.
    pub len: u32,
    /// Whether the axis was indexed (`w[3]`) and so is absent from the view's shape; then `len` is 1.
    pub dropped: bool,
}

impl AxisRange {
    /// A range that no buffer has: extents are below 2³¹.
    pub const OUTSIDE: Self = Self { start: u32::MAX, len: 1, dropped: false };

    /// One past the last index.
    pub const fn end(&self) -> u64 {
        self.start as u64 + self.len as u64
    }
}

/// A box inside a buffer: a range along every axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    axes: [AxisRange; MAX_RANK],
    rank: u8,
}

impl View {
    /// All of a buffer with this shape.
    pub fn full(buffer: BufferId, shape: &Shape) -> Self {
        let mut axes = [AxisRange::default(); MAX_RANK];
        for (range, &len) in axes.iter_mut().zip(shape.dims()) {
            range.len = len;
        }
        Self { buffer, axes, rank: shape.rank }
    }

    /// The box with one range per axis of the buffer, or `None` where there are more than [`MAX_RANK`].
    pub fn from_ranges(buffer: BufferId, ranges: &[AxisRange]) -> Option<Self> {
        let mut axes = [AxisRange::default(); MAX_RANK];
        axes.get_mut(..ranges.len())?.copy_from_slice(ranges);
        Some(Self { buffer, axes, rank: u8::try_from(ranges.len()).ok()? })
    }

    /// The range along each axis of the buffer, dropped ones included.
    pub fn ranges(&self) -> &[AxisRange] {
        &self.axes[..usize::from(self.rank)]
    }

    /// The range along each axis of the buffer, to be narrowed.
    pub fn ranges_mut(&mut self) -> &mut [AxisRange] {
        &mut self.axes[..usize::from(self.rank)]
    }

    /// The shape that the view has as an operand: the extents of the axes that were not dropped.
    pub fn shape(&self) -> Shape {
        let mut shape = Shape::SCALAR;
        for range in self.ranges().iter().filter(|range| !range.dropped) {
            shape.dims[shape.rank()] = range.len;
            shape.rank += 1;
        }
        shape
    }

    /// Whether both views share an element.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.buffer == other.buffer
            && self
                .ranges()
                .iter()
                .zip(other.ranges())
                .all(|(a, b)| u64::from(a.start) < b.end() && u64::from(b.start) < a.end())
    }

    /// Whether every element of `other` is in this view.
    pub fn contains(&self, other: &Self) -> bool {
        self.buffer == other.buffer
            && self.ranges().iter().zip(other.ranges()).all(|(a, b)| a.start <= b.start && b.end() <= a.end())
    }

    /// Whether the view lies inside a buffer of this shape, with at least one element.
    pub fn fits(&self, shape: &Shape) -> bool {
        usize::from(self.rank) == shape.rank()
            && self
                .ranges()
                .iter()
                .zip(shape.dims())
                .all(|(range, &dim)| range.len > 0 && range.end() <= u64::from(dim))
    }

    /// `[0:4, 3]`: the range along each axis of the buffer, or the one index of a dropped axis. `[outside]` where a box was taken
    /// that its own tensor does not have.
    pub fn ranges_text(&self) -> String {
        if self.ranges().contains(&AxisRange::OUTSIDE) {
            return "[outside]".to_owned();
        }
        let ranges = self.ranges().iter().map(|range| match range {
            _ if range.dropped && range.len == 1 => range.start.to_string(),
            _ => format!("{}:{}", range.start, range.end()),
        });
        format!("[{}]", ranges.collect::<Vec<_>>().join(", "))
    }

    /// Whether the view is the whole of a buffer of this shape.
    pub fn is_full(&self, shape: &Shape) -> bool {
        self.ranges().iter().zip(shape.dims()).all(|(range, &dim)| range.start == 0 && range.len == dim)
    }

    /// Elements from the buffer's start to the view's first element; `shape` is the buffer's.
    pub fn offset(&self, shape: &Shape) -> u64 {
        let strides = shape.strides();
        self.ranges().iter().zip(strides).map(|(range, stride)| u64::from(range.start) * stride).sum()
    }

    /// Elements between neighbours along each axis of [`View::shape`]; `shape` is the buffer's.
    pub fn strides(&self, shape: &Shape) -> [u64; MAX_RANK] {
        let mut kept = [0; MAX_RANK];
        let all = shape.strides();
        let strides = self.ranges().iter().zip(all).filter(|(range, _)| !range.dropped).map(|(_, stride)| stride);
        for (slot, stride) in kept.iter_mut().zip(strides) {
            *slot = stride;
        }
        kept
    }

    /// Whether the view's elements lie side by side in a buffer of this shape.
    pub fn is_contiguous(&self, shape: &Shape) -> bool {
        let inner = self.ranges().iter().zip(shape.dims()).skip_while(|(range, _)| range.len == 1);
        inner.skip(1).all(|(range, &dim)| range.len == dim)
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.buffer)?;
        f.debug_list().entries(self.ranges().iter().map(|range| (range.start, range.end(), range.dropped))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::EntityRef;

    fn view(ranges: &[(u32, u32)]) -> View {
        let ranges: Vec<_> = ranges.iter().map(|&(start, len)| AxisRange { start, len, dropped: false }).collect();
        View::from_ranges(BufferId::new(0), &ranges).expect("few axes")
    }

    /// Protects: column siblings of one matrix do not count as overlapping, though their bytes interleave.
    #[test]
    fn column_siblings_do_not_overlap() {
        assert!(!view(&[(0, 8), (0, 4)]).overlaps(&view(&[(0, 8), (4, 4)])));
        assert!(view(&[(0, 8), (0, 5)]).overlaps(&view(&[(7, 1), (4, 4)])));
    }

    /// Protects: a block of rows is contiguous, a block of columns is not, one row's columns are.
    #[test]
    fn contiguity_follows_row_major_order() {
        let shape = Shape::new(&[8, 6]).expect("two axes");
        assert!(view(&[(2, 3), (0, 6)]).is_contiguous(&shape));
        assert!(!view(&[(0, 8), (0, 3)]).is_contiguous(&shape));
        assert!(view(&[(5, 1), (1, 3)]).is_contiguous(&shape));
        assert_eq!(view(&[(2, 3), (1, 5)]).offset(&shape), 13);
        assert_eq!(shape.strides()[..2], [6, 1]);
    }
}
