//! Everything that a handle can stand for, and memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use cudarc::driver::sys::CUresult;

use crate::blas::Product;
use crate::exec::Snapshot;
use crate::graph::NodeKind;

/// A handle's number; handed out as a pointer that nobody dereferences.
pub(crate) type Handle = usize;

/// What exists.
#[derive(Default)]
pub(crate) struct World {
    last: Handle,
    objects: HashMap<Handle, Object>,
    memory: BTreeMap<u64, Allocation>,
    pub(crate) current: Handle,
    /// The process's primary context, and how often it is retained.
    pub(crate) primary: Option<(Handle, u32)>,
    pub(crate) violations: Vec<String>,
}

pub(crate) enum Object {
    Context,
    Stream(Stream),
    Event(Event),
    Module { source: Arc<str> },
    Function(Function),
    Graph(Graph),
    Node(Node),
    Exec(Arc<Snapshot>),
    Conditional { graph: Handle, used: bool },
    Blas,
    Description(crate::blas::Description),
    Layout(crate::blas::Layout),
    Preference,
    Program(crate::compiler::Program),
}

#[derive(Default)]
pub(crate) struct Stream {
    pub(crate) queue: VecDeque<Work>,
    /// The graph that records, while the stream is captured, and the node that the next one follows.
    pub(crate) capture: Option<(Handle, Option<Handle>)>,
}

#[derive(Default)]
pub(crate) struct Event {
    /// How often it was queued, and how often that work has run.
    pub(crate) recorded: u64,
    pub(crate) reached: u64,
    pub(crate) stream: Handle,
}

#[derive(Clone)]
pub(crate) struct Function {
    /// The module, or the library handle, that it lives in.
    pub(crate) home: Handle,
    pub(crate) name: std::ffi::CString,
    /// Size of each parameter, and whether it is an address.
    pub(crate) params: Vec<(usize, bool)>,
    pub(crate) max_shared: i32,
    pub(crate) product: Option<Product>,
}

#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Handle>,
    pub(crate) edges: Vec<(Handle, Handle, [u8; 3])>,
    /// The conditional node that it is a body of.
    pub(crate) owner: Option<Handle>,
}

pub(crate) struct Node {
    pub(crate) kind: NodeKind,
    pub(crate) cooperative: i32,
    pub(crate) cluster: [u32; 3],
}

/// Work in a stream.
pub(crate) enum Work {
    Node(NodeKind),
    Graph(Arc<Snapshot>),
    Copy { to: u64, from: u64, bytes: u64 },
    Record { event: Handle, number: u64 },
}

struct Allocation {
    size: u64,
    pinned: bool,
}

impl World {
    pub(crate) fn add(&mut self, object: Object) -> Handle {
        self.last += 16;
        let handle = 0x1000_0000 + self.last;
        self.objects.insert(handle, object);
        handle
    }

    pub(crate) fn remove(&mut self, handle: Handle, what: &str) -> Result<Object, CUresult> {
        match self.objects.remove(&handle) {
            Some(object) => Ok(object),
            None => Err(self.violation(format!("{what} of a handle that is not alive"))),
        }
    }

    pub(crate) fn object(&self, handle: Handle) -> Option<&Object> {
        self.objects.get(&handle)
    }

    pub(crate) fn object_mut(&mut self, handle: Handle) -> Option<&mut Object> {
        self.objects.get_mut(&handle)
    }

    /// Every stream, oldest first.
    pub(crate) fn streams(&self) -> Vec<Handle> {
        let is_stream = |(&handle, object): (&Handle, &Object)| matches!(object, Object::Stream(_)).then_some(handle);
        let mut streams: Vec<_> = self.objects.iter().filter_map(is_stream).collect();
        streams.sort_unstable();
        streams
    }

    /// Notes a misuse and gives the error for it.
    pub(crate) fn violation(&mut self, what: String) -> CUresult {
        self.violations.push(what);
        CUresult::CUDA_ERROR_INVALID_HANDLE
    }

    /// Fails where no live context is current.
    pub(crate) fn need_context(&mut self, call: &str) -> Result<(), CUresult> {
        if matches!(self.objects.get(&self.current), Some(Object::Context)) {
            return Ok(());
        }
        self.violation(format!("{call} without a live current context"));
        Err(CUresult::CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Takes zeroed memory. Its contents start as a pattern, so that reading what nobody wrote shows.
    pub(crate) fn allocate(&mut self, size: u64, pinned: bool) -> Result<u64, CUresult> {
        let layout = layout(size);
        // SAFETY: the layout has a size of at least one byte.
        let address = unsafe { alloc_zeroed(layout) };
        if address.is_null() {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        // SAFETY: the allocation has `size` bytes.
        unsafe { address.write_bytes(0xA5, size as usize) };
        self.memory.insert(address as u64, Allocation { size, pinned });
        Ok(address as u64)
    }

    pub(crate) fn free(&mut self, address: u64, pinned: bool) -> Result<(), CUresult> {
        match self.memory.remove(&address) {
            Some(allocation) if allocation.pinned == pinned => {
                // SAFETY: the address came from `allocate` with this size, and is freed once.
                unsafe { dealloc(address as *mut u8, layout(allocation.size)) };
                Ok(())
            }
            _ => Err(self.violation(format!("free of memory that is not alive (pinned: {pinned})"))),
        }
    }

    /// Whether these bytes lie in one live allocation.
    pub(crate) fn is_live(&self, address: u64, bytes: u64) -> bool {
        let found = self.memory.range(..=address).next_back();
        found.is_some_and(|(&start, allocation)| address + bytes <= start + allocation.size)
    }

    /// Notes where bytes do not lie in live memory.
    pub(crate) fn need_memory(&mut self, address: u64, bytes: u64, what: &str) -> bool {
        let live = self.is_live(address, bytes);
        if !live {
            self.violation(format!("{what} touches memory that is not alive"));
        }
        live
    }

    /// Bytes of device memory that are taken.
    pub(crate) fn taken(&self) -> u64 {
        self.memory.values().filter(|allocation| !allocation.pinned).map(|allocation| allocation.size).sum()
    }

    /// How many objects of each kind are alive; functions live as long as their module and are not counted.
    pub(crate) fn alive(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        let mut count = |kind, by| *counts.entry(kind).or_default() += by;
        for object in self.objects.values() {
            match object {
                Object::Context => count("context", 1),
                Object::Stream(_) => count("stream", 1),
                Object::Event(_) => count("event", 1),
                Object::Module { .. } => count("module", 1),
                Object::Graph(graph) if graph.owner.is_none() => count("graph", 1),
                Object::Exec(_) => count("executable", 1),
                Object::Blas => count("library handle", 1),
                Object::Description(_) | Object::Layout(_) | Object::Preference => count("library descriptor", 1),
                Object::Program(_) => count("program", 1),
                Object::Function(_) | Object::Graph(_) | Object::Node(_) | Object::Conditional { .. } => {}
            }
        }
        if !self.memory.is_empty() {
            count("allocation", self.memory.len());
        }
        counts
    }
}

fn layout(size: u64) -> Layout {
    Layout::from_size_align(size.max(1) as usize, 256).unwrap_or(Layout::new::<[u8; 256]>())
}
