//! Graphs: explicit nodes and edges, and capture.

use std::ffi::{c_char, c_uint, c_void};
use std::ptr;

use cudarc::driver::sys::{
    self as bindings, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUfunction, CUgraph,
    CUgraphConditionalHandle, CUgraphConditionalNodeType, CUgraphEdgeData, CUgraphNode, CUgraphNodeParams,
    CUgraphNodeType, CUkernel, CUkernelNodeAttrID, CUkernelNodeAttrValue, CUlaunchAttributeValue_union__bindgen_ty_1,
    CUmemorytype, CUresult, CUstream, CUstreamCaptureMode,
};

use crate::driver::code;
use crate::entry::{get, lies_about, list, put};
use crate::objects::{Function, Graph, Handle, Node, Object, Work, World};

/// What a node does.
#[derive(Clone)]
pub(crate) enum NodeKind {
    Kernel(KernelCall),
    Copy(Rows),
    Fill(Fill),
    Empty,
    Conditional { handle: u64, is_loop: bool, bodies: Vec<Handle> },
}

/// A kernel with the bits of its arguments.
#[derive(Clone)]
pub(crate) struct KernelCall {
    pub(crate) function: Handle,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) args: Vec<u64>,
    /// Whether the node tells of it as a kernel handle, as newer libraries launch theirs.
    pub(crate) by_handle: bool,
}

/// Rows that are copied.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) from: u64,
    pub(crate) from_pitch: u64,
    pub(crate) to: u64,
    pub(crate) to_pitch: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

impl Rows {
    /// The copy that the caller describes; only forms that this project uses.
    pub(crate) fn of(copy: &CUDA_MEMCPY3D) -> Result<Self, CUresult> {
        let device = CUmemorytype::CU_MEMORYTYPE_DEVICE;
        if copy.srcMemoryType != device || copy.dstMemoryType != device || copy.Depth != 1 || copy.Height == 0 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        Ok(Self {
            from: copy.srcDevice,
            from_pitch: copy.srcPitch as u64,
            to: copy.dstDevice,
            to_pitch: copy.dstPitch as u64,
            width: copy.WidthInBytes as u64,
            height: copy.Height as u64,
        })
    }

    fn params(self) -> CUDA_MEMCPY3D {
        CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: ptr::null(),
            srcDevice: self.from,
            srcArray: ptr::null_mut(),
            reserved0: ptr::null_mut(),
            srcPitch: self.from_pitch as usize,
            srcHeight: self.height as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: ptr::null_mut(),
            dstDevice: self.to,
            dstArray: ptr::null_mut(),
            reserved1: ptr::null_mut(),
            dstPitch: self.to_pitch as usize,
            dstHeight: self.height as usize,
            WidthInBytes: self.width as usize,
            Height: self.height as usize,
            Depth: 1,
        }
    }
}

/// Rows that are set to a value.
#[derive(Clone)]
pub(crate) struct Fill {
    pub(crate) to: u64,
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    pub(crate) element: u32,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

/// Adds work to a stream, or to the graph that it is recorded into.
pub(crate) fn queue(world: &mut World, stream: Handle, work: Work) -> Result<(), CUresult> {
    let Some(Object::Stream(found)) = world.object_mut(stream) else {
        return Err(world.violation("work for a stream that is not alive".to_owned()));
    };
    let Some((graph, last)) = found.capture else {
        found.queue.push_back(work);
        return Ok(());
    };
    let Work::Node(kind) = work else { return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) };
    let node = add(world, graph, kind)?;
    if let (Some(last), Some(Object::Graph(graph))) = (last, world.object_mut(graph)) {
        graph.edges.push((last, node, [0; 3]));
    }
    if let Some(Object::Stream(found)) = world.object_mut(stream) {
        found.capture = Some((graph, Some(node)));
    }
    Ok(())
}

