//! Graphs, built node by node.

use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::sys::{
    self, CUDA_CONDITIONAL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUgraphConditionalNodeType, CUgraphEdgeData,
    CUgraphNodeParams, CUgraphNodeType, CUlaunchAttributeID,
};

use super::context::Context;
use super::error::{CudaError, ignore};
use super::launch::{CopyBox, FillBox, KernelLaunch};
use super::probe::require_driver;

/// A graph that is being built, and the node handles that are valid while it lives.
pub struct Graph {
    raw: sys::CUgraph,
    context: Context,
}

// SAFETY: a graph handle may be used from any thread, by one at a time; every changing call takes `&mut`.
unsafe impl Send for Graph {}

/// A node of a graph; valid as long as its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node(pub(super) sys::CUgraphNode);

// SAFETY: a node is only a name; every call that uses it goes through its graph.
unsafe impl Send for Node {}

/// An edge as the driver has it.
pub(super) type RawEdge = (Node, Node, CUgraphEdgeData);

/// How long the target of an edge waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EdgeOrder {
    /// Until the source has finished.
    Full,
    /// Until the source has triggered; both are kernels, and the target waits for the rest itself.
    Programmatic,
}

/// The kinds of conditional node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Conditional {
    /// One body, or two: the second runs where the value is 0.
    If {
        /// Whether there is a second body.
        has_else: bool,
    },
    /// The body whose number is the value; none where there is no such body.
    Switch {
        /// How many bodies.
        bodies: u32,
    },
    /// The body again and again while the value is not 0.
    While,
}

impl Graph {
    /// An empty graph.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn new(context: &Context) -> Result<Self, CudaError> {
        context.bind()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the context is current, and `raw` outlives the call.
        unsafe { driver_call!(cuGraphCreate(&raw mut raw, 0)) }?;
        Ok(Self { raw, context: context.clone() })
    }

    pub(super) fn from_raw(raw: sys::CUgraph, context: &Context) -> Option<Self> {
        (!raw.is_null()).then(|| Self { raw, context: context.clone() })
    }

    /// The raw handle, valid as long as this value.
    pub fn raw(&self) -> sys::CUgraph {
        self.raw
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The graph's own level, to add nodes to.
    pub(crate) fn body(&mut self) -> GraphBody<'_> {
        GraphBody { raw: self.raw, context: self.context.clone(), graph: PhantomData }
    }

    /// How many nodes the graph has, those of conditional bodies not included.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn node_count(&self) -> Result<usize, CudaError> {
        Ok(nodes_of(self.raw)?.len())
    }

    /// The nodes and the edges between them, in the order in which the driver lists them.
    pub(super) fn contents(&self) -> Result<(Vec<Node>, Vec<RawEdge>), CudaError> {
        Ok((nodes_of(self.raw)?, edges_of(self.raw)?))
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").finish_non_exhaustive()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        ignore(self.context.bind());
        // SAFETY: the graph is ours; executables made from it are copies and do not need it.
        ignore(unsafe { driver_call!(cuGraphDestroy(self.raw)) });
    }
}

/// A level of a graph: the graph itself, or the body of a conditional node in it.
pub(crate) struct GraphBody<'g> {
    raw: sys::CUgraph,
    context: Context,
    graph: PhantomData<&'g mut Graph>,
}

impl<'g> GraphBody<'g> {
    /// Adds a kernel node, and reads back the attributes that it was given.
    pub(crate) fn add_kernel(&mut self, launch: &KernelLaunch) -> Result<Node, CudaError> {
        launch.function.allow_shared(launch.shared)?;
        let node = launch.with_node_params(|params| self.add_kernel_params(params))?;
        for attribute in launch.attributes() {
            // SAFETY: the node is a kernel node of a live graph, and the value outlives the call.
            unsafe { driver_call!(cuGraphKernelNodeSetAttribute(node.0, attribute.id, &raw const attribute.value)) }?;
        }
        check_attributes(node, launch)?;
        Ok(node)
    }

