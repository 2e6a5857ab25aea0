//! What one unit launches: the same description serves graph nodes and stream launches.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::address::Addresses;
use super::error::{At, EmitError};
use super::gemm;
use super::kernels::PlanKernels;
use super::lane::Lane;
use super::memory::LaneMemory;
use crate::codegen::{GeneratedKernel, ParamSource, Pitched, copy_boxes, fill_bits, fill_box};
use crate::cuda::{CopyBox, CudaError, DeviceMemory, FillBox, Function, KernelLaunch, LaunchArg, Matmul};
use crate::entity::UnitId;
use crate::ir::{Arg, ConstValue, Dim, KernelCall, KernelDecl, LaunchConfig, NodeOp, ParamClass, View};
use crate::plan::{StepPlan, Work};

/// One launch.
#[derive(Debug)]
pub(super) enum Launch {
    Kernel(KernelLaunch),
    Copy(CopyBox),
    Fill(FillBox),
    Product(Box<Matmul>),
}

/// Turns the units of one plan into launches.
pub(super) struct Units<'a> {
    pub(super) plan: &'a StepPlan,
    pub(super) step_name: String,
    memory: &'a LaneMemory,
    kernels: &'a PlanKernels,
    lane: &'a Lane,
    checked: RefCell<HashSet<String>>,
    constants: RefCell<BTreeMap<u32, DeviceMemory>>,
}

impl<'a> Units<'a> {
    pub(super) fn new(plan: &'a StepPlan, memory: &'a LaneMemory, kernels: &'a PlanKernels, lane: &'a Lane) -> Self {
        Self {
            plan,
            step_name: step_name(plan),
            memory,
            kernels,
            lane,
            checked: RefCell::default(),
            constants: RefCell::default(),
        }
    }

    /// The device cells that hold constants for products; whoever launches the products keeps them alive.
    pub(super) fn into_constants(self) -> Vec<DeviceMemory> {
        self.constants.into_inner().into_values().collect()
    }

