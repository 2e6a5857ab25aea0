//! Copies and fills of boxes: what a memcpy or memset node can do, and kernels for the rest.

use half::bf16;

use super::coords::{Coords, label, sum};
use super::kernel::{Draft, GeneratedKernel};
use super::map::element_body;
use super::params::Params;
use super::schedule::map_launch;
use crate::ir::{ConstValue, DType, MAX_RANK, Program, Shape, View};

/// A box as rows of equal length at equal distances. All numbers count elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pitched {
    /// From the buffer's start to the first row.
    pub offset: u64,
    /// Elements of a row.
    pub width: u64,
    /// Rows.
    pub rows: u64,
    /// From one row's start to the next.
    pub pitch: u64,
}

impl Pitched {
    /// A view as rows, where it has this form; `shape` is the buffer's.
    fn of(view: &View, shape: &Shape) -> Option<Self> {
        let (extents, strides) = (view.shape(), view.strides(shape));
        let mut axes = extents.dims().iter().zip(strides).filter(|(extent, _)| **extent > 1).rev().peekable();
        let mut width = 1u64;
        while let Some(&(&extent, stride)) = axes.peek()
            && stride == width
        {
            width *= u64::from(extent);
            axes.next();
        }
        let (mut rows, pitch) = (1u64, axes.peek().map_or(width, |&(_, stride)| stride));
        for (&extent, stride) in axes {
            if stride != pitch * rows {
                return None;
            }
            rows *= u64::from(extent);
        }
        Some(Self { offset: view.offset(shape), width, rows, pitch })
    }

    /// The same elements as rows of `width`, where rows lie side by side or are that long already.
    fn with_width(self, width: u64) -> Option<Self> {
        if self.width == width {
            return Some(self);
        }
        let contiguous = self.rows == 1 || self.pitch == self.width;
        let elements = self.width * self.rows;
        (contiguous && elements.is_multiple_of(width)).then_some(Self {
            width,
            rows: elements / width,
            pitch: width,
            ..self
        })
    }
}

/// A copy as rows on both sides, equally many of equal length, where a two-dimensional memcpy node can do it.
pub fn copy_boxes(from: &View, from_shape: &Shape, to: &View, to_shape: &Shape) -> Option<(Pitched, Pitched)> {
    let (from, to) = (Pitched::of(from, from_shape)?, Pitched::of(to, to_shape)?);
    let width = from.width.min(to.width);
    Some((from.with_width(width)?, to.with_width(width)?))
}

/// A fill as rows, where a two-dimensional memset node can do it.
pub fn fill_box(to: &View, shape: &Shape) -> Option<Pitched> {
    Pitched::of(to, shape)
}

/// The bits of a fill's value as an element of a buffer: 16 of them for `bf16`, rounded to nearest even.
pub fn fill_bits(dtype: DType, value: ConstValue) -> u32 {
    match (dtype, value) {
        (DType::Bf16, ConstValue::F32(x)) => bf16::from_f32(x).to_bits().into(),
        (_, value) => value.bits(),
    }
}

/// Whether a memcpy node can do a copy.
pub(super) fn is_memcpy(program: &Program, from: &View, to: &View) -> bool {
    copy_boxes(from, &program.buffers[from.buffer].shape, to, &program.buffers[to.buffer].shape).is_some()
}

/// Whether a memset node can do a fill.
pub(super) fn is_memset(program: &Program, to: &View) -> bool {
    fill_box(to, &program.buffers[to.buffer].shape).is_some()
}

/// The kernel of a copy. It moves bits, so that a NaN stays the same NaN.
pub(super) fn copy_kernel(draft: &Draft<'_>, from: &View, to: &View) -> GeneratedKernel {
    let program = draft.program;
    let (from_shape, to_shape) = (program.buffers[from.buffer].shape, program.buffers[to.buffer].shape);
    let mut params = Params::new(program);
    params.add_buffer(from.buffer, false);
    params.add_buffer(to.buffer, true);
    let space = to.shape();
    let mut coords = Coords::linear(space, "element");
    let (read, write) = (place(&mut coords, from, &from_shape), place(&mut coords, to, &to_shape));
    let work = format!(
        "    {}[{write}] = {}[{read}];  // {} <- {}\n",
        params.buffer(to.buffer),
        params.buffer(from.buffer),
        label(program, to),
        label(program, from)
    );
    let body = element_body(&space, &coords, &work);
    draft.finish("", &format!("copy of {space}"), params, map_launch(&space), &body)
}

