//! Work runs late: when somebody waits, or asks whether it has run.

use std::sync::Arc;

use cudarc::driver::sys::CUresult;

use crate::entry::{get, put};
use crate::exec::Snapshot;
use crate::graph::{Fill, KernelCall, NodeKind, Rows};
use crate::objects::{Handle, Object, Work, World};

impl World {
    /// Runs everything that is queued on a stream.
    pub(crate) fn drain(&mut self, stream: Handle) -> Result<(), CUresult> {
        while self.step(stream)? {}
        Ok(())
    }

    /// Runs everything that is queued anywhere.
    pub(crate) fn drain_all(&mut self) -> Result<(), CUresult> {
        self.streams().into_iter().try_for_each(|stream| self.drain(stream))
    }

    /// Runs the oldest work of a stream; `false` where there is none.
    pub(crate) fn step(&mut self, stream: Handle) -> Result<bool, CUresult> {
        let Some(Object::Stream(found)) = self.object_mut(stream) else {
            return Err(self.violation("waiting for a stream that is not alive".to_owned()));
        };
        if found.capture.is_some() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let Some(work) = found.queue.pop_front() else { return Ok(false) };
        match work {
            Work::Node(kind) => self.run_node(&kind),
            Work::Graph(snapshot) => self.run_graph(&snapshot, true),
            Work::Copy { to, from, bytes } => {
                if self.need_memory(to, bytes, "a copy's target") && self.need_memory(from, bytes, "a copy's source") {
                    copy_bytes(to, from, bytes);
                }
            }
            Work::Record { event, number } => {
                if let Some(Object::Event(event)) = self.object_mut(event) {
                    event.reached = event.reached.max(number);
                }
            }
        }
        Ok(true)
    }

    /// Runs a graph; bodies, whose conditions nobody computes here, are only checked.
    fn run_graph(&mut self, graph: &Arc<Snapshot>, really: bool) {
        for node in &graph.nodes {
            match (really, node) {
                (false, NodeKind::Copy(copy)) => drop(self.check_copy(copy)),
                (false, NodeKind::Fill(fill)) => drop(self.check_fill(fill)),
                (false, NodeKind::Kernel(call)) => self.check_kernel(call),
                _ => self.run_node(node),
            }
        }
        graph.bodies.iter().for_each(|body| self.run_graph(body, false));
    }

    fn run_node(&mut self, node: &NodeKind) {
        match node {
            NodeKind::Kernel(call) => self.run_kernel(call),
            NodeKind::Copy(copy) => {
                if self.check_copy(copy) {
                    run_copy(copy);
                }
            }
            NodeKind::Fill(fill) => {
                if self.check_fill(fill) {
                    run_fill(fill);
                }
            }
            NodeKind::Empty => {}
            NodeKind::Conditional { handle, .. } => {
                if !matches!(self.object(*handle as usize), Some(Object::Conditional { .. })) {
                    self.violation("a conditional node without its handle".to_owned());
                }
            }
        }
    }

    /// Checks that every address lies in live memory, and that the kernel's code is loaded.
    fn check_kernel(&mut self, call: &KernelCall) {
        let Some(Object::Function(function)) = self.object(call.function) else {
            self.violation("a kernel whose function is gone".to_owned());
            return;
        };
        let (name, home, params) =
            (function.name.to_string_lossy().into_owned(), function.home, function.params.clone());
        if !matches!(self.object(home), Some(Object::Module { .. } | Object::Blas)) {
            self.violation(format!("the kernel {name} runs after its code was unloaded"));
        }
        for (&value, (_, is_address)) in call.args.iter().zip(params) {
            if is_address {
                self.need_memory(value, 1, &format!("an argument of {name}"));
            }
        }
    }

    fn run_kernel(&mut self, call: &KernelCall) {
        self.check_kernel(call);
        let product = match self.object(call.function) {
            Some(Object::Function(function)) => function.product.clone(),
            _ => None,
        };
        if let Some(product) = product {
            product.run(self);
        }
    }

    fn check_copy(&mut self, copy: &Rows) -> bool {
        if copy.height > 1 && (copy.from_pitch < copy.width || copy.to_pitch < copy.width) {
            self.violation("a copy whose pitch is below its width".to_owned());
            return false;
        }
        let bytes = |pitch: u64| (copy.height - 1) * pitch + copy.width;
        self.need_memory(copy.from, bytes(copy.from_pitch), "a copy's source")
            & self.need_memory(copy.to, bytes(copy.to_pitch), "a copy's target")
    }

    fn check_fill(&mut self, fill: &Fill) -> bool {
        let row = fill.width * u64::from(fill.element);
        if fill.height > 1 && fill.pitch < row {
            self.violation("a fill whose pitch is below its width".to_owned());
            return false;
        }
        if !fill.to.is_multiple_of(u64::from(fill.element)) {
            self.violation("a fill that is not aligned to its elements".to_owned());
            return false;
        }
        self.need_memory(fill.to, (fill.height - 1) * fill.pitch + row, "a fill's target")
    }
}

fn run_copy(copy: &Rows) {
    for row in 0..copy.height {
        copy_bytes(copy.to + row * copy.to_pitch, copy.from + row * copy.from_pitch, copy.width);
    }
}

pub(crate) fn copy_bytes(to: u64, from: u64, bytes: u64) {
    (0..bytes).for_each(|at| put((to + at) as *mut u8, get((from + at) as *const u8)));
}

fn run_fill(fill: &Fill) {
    for row in 0..fill.height {
        for column in 0..fill.width {
            let at = fill.to + row * fill.pitch + column * u64::from(fill.element);
            match fill.element {
                1 => put(at as *mut u8, (fill.value & 0xFF) as u8),
                2 => put(at as *mut u16, (fill.value & 0xFFFF) as u16),
                _ => put(at as *mut u32, fill.value),
            }
        }
    }
}