    pub(super) fn addresses(&self, id: UnitId) -> Addresses<'_> {
        let (program, unit) = (self.plan.program().program(), &self.plan.units()[id]);
        Addresses { program, arena: self.plan.arena(), memory: self.memory, step: &self.step_name, id, unit }
    }

    pub(super) fn op(&self, id: UnitId) -> &'a NodeOp {
        &self.plan.program().program().steps[self.plan.step()].nodes[self.plan.units()[id].node].op
    }

    /// The launches of a unit that is no conditional, in order.
    pub(super) fn launches(&self, id: UnitId) -> Result<Vec<Launch>, EmitError> {
        let (at, op) = (self.addresses(id), self.op(id));
        match (op, &self.plan.units()[id].work) {
            (NodeOp::Kernel(call), Work::Kernel(config)) => {
                Ok(vec![Launch::Kernel(self.declared(&at, call, *config)?)])
            }
            (NodeOp::Gemm(product), Work::Gemm(implementation)) => {
                let described =
                    gemm::describe(&at, self.lane, product, *implementation, |value| self.constant(&at, value))?;
                Ok(vec![Launch::Product(Box::new(described))])
            }
            (NodeOp::Copy { from, to }, _) if !self.has_kernel(&at) => {
                Ok(copy(&at, from, to)?.into_iter().map(Launch::Copy).collect())
            }
            (NodeOp::Fill { to, value }, _) if !self.has_kernel(&at) => {
                Ok(fill(&at, to, *value)?.into_iter().map(Launch::Fill).collect())
            }
            _ => self.generated(&at),
        }
    }

    /// The setters of a conditional unit: the one that runs before it and, for a loop, the one that ends its body.
    pub(super) fn setters(&self, id: UnitId, handle: u64) -> Result<Vec<KernelLaunch>, EmitError> {
        let at = self.addresses(id);
        let kernels = self.kernels.of_node(at.unit.node);
        kernels.iter().map(|kernel| self.generated_launch(&at, kernel, handle)).collect()
    }

    fn has_kernel(&self, at: &Addresses<'_>) -> bool {
        !self.kernels.of_node(at.unit.node).is_empty()
    }

    fn generated(&self, at: &Addresses<'_>) -> Result<Vec<Launch>, EmitError> {
        let kernels = self.kernels.of_node(at.unit.node);
        kernels.iter().map(|kernel| self.generated_launch(at, kernel, 0).map(Launch::Kernel)).collect()
    }

    fn generated_launch(
        &self,
        at: &Addresses<'_>,
        kernel: &GeneratedKernel,
        handle: u64,
    ) -> Result<KernelLaunch, EmitError> {
        let args = kernel.params.iter().map(|source| match *source {
            ParamSource::Buffer(buffer) => at.buffer(buffer).map(LaunchArg::Address),
            ParamSource::Scalar(scalar) => at.scalar(scalar).map(LaunchArg::Address),
            ParamSource::Workspace => {
                let missing = || EmitError::Unplaced { place: Box::new(at.place()), what: "the workspace".to_owned() };
                Ok(LaunchArg::Address(at.workspace()?.ok_or_else(missing)?.0))
            }
            ParamSource::Condition => Ok(LaunchArg::Long(handle)),
            ParamSource::Stop => Ok(LaunchArg::Address(self.memory.stop().device_address())),
        });
        let args = args.collect::<Result<_, _>>()?;
        let function = self.found(at, &kernel.name, self.kernels.generated(&kernel.name))?;
        Ok(kernel_launch(function, kernel.launch, None, false, args))
    }

    fn declared(&self, at: &Addresses<'_>, call: &KernelCall, config: LaunchConfig) -> Result<KernelLaunch, EmitError> {
        let decl = &at.program.kernels[call.kernel];
        let args = kernel_args(at, decl, call)?;
        let function = self.found(at, &decl.name, self.kernels.declared(call.kernel, &decl.name))?;
        let launch = kernel_launch(function, config, decl.cluster, decl.cooperative, args);
        self.check(at, &launch)?;
        Ok(launch)
    }

    fn found(
        &self,
        at: &Addresses<'_>,
        name: &str,
        function: Option<Result<Function, CudaError>>,
    ) -> Result<Function, EmitError> {
        let missing = || EmitError::MissingKernel { place: Box::new(at.place()), kernel: name.to_owned() };
        function.ok_or_else(missing)?.at(|| at.place())
    }

    /// Compares a hand-written kernel, as compiled, with its declaration, once; and a cooperative grid with the device.
    fn check(&self, at: &Addresses<'_>, launch: &KernelLaunch) -> Result<(), EmitError> {
        let kernel = launch.function.name().to_owned();
        if launch.cooperative {
            self.check_residency(at, launch)?;
        }
        if !self.checked.borrow_mut().insert(kernel.clone()) {
            return Ok(());
        }
        match launch.check_parameters().at(|| at.place())? {
            None => Ok(()),
            Some(found) => Err(EmitError::ParameterMismatch { place: Box::new(at.place()), kernel, found }),
        }
    }

    fn check_residency(&self, at: &Addresses<'_>, launch: &KernelLaunch) -> Result<(), EmitError> {
        launch.function.allow_shared(launch.shared).at(|| at.place())?;
        let threads = launch.block.iter().product();
        let per_multiprocessor = launch.function.resident_blocks(threads, launch.shared).at(|| at.place())?;
        let room = u64::from(per_multiprocessor) * u64::from(self.lane.context().properties().multiprocessors);
        let wanted: u64 = launch.grid.iter().map(|&extent| u64::from(extent)).product();
        if wanted <= room {
            return Ok(());
        }
        Err(EmitError::TooManyBlocks {
            place: Box::new(at.place()),
            kernel: launch.function.name().to_owned(),
            wanted,
            room,
        })
    }

    /// A device cell with this value.
    fn constant(&self, at: &Addresses<'_>, value: f32) -> Result<u64, EmitError> {
        let mut constants = self.constants.borrow_mut();
        if let Some(cell) = constants.get(&value.to_bits()) {
            return Ok(cell.address());
        }
        let cell = DeviceMemory::new(self.lane.context(), 4).at(|| at.place())?;
        let stream = self.lane.stream();
        // Waited for, so that the cell may be dropped should emission fail at another node.
        stream.fill_words(cell.address(), value.to_bits(), 1).and_then(|()| stream.synchronize()).at(|| at.place())?;
        let address = cell.address();
        constants.insert(value.to_bits(), cell);
        Ok(address)
    }
}

