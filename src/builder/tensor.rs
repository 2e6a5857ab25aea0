//! Boxes of tensors, and matrix products.

use std::ops::Range;

use super::gemm::Product;
use crate::handle::{Place, Tensor};
use crate::ir::{AxisRange, Element, Operand, Shape, View};

impl<T: Element> Tensor<T> {
    /// The shape that the tensor has as an operand; `None` for a group.
    pub fn shape(&self) -> Option<Shape> {
        match self.place {
            Place::View(view) => Some(view.shape()),
            Place::Group(_) => None,
        }
    }

    /// The box that takes `range` along an axis and everything along the others. What leaves this tensor, an axis that is not
    /// there included, is an error where the box is used. A group has no boxes: what takes one refuses groups as well.
    #[must_use]
    pub fn slice(self, axis: usize, range: Range<u32>) -> Self {
        self.narrow(axis, range, false)
    }

    /// The box at one place along an axis; the axis is gone from the shape.
    #[must_use]
    pub fn pick(self, axis: usize, place: u32) -> Self {
        self.narrow(axis, place..place.saturating_add(1), true)
    }

    /// Rows `range` of a matrix, or whatever the first axis counts.
    #[must_use]
    pub fn rows(self, range: Range<u32>) -> Self {
        self.slice(0, range)
    }

    /// Columns `range` of a matrix.
    #[must_use]
    pub fn cols(self, range: Range<u32>) -> Self {
        self.slice(1, range)
    }

    fn narrow(self, axis: usize, range: Range<u32>, dropped: bool) -> Self {
        let Place::View(mut view) = self.place else { return self };
        let mut kept = view.ranges_mut().iter_mut().filter(|range| !range.dropped);
        match kept.nth(axis) {
            Some(own) if range.start < range.end && range.end <= own.len => {
                *own = AxisRange { start: own.start + range.start, len: range.end - range.start, dropped };
            }
            Some(own) => *own = AxisRange::OUTSIDE,
            None => view = outside(&view),
        }
        Self::new(self.tag, Place::View(view))
    }

    /// The product of this matrix with another: `self · other`.
    pub fn nn(self, other: Self) -> Product<T> {
        Product::new(self, false, other, false)
    }

    /// `self · otherᵀ`: what a linear layer with an [out, in] weight computes.
    pub fn nt(self, other: Self) -> Product<T> {
        Product::new(self, false, other, true)
    }

    /// `selfᵀ · other`: what a weight gradient computes.
    pub fn tn(self, other: Self) -> Product<T> {
        Product::new(self, true, other, false)
    }

    pub(super) fn operand(self, transposed: bool) -> Option<Operand> {
        match self.place {
            Place::View(view) => Some(Operand { view, transposed }),
            Place::Group(_) => None,
        }
    }
}

/// A box of the same buffer that fits no shape.
fn outside(view: &View) -> View {
    let ranges = vec![AxisRange::OUTSIDE; view.ranges().len().max(1)];
    View::from_ranges(view.buffer, &ranges).unwrap_or(*view)
}
