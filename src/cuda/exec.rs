//! Executable graphs.

use std::fmt;
use std::ptr;

use cudarc::driver::sys::{self, CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraphInstantiateResult};

use super::context::Context;
use super::error::{CudaError, ignore};
use super::graph::{Graph, Node};
use super::stream::Stream;

/// An executable graph. It launches what its graph was when it was made, at the addresses that the graph named: whoever
/// holds it keeps those alive.
pub struct GraphExec {
    raw: sys::CUgraphExec,
    context: Context,
}

// SAFETY: an executable's handle may be used from any thread, by one at a time; launching takes `&mut`.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// Makes a graph executable. `blame` names a node for the error message.
    ///
    /// # Errors
    /// [`CudaError::Instantiate`], with the driver's reason and the node that it blames.
    pub fn new(graph: &Graph, blame: impl Fn(Node) -> Option<String>) -> Result<Self, CudaError> {
        graph.context().bind()?;
        let mut raw = ptr::null_mut();
        let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags: 0,
            hUploadStream: ptr::null_mut(),
            hErrNode_out: ptr::null_mut(),
            result_out: CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS,
        };
        // SAFETY: the graph is alive, and both outputs outlive the call.
        let made = unsafe { driver_call!(cuGraphInstantiateWithParams(&raw mut raw, graph.raw(), &raw mut params)) };
        match made {
            Ok(()) => Ok(Self { raw, context: graph.context().clone() }),
            Err(CudaError::Call { name, code, .. }) => {
                let node = (!params.hErrNode_out.is_null()).then_some(Node(params.hErrNode_out)).and_then(blame);
                Err(CudaError::Instantiate { name, code, result: format!("{:?}", params.result_out), node })
            }
            Err(other) => Err(other),
        }
    }

    /// The raw handle, valid as long as this value.
    pub fn raw(&self) -> sys::CUgraphExec {
        self.raw
    }

    /// Brings the graph to the device ahead of its first launch.
    ///
    /// # Errors
    /// Whatever the driver says.
    pub fn upload(&mut self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: executable and stream are alive.
        unsafe { driver_call!(cuGraphUpload(self.raw, stream.raw())) }
    }

    /// Queues one run.
    ///
    /// # Errors
    /// Whatever the driver says, faults of earlier work included.
    pub fn launch(&mut self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: executable and stream are alive.
        unsafe { driver_call!(cuGraphLaunch(self.raw, stream.raw())) }
    }
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphExec").finish_non_exhaustive()
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        ignore(self.context.bind());
        // SAFETY: the executable is ours; a run that is still queued ends before the driver frees it.
        ignore(unsafe { driver_call!(cuGraphExecDestroy(self.raw)) });
    }
}