/// The kernel of a fill.
pub(super) fn fill_kernel(draft: &Draft<'_>, to: &View, value: ConstValue) -> GeneratedKernel {
    let buffer = &draft.program.buffers[to.buffer];
    let mut params = Params::new(draft.program);
    params.add_buffer(to.buffer, true);
    let space = to.shape();
    let mut coords = Coords::linear(space, "element");
    let place = place(&mut coords, to, &buffer.shape);
    let bits = fill_bits(buffer.dtype, value);
    let value_text = match buffer.dtype {
        DType::F32 => format!("__uint_as_float({bits:#010x}u)"),
        DType::Bf16 => format!("__nv_bfloat16{{{bits:#06x}}}"),
        DType::I32 => format!("(int){bits:#010x}u"),
        DType::U32 => format!("{bits:#010x}u"),
    };
    let (name, label) = (params.buffer(to.buffer), label(draft.program, to));
    let work = format!("    {name}[{place}] = {value_text};  // {label} <- {value}\n");
    let body = element_body(&space, &coords, &work);
    draft.finish("", &format!("fill of {space}"), params, map_launch(&space), &body)
}

/// The index of the element of a view that a thread handles.
fn place(coords: &mut Coords, view: &View, shape: &Shape) -> String {
    let strides: [u64; MAX_RANK] = view.strides(shape);
    sum(coords.terms(&strides), view.offset(shape))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entity::{BufferId, EntityRef};
    use crate::ir::AxisRange;

    fn view(ranges: &[(u32, u32)]) -> View {
        let ranges: Vec<_> = ranges.iter().map(|&(start, len)| AxisRange { start, len, dropped: false }).collect();
        View::from_ranges(BufferId::new(0), &ranges).expect("few axes")
    }

    /// Protects: each box takes the cheapest node that can do it, and a wrong pitch is not taken for a right one.
    #[test]
    fn boxes_become_rows_exactly_where_they_are_rows() {
        let shape = Shape::new(&[4, 6, 8]).expect("three axes");
        let rows = |ranges: &[(u32, u32)]| fill_box(&view(ranges), &shape);
        let pitched = |offset, width, rows, pitch| Some(Pitched { offset, width, rows, pitch });
        assert_eq!(rows(&[(0, 4), (0, 6), (0, 8)]), pitched(0, 192, 1, 192));
        assert_eq!(rows(&[(1, 2), (0, 6), (0, 8)]), pitched(48, 96, 1, 96));
        assert_eq!(rows(&[(0, 4), (0, 6), (2, 3)]), pitched(2, 3, 24, 8));
        assert_eq!(rows(&[(0, 4), (1, 2), (0, 8)]), pitched(8, 16, 4, 48));
        assert_eq!(rows(&[(0, 4), (1, 2), (0, 3)]), None);
        assert_eq!(rows(&[(0, 4), (1, 1), (3, 1)]), pitched(11, 1, 4, 48));
    }

    /// Protects: a block of columns is copied to a contiguous buffer by one node; two different row lengths are not.
    #[test]
    fn copies_agree_on_rows() {
        let (wide, narrow) = (Shape::new(&[4, 6]).expect("two axes"), Shape::new(&[12]).expect("one axis"));
        let (from, to) =
            copy_boxes(&view(&[(0, 4), (1, 3)]), &wide, &view(&[(0, 12)]), &narrow).expect("rows of three");
        assert_eq!(from, Pitched { offset: 1, width: 3, rows: 4, pitch: 6 });
        assert_eq!(to, Pitched { offset: 0, width: 3, rows: 4, pitch: 3 });
        let other = Shape::new(&[6, 4]).expect("two axes");
        assert_eq!(copy_boxes(&view(&[(0, 4), (0, 3)]), &wide, &view(&[(0, 6), (0, 2)]), &other), None);
    }

    /// Protects: a `bf16` fill rounds as a store does.
    #[test]
    fn fills_round_to_the_element_type() {
        assert_eq!(fill_bits(DType::Bf16, ConstValue::F32(1.0)), 0x3f80);
        assert_eq!(fill_bits(DType::F32, ConstValue::F32(1.0)), 0x3f80_0000);
        assert_eq!(fill_bits(DType::I32, ConstValue::I32(-1)), u32::MAX);
    }
}
