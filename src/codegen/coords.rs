//! Index arithmetic: where an element of a view lies, as text.

use crate::ir::{AxisRange, MAX_RANK, Program, Shape, View};

/// How a kernel numbers the elements of an index space: one or two running numbers, each of which counts some axes row-major.
pub(super) struct Coords {
    space: Shape,
    groups: Vec<AxisGroup>,
    used: [bool; MAX_RANK],
}

/// Axes that one running number counts.
struct AxisGroup {
    variable: &'static str,
    /// Each axis with the elements between neighbours along it, in terms of the running number.
    axes: Vec<(usize, u64)>,
}

impl Coords {
    /// All axes counted by one variable.
    pub(super) fn linear(space: Shape, variable: &'static str) -> Self {
        Self::new(space, [(variable, (0..space.rank()).collect())])
    }

    /// The kept axes counted by `kept`, the others by `reduced`.
    pub(super) fn split(space: Shape, reduced_axes: &[u8], kept: &'static str, reduced: &'static str) -> Self {
        let (inner, outer) =
            (0..space.rank()).partition(|&axis| reduced_axes.iter().any(|&own| usize::from(own) == axis));
        Self::new(space, [(kept, outer), (reduced, inner)])
    }

    fn new<const N: usize>(space: Shape, groups: [(&'static str, Vec<usize>); N]) -> Self {
        let groups = groups.into_iter().map(|(variable, axes)| AxisGroup::new(&space, variable, &axes)).collect();
        Self { space, groups, used: [false; MAX_RANK] }
    }

    /// The extent of an axis.
    pub(super) fn extent(&self, axis: usize) -> u32 {
        self.space.dims()[axis]
    }

    /// The coordinate along an axis.
    pub(super) fn axis(&mut self, axis: usize) -> String {
        if self.space.dims()[axis] == 1 {
            return "0u".into();
        }
        self.used[axis] = true;
        format!("i{axis}")
    }

    /// Σ coefficient · coordinate, as terms of a sum. Axes of extent 1 have coordinate 0 and give nothing.
    pub(super) fn terms(&mut self, coefficients: &[u64; MAX_RANK]) -> Vec<String> {
        let mut terms = Vec::new();
        let mut used = self.used;
        for group in &self.groups {
            match group.factor(&self.space, coefficients) {
                Some(0) => {}
                Some(factor) => terms.push(scaled(group.variable, factor)),
                None => group
                    .axes
                    .iter()
                    .filter(|&&(axis, _)| coefficients[axis] > 0 && self.space.dims()[axis] > 1)
                    .for_each(|&(axis, _)| {
                        used[axis] = true;
                        terms.push(scaled(&format!("i{axis}"), coefficients[axis]));
                    }),
            }
        }
        self.used = used;
        terms
    }

    /// Declarations of the coordinates that were used and depend on `variable`.
    pub(super) fn declarations(&self, variable: &str, indent: &str) -> String {
        let mut text = String::new();
        for group in self.groups.iter().filter(|group| group.variable == variable) {
            for (place, &(axis, stride)) in group.axes.iter().enumerate().filter(|(_, (axis, _))| self.used[*axis]) {
                let outer = group.axes[..place].iter().any(|&(axis, _)| self.space.dims()[axis] > 1);
                let quotient = if stride == 1 { variable.into() } else { format!("{variable} / {stride}u") };
                let extent = self.space.dims()[axis];
                let value = if outer { format!("{quotient} % {extent}u") } else { quotient };
                text.push_str(&format!("{indent}const unsigned int i{axis} = {value};\n"));
            }
        }
        text
    }
}

impl AxisGroup {
    fn new(space: &Shape, variable: &'static str, axes: &[usize]) -> Self {
        let mut stride = 1u64;
        let mut counted: Vec<_> = axes
            .iter()
            .rev()
            .map(|&axis| {
                let own = stride;
                stride *= u64::from(space.dims()[axis]);
                (axis, own)
            })
            .collect();
        counted.reverse();
        Self { variable, axes: counted }
    }

    /// The one factor by which the running number gives the sum over this group's axes, if there is one.
    fn factor(&self, space: &Shape, coefficients: &[u64; MAX_RANK]) -> Option<u64> {
        let mut axes = self.axes.iter().rev().filter(|(axis, _)| space.dims()[*axis] > 1);
        let Some(&(axis, stride)) = axes.next() else { return Some(0) };
        debug_assert_eq!(stride, 1, "the innermost axis that is not trivial has stride 1");
        let factor = coefficients[axis];
        axes.all(|&(axis, stride)| coefficients[axis] == factor * stride).then_some(factor)
    }
}

/// `term * factor`, or the term where the factor is 1.
pub(super) fn scaled(term: &str, factor: u64) -> String {
    if factor == 1 { term.into() } else { format!("{term} * {factor}u") }
}

/// The sum of terms and a constant.
pub(super) fn sum(mut terms: Vec<String>, constant: u64) -> String {
    if constant > 0 || terms.is_empty() {
        terms.push(format!("{constant}u"));
    }
    terms.join(" + ")
}

/// A view as comments show it: the buffer's name, and the box where it is not the whole buffer.
pub(super) fn label(program: &Program, view: &View) -> String {
    let buffer = &program.buffers[view.buffer];
    let name = super::kernel::one_line(&buffer.name);
    if view.is_full(&buffer.shape) {
        return name;
    }
    let range = |(range, &extent): (&AxisRange, &u32)| match range {
        AxisRange { dropped: true, start, .. } => start.to_string(),
        AxisRange { start: 0, len, .. } if *len == extent => ":".into(),
        AxisRange { start, .. } => format!("{start}:{}", range.end()),
    };
    let ranges: Vec<_> = view.ranges().iter().zip(buffer.shape.dims()).map(range).collect();
    format!("{name}[{}]", ranges.join(", "))
}
