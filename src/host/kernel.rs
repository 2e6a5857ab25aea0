//! Calls of host functions: arguments are lent straight from the regions, several at a time, without aliasing.

use super::error::HostError;
use super::memory::{Cell, HostMemory};
use super::resolve::Resolver;
use crate::ir::{Arg, ConstValue, Dim, KernelCall, KernelDecl, ParamClass};
use crate::kernel::{HostArg, HostArgs, HostFn, HostFns};
use crate::plan::{Placement, Region};

/// A kernel call, ready to run.
#[derive(Clone, Debug)]
pub(super) struct KernelRun {
    function: HostFn,
    args: Vec<Bound>,
    /// What is lent, by region and offset.
    loans: Vec<Loan>,
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    /// Bytes `start .. start + len` of a loan.
    In {
        loan: usize,
        start: usize,
        len: usize,
    },
    Out {
        loan: usize,
    },
    Scalar(Cell),
    ScalarOut(Cell),
    Const(ConstValue),
    Size(u32),
}

/// Bytes that are lent in one piece: one written argument, or read arguments that overlap.
#[derive(Clone, Copy, Debug)]
struct Loan {
    region: Region,
    start: usize,
    end: usize,
    written: bool,
}

/// A piece of memory on loan.
enum Lent<'a> {
    Shared(&'a [u8]),
    Unique(Option<&'a mut [u8]>),
}

impl KernelRun {
    pub(super) fn new(resolver: &Resolver<'_>, host_fns: &HostFns, call: &KernelCall) -> Result<Self, HostError> {
        let decl = &resolver.program.kernels[call.kernel];
        let missing = || HostError::MissingHostFn { node: resolver.node.to_owned(), kernel: decl.name.clone() };
        let function = host_fns[call.kernel].ok_or_else(missing)?;
        let buffers = buffer_arguments(resolver, decl, call)?;
        let overlap = || HostError::OverlappingArguments { node: resolver.node.to_owned(), kernel: decl.name.clone() };
        let loans = loans(&buffers).ok_or_else(overlap)?;
        let args = bind(resolver, decl, call, &buffers, &loans)?;
        Ok(Self { function, args, loans })
    }

    pub(super) fn run(&self, memory: &mut HostMemory) {
        let is_out = |arg: &&Bound| matches!(arg, Bound::ScalarOut(_));
        let cell = |arg: &Bound| match arg {
            Bound::Scalar(cell) | Bound::ScalarOut(cell) => memory.cell(*cell),
            _ => 0,
        };
        let scalars: Vec<u32> = self.args.iter().map(cell).collect();
        let mut outs: Vec<u32> =
            self.args.iter().zip(&scalars).filter(|(arg, _)| is_out(arg)).map(|(_, &x)| x).collect();

        let mut lent = lend(memory, &self.loans);
        let mut cells = outs.iter_mut();
        let mut args = Vec::with_capacity(self.args.len());
        for (arg, &bits) in self.args.iter().zip(&scalars) {
            args.push(match *arg {
                Bound::In { loan, start, len } => match &lent[loan] {
                    Lent::Shared(bytes) => HostArg::In(&bytes[start..][..len]),
                    Lent::Unique(_) => unreachable!("a read argument is on a shared loan"),
                },
                Bound::Out { loan } => match &mut lent[loan] {
                    Lent::Unique(bytes) => HostArg::Out(bytes.take().unwrap_or_default()),
                    Lent::Shared(_) => unreachable!("a written argument is on a loan of its own"),
                },
                Bound::Scalar(_) => HostArg::Scalar(bits),
                Bound::ScalarOut(_) => match cells.next() {
                    Some(cell) => HostArg::ScalarOut(cell),
                    None => unreachable!("one cell was made for each written scalar"),
                },
                Bound::Const(value) => HostArg::Const(value),
                Bound::Size(extent) => HostArg::Size(extent),
            });
        }
        (self.function.0)(&mut HostArgs::new(args));

        for (arg, &bits) in self.args.iter().filter(is_out).zip(&outs) {
            if let Bound::ScalarOut(cell) = *arg {
                memory.set_cell(cell, bits);
            }
        }
    }
}

/// A buffer argument: where it lies, its extents, whether it is written.
struct BufferArg {
    at: Placement,
    extents: Vec<u32>,
    written: bool,
}

/// The buffer arguments of a call, `None` for parameters that are something else.
fn buffer_arguments(
    resolver: &Resolver<'_>,
    decl: &KernelDecl,
    call: &KernelCall,
) -> Result<Vec<Option<BufferArg>>, HostError> {
    let mut supplied = call.args.iter();
    let mut found = Vec::with_capacity(decl.params.len());
    for param in &decl.params {
        let arg = if param.class.needs_argument() { supplied.next() } else { None };
        found.push(match arg {
            Some(arg) if param.class.is_buffer() => {
                let (at, extents) = resolver.argument(arg)?;
                Some(BufferArg { at, extents, written: param.class.writes() })
            }
            _ => None,
        });
    }
    Ok(found)
}

/// Groups arguments into loans; `None` where a written one overlaps another.
fn loans(buffers: &[Option<BufferArg>]) -> Option<Vec<Loan>> {
    let mut sorted: Vec<&BufferArg> = buffers.iter().flatten().collect();
    sorted.sort_by_key(|arg| (arg.at.region, arg.at.offset));
    let mut loans: Vec<Loan> = Vec::with_capacity(sorted.len());
    for arg in sorted {
        let (region, start, end) = (arg.at.region, arg.at.offset as usize, arg.at.end() as usize);
        match loans.last_mut() {
            Some(last) if last.region == region && start < last.end => {
                if last.written || arg.written {
                    return None;
                }
                last.end = last.end.max(end);
            }
            _ => loans.push(Loan { region, start, end, written: arg.written }),
        }
    }
    Some(loans)
}

fn bind(
    resolver: &Resolver<'_>,
    decl: &KernelDecl,
    call: &KernelCall,
    buffers: &[Option<BufferArg>],
    loans: &[Loan],
) -> Result<Vec<Bound>, HostError> {
    let mut supplied = call.args.iter();
    let mut bound = Vec::with_capacity(decl.params.len());
    for (param, buffer) in decl.params.iter().zip(buffers) {
        let arg = if param.class.needs_argument() { supplied.next() } else { None };
        bound.push(match (&param.class, arg, buffer) {
            (ParamClass::Size, ..) => Bound::Size(extent(decl, buffers, &param.name)),
            (ParamClass::Scalar, Some(Arg::Scalar(scalar)), _) => Bound::Scalar(resolver.cell(*scalar)?),
            (_, Some(Arg::Scalar(scalar)), _) => Bound::ScalarOut(resolver.cell(*scalar)?),
            (_, Some(Arg::Const(value)), _) => Bound::Const(*value),
            (_, _, Some(buffer)) => on_loan(buffer, loans),
            _ => return Err(HostError::Unplaced { node: resolver.node.to_owned(), what: param.name.clone() }),
        });
    }
    Ok(bound)
}

fn on_loan(buffer: &BufferArg, loans: &[Loan]) -> Bound {
    let (start, end) = (buffer.at.offset as usize, buffer.at.end() as usize);
    let holds = |loan: &Loan| loan.region == buffer.at.region && loan.start <= start && end <= loan.end;
    let loan = loans.iter().position(holds).unwrap_or(0);
    if buffer.written {
        Bound::Out { loan }
    } else {
        Bound::In { loan, start: start - loans[loan].start, len: end - start }
    }
}

/// The extent that a symbol of the declaration was bound to.
fn extent(decl: &KernelDecl, buffers: &[Option<BufferArg>], symbol: &str) -> u32 {
    let bound = decl.params.iter().zip(buffers).find_map(|(param, buffer)| {
        let (dims, buffer) = (param.shape.as_ref()?, buffer.as_ref()?);
        let axis = dims.iter().position(|dim| matches!(dim, Dim::Symbol(name) if name == symbol))?;
        buffer.extents.get(axis).copied()
    });
    bound.unwrap_or(0)
}

/// Cuts the regions into the pieces on loan, which are in order and apart.
fn lend<'a>(memory: &'a mut HostMemory, loans: &[Loan]) -> Vec<Lent<'a>> {
    let mut regions = memory.regions_mut();
    let mut cut = [0; Region::ALL.len()];
    let mut lent = Vec::with_capacity(loans.len());
    for loan in loans {
        let (rest, cut) = (&mut regions[loan.region as usize], &mut cut[loan.region as usize]);
        let (_, from) = std::mem::take(rest).split_at_mut(loan.start - *cut);
        let (piece, later) = from.split_at_mut(loan.end - loan.start);
        (*rest, *cut) = (later, loan.end);
        lent.push(if loan.written { Lent::Unique(Some(piece)) } else { Lent::Shared(piece) });
    }
    lent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(region: Region, offset: u64, bytes: u64, written: bool) -> Option<BufferArg> {
        Some(BufferArg { at: Placement { region, offset, bytes }, extents: vec![], written })
    }

    /// Protects: read arguments may share memory, written ones never do, and neighbours do not count as sharing.
    #[test]
    fn only_reads_share_memory() {
        let (scratch, persistent) = (Region::Scratch, Region::Persistent);
        let shared =
            [buffer(scratch, 16, 32, false), None, buffer(scratch, 0, 32, false), buffer(scratch, 48, 16, true)];
        let found = loans(&shared).expect("nothing written is shared");
        assert_eq!(found.iter().map(|loan| (loan.start, loan.end)).collect::<Vec<_>>(), [(0, 48), (48, 64)]);
        assert!(loans(&[buffer(scratch, 0, 32, false), buffer(scratch, 16, 32, true)]).is_none());
        assert!(loans(&[buffer(scratch, 0, 32, true), buffer(persistent, 0, 32, true)]).is_some());
    }
}