    /// Adds a kernel node from the driver's own description.
    pub(super) fn add_kernel_params(&mut self, params: &CUDA_KERNEL_NODE_PARAMS) -> Result<Node, CudaError> {
        let mut node = ptr::null_mut();
        // SAFETY: the graph is alive; the parameters, and the arguments they point to, outlive the call, which copies them.
        unsafe { driver_call!(cuGraphAddKernelNode_v2(&raw mut node, self.raw, ptr::null(), 0, params)) }?;
        Ok(Node(node))
    }

    /// Adds a memcpy node.
    pub(crate) fn add_copy(&mut self, copy: &CopyBox) -> Result<Node, CudaError> {
        self.add_copy_params(&copy.params())
    }

    pub(super) fn add_copy_params(&mut self, params: &sys::CUDA_MEMCPY3D) -> Result<Node, CudaError> {
        let mut node = ptr::null_mut();
        let context = self.context.raw();
        // SAFETY: the graph and the context are alive, and `params` outlives the call.
        unsafe { driver_call!(cuGraphAddMemcpyNode(&raw mut node, self.raw, ptr::null(), 0, params, context)) }?;
        Ok(Node(node))
    }

    /// Adds a memset node.
    pub(crate) fn add_fill(&mut self, fill: &FillBox) -> Result<Node, CudaError> {
        self.add_fill_params(&fill.params())
    }

    pub(super) fn add_fill_params(&mut self, params: &sys::CUDA_MEMSET_NODE_PARAMS) -> Result<Node, CudaError> {
        let mut node = ptr::null_mut();
        let context = self.context.raw();
        // SAFETY: the graph and the context are alive, and `params` outlives the call.
        unsafe { driver_call!(cuGraphAddMemsetNode(&raw mut node, self.raw, ptr::null(), 0, params, context)) }?;
        Ok(Node(node))
    }

    /// Adds a node that does nothing.
    pub(crate) fn add_empty(&mut self) -> Result<Node, CudaError> {
        let mut node = ptr::null_mut();
        // SAFETY: the graph is alive, and `node` outlives the call.
        unsafe { driver_call!(cuGraphAddEmptyNode(&raw mut node, self.raw, ptr::null(), 0)) }?;
        Ok(Node(node))
    }

    /// Makes the handle through which a kernel of this level sets the value of a conditional node of this level. The value
    /// is 0 at each launch until it is set.
    pub(crate) fn conditional_handle(&mut self) -> Result<u64, CudaError> {
        let mut handle = 0;
        let (context, flags) = (self.context.raw(), sys::CU_GRAPH_COND_ASSIGN_DEFAULT);
        // SAFETY: the graph and the context are alive, and `handle` outlives the call.
        unsafe { driver_call!(cuGraphConditionalHandleCreate(&raw mut handle, self.raw, context, 0, flags)) }?;
        Ok(handle)
    }

    /// Adds a conditional node; gives it and its empty bodies.
    pub(crate) fn add_conditional(
        &mut self,
        handle: u64,
        kind: Conditional,
    ) -> Result<(Node, Vec<GraphBody<'g>>), CudaError> {
        let (type_, size, need, what) = conditional_type(kind)?;
        require_driver(self.context.properties().driver, need, what)?;
        let mut params = CUgraphNodeParams {
            type_: CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL,
            reserved0: [0; 3],
            __bindgen_anon_1: sys::CUgraphNodeParams_st__bindgen_ty_1 { reserved1: [0; 29] },
            reserved2: 0,
        };
        let (context, mut node) = (self.context.raw(), ptr::null_mut());
        params.__bindgen_anon_1.conditional =
            CUDA_CONDITIONAL_NODE_PARAMS { handle, type_, size, phGraph_out: ptr::null_mut(), ctx: context };
        // SAFETY: graph, handle and context are alive; `params` was written in full for its type and outlives the call.
        unsafe {
            driver_call!(cuGraphAddNode_v2(&raw mut node, self.raw, ptr::null(), ptr::null(), 0, &raw mut params))?;
        }
        // SAFETY: the call succeeded for a conditional node, so that field is the valid one.
        let graphs = unsafe { params.__bindgen_anon_1.conditional.phGraph_out };
        let bodies = (0..size as usize).map(|body| {
            // SAFETY: the driver owns an array of `size` graphs there, as long as this graph lives.
            let raw = unsafe { *graphs.add(body) };
            GraphBody { raw, context: self.context.clone(), graph: PhantomData }
        });
        Ok((Node(node), bodies.collect()))
    }