/// The step's name, with its variant.
pub(super) fn step_name(plan: &StepPlan) -> String {
    match plan.variant() {
        Some(variant) => format!("{}/{variant}", plan.step_name()),
        None => plan.step_name().to_owned(),
    }
}

fn kernel_launch(
    function: Function,
    config: LaunchConfig,
    cluster: Option<[u32; 3]>,
    cooperative: bool,
    args: Vec<LaunchArg>,
) -> KernelLaunch {
    KernelLaunch { function, grid: config.grid, block: config.block, shared: config.shared, cluster, cooperative, args }
}

/// The arguments of a call in the order of the C signature; extents follow from the buffers' shapes.
fn kernel_args(at: &Addresses<'_>, decl: &KernelDecl, call: &KernelCall) -> Result<Vec<LaunchArg>, EmitError> {
    let mut supplied = call.args.iter();
    let mut extents: HashMap<&str, u32> = HashMap::new();
    let mut args = Vec::with_capacity(decl.params.len());
    for param in &decl.params {
        let arg = if param.class.needs_argument() { supplied.next() } else { None };
        args.push(match arg {
            Some(Arg::Scalar(scalar)) => LaunchArg::Address(at.scalar(*scalar)?),
            Some(Arg::Const(value)) => LaunchArg::Word(value.bits()),
            Some(arg) => {
                let (address, dims) = at.argument(arg)?;
                for (dim, extent) in param.shape.iter().flatten().zip(dims) {
                    if let Dim::Symbol(symbol) = dim {
                        extents.insert(symbol, extent);
                    }
                }
                LaunchArg::Address(address)
            }
            None => LaunchArg::Word(0),
        });
    }
    for (param, arg) in decl.params.iter().zip(&mut args) {
        if param.class == ParamClass::Size {
            let unbound =
                || EmitError::Unplaced { place: Box::new(at.place()), what: format!("the extent `{}`", param.name) };
            *arg = LaunchArg::Word(*extents.get(param.name.as_str()).ok_or_else(unbound)?);
        }
    }
    Ok(args)
}

fn copy(at: &Addresses<'_>, from: &View, to: &View) -> Result<Option<CopyBox>, EmitError> {
    let (source, target) = (&at.program.buffers[from.buffer], &at.program.buffers[to.buffer]);
    let Some((rows_from, rows_to)) = copy_boxes(from, &source.shape, to, &target.shape) else { return Ok(None) };
    let size = source.dtype.size();
    Ok(Some(CopyBox {
        from: at.buffer(from.buffer)? + rows_from.offset * size,
        from_pitch: pitch(&rows_from) * size,
        to: at.buffer(to.buffer)? + rows_to.offset * size,
        to_pitch: pitch(&rows_to) * size,
        width: rows_to.width * size,
        height: rows_to.rows,
    }))
}

fn fill(at: &Addresses<'_>, to: &View, value: ConstValue) -> Result<Option<FillBox>, EmitError> {
    let target = &at.program.buffers[to.buffer];
    let Some(rows) = fill_box(to, &target.shape) else { return Ok(None) };
    let size = target.dtype.size();
    Ok(Some(FillBox {
        to: at.buffer(to.buffer)? + rows.offset * size,
        pitch: pitch(&rows) * size,
        value: fill_bits(target.dtype, value),
        element: if size == 2 { 2 } else { 4 },
        width: rows.width,
        height: rows.rows,
    }))
}

/// Elements between rows; of a single row the driver wants at least its width.
fn pitch(rows: &Pitched) -> u64 {
    if rows.rows == 1 { rows.width } else { rows.pitch }
}