fn add(world: &mut World, graph: Handle, kind: NodeKind) -> Result<Handle, CUresult> {
    if !matches!(world.object(graph), Some(Object::Graph(_))) {
        return Err(world.violation("a node for a graph that is not alive".to_owned()));
    }
    let node = world.add(Object::Node(Node { kind, cooperative: 0, cluster: [0; 3] }));
    if let Some(Object::Graph(graph)) = world.object_mut(graph) {
        graph.nodes.push(node);
    }
    Ok(node)
}

/// Adds a node for the caller, who names no dependencies: this project adds edges by themselves.
fn added(
    world: &mut World,
    place: *mut CUgraphNode,
    graph: CUgraph,
    count: usize,
    kind: NodeKind,
) -> Result<(), CUresult> {
    if count != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    put(place, add(world, graph as usize, kind)? as CUgraphNode);
    Ok(())
}

fn node_mut(world: &mut World, handle: Handle) -> Result<&mut Node, CUresult> {
    if !matches!(world.object(handle), Some(Object::Node(_))) {
        return Err(world.violation("a call on a node that is not alive".to_owned()));
    }
    match world.object_mut(handle) {
        Some(Object::Node(node)) => Ok(node),
        _ => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
    }
}

/// The call that a caller's description stands for; its arguments are copied, as many as the kernel has.
pub(crate) fn kernel_call(
    world: &mut World,
    function: CUfunction,
    extents: [[u32; 3]; 2],
    shared: u32,
    params: *mut *mut c_void,
) -> Result<KernelCall, CUresult> {
    let Some(Object::Function(Function { params: sizes, max_shared, .. })) = world.object(function as usize) else {
        return Err(world.violation("a launch of a function that is not alive".to_owned()));
    };
    let threads: u32 = extents[1].iter().product();
    let too_much = shared > 48 << 10 && i64::from(shared) > i64::from(*max_shared);
    if extents.iter().flatten().any(|&extent| extent == 0) || threads > 1024 || too_much {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let args = sizes.iter().enumerate().map(|(at, &(size, _))| {
        let value = get(params.wrapping_add(at));
        if size == 8 { get(value.cast::<u64>()) } else { u64::from(get(value.cast::<u32>())) }
    });
    let args = args.collect();
    Ok(KernelCall { function: function as usize, grid: extents[0], block: extents[1], shared, args, by_handle: false })
}

pub(crate) fn graph_parts(world: &mut World, handle: CUgraph) -> Result<&Graph, CUresult> {
    if !matches!(world.object(handle as usize), Some(Object::Graph(_))) {
        return Err(world.violation("a call on a graph that is not alive".to_owned()));
    }
    match world.object(handle as usize) {
        Some(Object::Graph(graph)) => Ok(graph),
        _ => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
    }
}

fn remove_graph(world: &mut World, graph: Handle) -> Result<(), CUresult> {
    let Object::Graph(graph) = world.remove(graph, "destruction of a graph")? else {
        return Err(world.violation("destruction of a graph that is something else".to_owned()));
    };
    for node in graph.nodes {
        if let Object::Node(Node { kind: NodeKind::Conditional { bodies, .. }, .. }) =
            world.remove(node, "a graph's node")?
        {
            bodies.into_iter().try_for_each(|body| remove_graph(world, body))?;
        }
    }
    Ok(())
}

/// Whether a kernel node passes this handle.
fn sets(kind: &NodeKind, handle: u64) -> bool {
    matches!(kind, NodeKind::Kernel(call) if call.args.contains(&handle))
}

exports! {
    bindings, CUresult, code, CUresult::CUDA_SUCCESS;

    fn cuGraphCreate(world, place: *mut CUgraph, _flags: c_uint) {
        put(place, world.add(Object::Graph(Graph::default())) as CUgraph);
        Ok(())
    }

    #[release]
    fn cuGraphDestroy(world, graph: CUgraph) {
        if graph_parts(world, graph)?.owner.is_some() {
            return Err(world.violation("destruction of a conditional's body".to_owned()));
        }
        remove_graph(world, graph as usize)
    }

    fn cuGraphAddKernelNode_v2(
        world, place: *mut CUgraphNode, graph: CUgraph, _nodes: *const CUgraphNode, count: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS
    ) {
        let params = get(params);
        let extents = [
            [params.gridDimX, params.gridDimY, params.gridDimZ],
            [params.blockDimX, params.blockDimY, params.blockDimZ],
        ];
        let by_handle = params.func.is_null();
        let function = if by_handle { params.kern.cast() } else { params.func };
        let call = kernel_call(world, function, extents, params.sharedMemBytes, params.kernelParams)?;
        let call = KernelCall { by_handle, ..call };
        added(world, place, graph, count, NodeKind::Kernel(call))
    }

    fn cuGraphAddMemcpyNode(
        world, place: *mut CUgraphNode, graph: CUgraph, _nodes: *const CUgraphNode, count: usize,
        params: *const CUDA_MEMCPY3D, context: CUcontext
    ) {
        if !matches!(world.object(context as usize), Some(Object::Context)) {
            return Err(world.violation("a memcpy node for a context that is not alive".to_owned()));
        }
        added(world, place, graph, count, NodeKind::Copy(Rows::of(&get(params))?))
    }

    fn cuGraphAddMemsetNode(
        world, place: *mut CUgraphNode, graph: CUgraph, _nodes: *const CUgraphNode, count: usize,
        params: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext
    ) {
        if !matches!(world.object(context as usize), Some(Object::Context)) {
            return Err(world.violation("a memset node for a context that is not alive".to_owned()));
        }
        let params = get(params);
        let fill = Fill {
            to: params.dst,
            pitch: params.pitch as u64,
            value: params.value,
            element: params.elementSize,
            width: params.width as u64,
            height: params.height as u64,
        };
        added(world, place, graph, count, NodeKind::Fill(fill))
    }

    fn cuGraphAddEmptyNode(
        world, place: *mut CUgraphNode, graph: CUgraph, _nodes: *const CUgraphNode, count: usize
    ) {
        added(world, place, graph, count, NodeKind::Empty)
    }

    fn cuGraphConditionalHandleCreate(
        world, place: *mut CUgraphConditionalHandle, graph: CUgraph, _context: CUcontext, _value: c_uint, _flags: c_uint
    ) {
        graph_parts(world, graph)?;
        put(place, world.add(Object::Conditional { graph: graph as usize, used: false }) as u64);
        Ok(())
    }

    fn cuGraphAddNode_v2(
        world, place: *mut CUgraphNode, graph: CUgraph, _nodes: *const CUgraphNode, _data: *const CUgraphEdgeData,
        count: usize, params: *mut CUgraphNodeParams
    ) {
        let mut description = get(params);
        if description.type_ != CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: the type says that this field was written.
        let mut conditional = unsafe { description.__bindgen_anon_1.conditional };
        let is_if = conditional.type_ == CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_IF;
        let is_loop = conditional.type_ == CUgraphConditionalNodeType::CU_GRAPH_COND_TYPE_WHILE;
        if conditional.size == 0 || (is_loop && conditional.size > 1) || (is_if && conditional.size > 2) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        match world.object_mut(conditional.handle as usize) {
            Some(Object::Conditional { graph: own, used }) if *own == graph as usize && !*used => *used = true,
            _ => return Err(world.violation("a conditional node with a handle of another graph, or a used one".to_owned())),
        }
        let set = graph_parts(world, graph)?.nodes.clone().into_iter().any(|node| {
            matches!(world.object(node), Some(Object::Node(node)) if sets(&node.kind, conditional.handle))
        });
        if !set {
            world.violation("a conditional node whose handle no kernel before it sets".to_owned());
        }
        let bodies: Vec<Handle> = (0..conditional.size).map(|_| world.add(Object::Graph(Graph::default()))).collect();
        let node = add(world, graph as usize, NodeKind::Conditional { handle: conditional.handle, is_loop, bodies: bodies.clone() })?;
        for &body in &bodies {
            if let Some(Object::Graph(body)) = world.object_mut(body) {
                body.owner = Some(node);
            }
        }
        // The driver owns this array as long as the node lives; here it is never freed.
        let array: Vec<CUgraph> = bodies.into_iter().map(|body| body as CUgraph).collect();
        conditional.phGraph_out = Box::leak(array.into_boxed_slice()).as_mut_ptr();
        description.__bindgen_anon_1.conditional = conditional;
        put(params, description);
        put(place, node as CUgraphNode);
        if count == 0 { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) }
    }

    fn cuGraphAddDependencies_v2(
        world, graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize
    ) {
        let own = graph_parts(world, graph)?.nodes.clone();
        let edges: Vec<_> = list(from, count).into_iter().zip(list(to, count)).zip(list(data, count)).collect();
        for ((from, to), data) in edges {
            let (from, to) = (from as usize, to as usize);
            if !own.contains(&from) || !own.contains(&to) {
                return Err(world.violation("an edge between nodes of another graph".to_owned()));
            }
            let is_kernel = |world: &World, node| {
                matches!(world.object(node), Some(Object::Node(Node { kind: NodeKind::Kernel(_), .. })))
            };
            if data.type_ == 1 && !(is_kernel(world, from) && is_kernel(world, to)) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            if let Some(Object::Graph(graph)) = world.object_mut(graph as usize) {
                if graph.edges.iter().any(|&(a, b, _)| (a, b) == (from, to)) {
                    return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
                }
                graph.edges.push((from, to, [data.from_port, data.to_port, data.type_]));
            }
        }
        Ok(())
    }

    fn cuGraphGetNodes(world, graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) {
        let found = graph_parts(world, graph)?.nodes.clone();
        if !nodes.is_null() {
            found.iter().take(get(count)).enumerate().for_each(|(at, &node)| put(nodes.wrapping_add(at), node as CUgraphNode));
        }
        put(count, found.len());
        Ok(())
    }

    fn cuGraphGetEdges_v2(
        world, graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, data: *mut CUgraphEdgeData, count: *mut usize
    ) {
        let edges = graph_parts(world, graph)?.edges.clone();
        if !from.is_null() {
            for (at, &(a, b, [from_port, to_port, type_])) in edges.iter().take(get(count)).enumerate() {
                put(from.wrapping_add(at), a as CUgraphNode);
                put(to.wrapping_add(at), b as CUgraphNode);
                put(data.wrapping_add(at), CUgraphEdgeData { from_port, to_port, type_, reserved: [0; 5] });
            }
        }
        put(count, edges.len());
        Ok(())
    }

    fn cuGraphNodeGetType(world, node: CUgraphNode, place: *mut CUgraphNodeType) {
        put(place, match node_mut(world, node as usize)?.kind {
            NodeKind::Kernel(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL,
            NodeKind::Copy(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
            NodeKind::Fill(_) if lies_about("allocation") => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            NodeKind::Fill(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
            NodeKind::Empty => CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY,
            NodeKind::Conditional { .. } => CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL,
        });
        Ok(())
    }

    fn cuGraphKernelNodeGetParams_v2(world, node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS) {
        let NodeKind::Kernel(call) = &node_mut(world, node as usize)?.kind else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        let [[gx, gy, gz], [bx, by, bz]] = [call.grid, call.block];
        let (func, kern) = match call.by_handle {
            true => (ptr::null_mut(), call.function as CUkernel),
            false => (call.function as CUfunction, ptr::null_mut()),
        };
        put(params, CUDA_KERNEL_NODE_PARAMS {
            func,
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: call.shared,
            kernelParams: ptr::null_mut(),
            extra: ptr::null_mut(),
            kern,
            ctx: ptr::null_mut(),
        });
        Ok(())
    }

    fn cuGraphMemsetNodeGetParams(world, node: CUgraphNode, params: *mut CUDA_MEMSET_NODE_PARAMS) {
        let NodeKind::Fill(fill) = &node_mut(world, node as usize)?.kind else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        put(params, CUDA_MEMSET_NODE_PARAMS {
            dst: fill.to,
            pitch: fill.pitch as usize,
            value: fill.value,
            elementSize: fill.element,
            width: fill.width as usize,
            height: fill.height as usize,
        });
        Ok(())
    }

    fn cuGraphMemcpyNodeGetParams(world, node: CUgraphNode, params: *mut CUDA_MEMCPY3D) {
        let NodeKind::Copy(copy) = &node_mut(world, node as usize)?.kind else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        put(params, copy.params());
        Ok(())
    }

    fn cuGraphKernelNodeSetAttribute(
        world, node: CUgraphNode, attribute: CUkernelNodeAttrID, value: *const CUkernelNodeAttrValue
    ) {
        let (value, node) = (get(value), node_mut(world, node as usize)?);
        // SAFETY: the union is plain integers, all of which the caller wrote.
        let (cooperative, cluster) = unsafe { (value.cooperative, value.clusterDim) };
        match attribute {
            _ if lies_about("attributes") => {}
            CUkernelNodeAttrID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => node.cooperative = cooperative,
            CUkernelNodeAttrID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => node.cluster = [cluster.x, cluster.y, cluster.z],
            _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
        Ok(())
    }

    fn cuGraphKernelNodeGetAttribute(
        world, node: CUgraphNode, attribute: CUkernelNodeAttrID, place: *mut CUkernelNodeAttrValue
    ) {
        let node = node_mut(world, node as usize)?;
        let mut value = CUkernelNodeAttrValue { pad: [0; 64] };
        match attribute {
            CUkernelNodeAttrID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => value.cooperative = node.cooperative,
            CUkernelNodeAttrID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                let [x, y, z] = node.cluster;
                value.clusterDim = CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
            }
            _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
        put(place, value);
        Ok(())
    }

    fn cuGraphKernelNodeCopyAttributes(world, to: CUgraphNode, from: CUgraphNode) {
        let from = node_mut(world, from as usize)?;
        let (cooperative, cluster) = (from.cooperative, from.cluster);
        let to = node_mut(world, to as usize)?;
        (to.cooperative, to.cluster) = (cooperative, cluster);
        Ok(())
    }

    fn cuKernelGetName(world, place: *mut *const c_char, kernel: CUkernel) {
        let Some(Object::Function(function)) = world.object(kernel as usize) else {
            return Err(world.violation("the name of a kernel that is not alive".to_owned()));
        };
        put(place, function.name.as_ptr());
        Ok(())
    }

    fn cuStreamBeginCapture_v2(world, stream: CUstream, mode: CUstreamCaptureMode) {
        if mode != CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL {
            return Err(world.violation("a capture that is not thread-local".to_owned()));
        }
        let graph = world.add(Object::Graph(Graph::default()));
        match world.object_mut(stream as usize) {
            Some(Object::Stream(stream)) if stream.capture.is_none() => stream.capture = Some((graph, None)),
            _ => return Err(world.violation("a capture of a stream that is not alive, or is captured".to_owned())),
        }
        Ok(())
    }

    #[release]
    fn cuStreamEndCapture(world, stream: CUstream, place: *mut CUgraph) {
        let captured = match world.object_mut(stream as usize) {
            Some(Object::Stream(stream)) => stream.capture.take(),
            _ => None,
        };
        let Some((graph, _)) = captured else {
            return Err(world.violation("the end of a capture that was not begun".to_owned()));
        };
        put(place, graph as CUgraph);
        Ok(())
    }
}