    /// Adds edges between nodes of this level.
    pub(crate) fn add_edges(&mut self, edges: &[(Node, Node, EdgeOrder)]) -> Result<(), CudaError> {
        let edges: Vec<_> = edges.iter().map(|&(from, to, order)| (from, to, order.data())).collect();
        self.add_raw_edges(&edges)
    }

    pub(super) fn add_raw_edges(&mut self, edges: &[RawEdge]) -> Result<(), CudaError> {
        if edges.is_empty() {
            return Ok(());
        }
        let from: Vec<_> = edges.iter().map(|(from, ..)| from.0).collect();
        let to: Vec<_> = edges.iter().map(|(_, to, _)| to.0).collect();
        let data: Vec<_> = edges.iter().map(|&(.., data)| data).collect();
        // SAFETY: the graph is alive, its nodes are; the three lists have one entry per edge and outlive the call.
        unsafe {
            driver_call!(cuGraphAddDependencies_v2(self.raw, from.as_ptr(), to.as_ptr(), data.as_ptr(), edges.len()))
        }
    }
}

impl EdgeOrder {
    fn data(self) -> CUgraphEdgeData {
        let (from_port, type_) = match self {
            Self::Full => (0, 0),
            // Port 1 is the trigger of the source, type 1 the programmatic dependency.
            Self::Programmatic => (1, 1),
        };
        CUgraphEdgeData { from_port, to_port: 0, type_, reserved: [0; 5] }
    }
}

pub(super) fn type_of(node: Node) -> Result<CUgraphNodeType, CudaError> {
    let mut type_ = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: the node's graph is alive, and `type_` outlives the call.
    unsafe { driver_call!(cuGraphNodeGetType(node.0, &raw mut type_)) }?;
    Ok(type_)
}

pub(super) fn kernel_params_of(node: Node) -> Result<CUDA_KERNEL_NODE_PARAMS, CudaError> {
    let mut params = CUDA_KERNEL_NODE_PARAMS {
        func: ptr::null_mut(),
        gridDimX: 0,
        gridDimY: 0,
        gridDimZ: 0,
        blockDimX: 0,
        blockDimY: 0,
        blockDimZ: 0,
        sharedMemBytes: 0,
        kernelParams: ptr::null_mut(),
        extra: ptr::null_mut(),
        kern: ptr::null_mut(),
        ctx: ptr::null_mut(),
    };
    // SAFETY: the node is a kernel node of a live graph (callers asked for its type), and `params` outlives the call.
    unsafe { driver_call!(cuGraphKernelNodeGetParams_v2(node.0, &raw mut params)) }?;
    Ok(params)
}

/// The name of the kernel that a description launches: libraries may name it by function or by kernel handle.
pub(super) fn kernel_name_of(params: &CUDA_KERNEL_NODE_PARAMS) -> Result<String, CudaError> {
    let mut name = ptr::null();
    if params.func.is_null() {
        // SAFETY: the description came from a live node, so that the kernel handle is valid; `name` outlives the call.
        unsafe { driver_call!(cuKernelGetName(&raw mut name, params.kern)) }?;
    } else {
        // SAFETY: as above, for the function handle.
        unsafe { driver_call!(cuFuncGetName(&raw mut name, params.func)) }?;
    }
    if name.is_null() {
        return Ok("(unnamed)".to_owned());
    }
    // SAFETY: the driver gave a string that ends with a zero byte and lives as long as the kernel.
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

fn check_attributes(node: Node, launch: &KernelLaunch) -> Result<(), CudaError> {
    for wanted in launch.attributes() {
        let mut found = sys::CUlaunchAttributeValue { pad: [0; 64] };
        // SAFETY: the node is a kernel node of a live graph, and `found` outlives the call.
        unsafe { driver_call!(cuGraphKernelNodeGetAttribute(node.0, wanted.id, &raw mut found)) }?;
        // SAFETY: both unions were filled in full, and every byte pattern of integers is valid.
        let (what, expected, found) = unsafe {
            if wanted.id == CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE {
                (
                    "cooperative launch",
                    [wanted.value.cooperative.unsigned_abs(), 0, 0],
                    [found.cooperative.unsigned_abs(), 0, 0],
                )
            } else {
                let (wanted, found) = (wanted.value.clusterDim, found.clusterDim);
                ("cluster extents", [wanted.x, wanted.y, wanted.z], [found.x, found.y, found.z])
            }
        };
        if expected != found {
            let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
            return Err(CudaError::NotApplied { call: "cuGraphKernelNodeSetAttribute", what, expected, found });
        }
    }
    Ok(())
}

fn conditional_type(kind: Conditional) -> Result<(CUgraphConditionalNodeType, u32, u32, &'static str), CudaError> {
    match kind {
        Conditional::If { has_else: false } => {
            Ok((CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF, 1, 12_040, "an `if` node"))
        }
        Conditional::If { has_else: true } => {
            Ok((CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF, 2, 12_080, "an `if` node with an else body"))
        }
        Conditional::While => Ok((CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE, 1, 12_040, "a `while` node")),
        Conditional::Switch { bodies } => switch_type().map(|type_| (type_, bodies, 12_080, "a `switch` node")),
    }
}

#[cfg(not(any(feature = "cuda-12040", feature = "cuda-12050", feature = "cuda-12060")))]
#[expect(clippy::unnecessary_wraps, reason = "older bindings lack the type, and then it is an error")]
fn switch_type() -> Result<CUgraphConditionalNodeType, CudaError> {
    Ok(CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_SWITCH)
}

#[cfg(any(feature = "cuda-12040", feature = "cuda-12050", feature = "cuda-12060"))]
fn switch_type() -> Result<CUgraphConditionalNodeType, CudaError> {
    Err(CudaError::BindingsTooOld { need: 12_080, what: "a `switch` node" })
}

fn nodes_of(graph: sys::CUgraph) -> Result<Vec<Node>, CudaError> {
    let mut count = 0;
    // SAFETY: the graph is alive; without an array the driver only counts.
    unsafe { driver_call!(cuGraphGetNodes(graph, ptr::null_mut(), &raw mut count)) }?;
    let mut nodes = vec![ptr::null_mut(); count];
    // SAFETY: the graph is alive, and the array has room for `count` nodes.
    unsafe { driver_call!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count)) }?;
    Ok(nodes.into_iter().take(count).map(Node).collect())
}

fn edges_of(graph: sys::CUgraph) -> Result<Vec<RawEdge>, CudaError> {
    let mut count = 0;
    let nothing = ptr::null_mut();
    // SAFETY: the graph is alive; without arrays the driver only counts.
    unsafe { driver_call!(cuGraphGetEdges_v2(graph, nothing, nothing, ptr::null_mut(), &raw mut count)) }?;
    let (mut from, mut to) = (vec![ptr::null_mut(); count], vec![ptr::null_mut(); count]);
    let mut data = vec![EdgeOrder::Full.data(); count];
    if count > 0 {
        let (from, to, data) = (from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr());
        // SAFETY: the graph is alive, and the three arrays have room for `count` edges.
        unsafe { driver_call!(cuGraphGetEdges_v2(graph, from, to, data, &raw mut count)) }?;
    }
    Ok(from.into_iter().zip(to).zip(data).take(count).map(|((from, to), data)| (Node(from), Node(to), data)).collect())
}
