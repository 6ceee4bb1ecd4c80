//! The nodes of a `CUgraph`, read through the driver.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;

use cudarc::driver::sys;

use super::arguments::{self, LONGEST, Read};
use super::copy;
use super::driver::call;
use crate::census::{Argument, Node, NodeKind};
use crate::{DeviceError, GraphHandle, StreamHandle};

/// Graphs within graphs.
const DEEPEST: usize = 16;

/// What is the same for every launch of a kernel.
#[derive(Clone, Debug, Default)]
struct Signature {
    name: String,
    /// (offset, bytes) of each parameter.
    parameters: Vec<(usize, usize)>,
}

/// Kernels by handle: a graph launches few, many times.
#[derive(Debug, Default)]
struct Reader {
    kernels: BTreeMap<(usize, usize), Signature>,
    nodes: Vec<Node>,
}

/// The nodes of a graph, in the driver's order, children behind their node.
pub(super) fn nodes(graph: GraphHandle) -> Result<Vec<Node>, DeviceError> {
    let mut reader = Reader::default();
    reader.graph(graph.0 as sys::CUgraph, &[])?;
    Ok(reader.nodes)
}

/// The graph that a stream records.
pub(super) fn capture_under_way(stream: StreamHandle) -> Result<GraphHandle, DeviceError> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut graph = ptr::null_mut();
    // SAFETY: the stream lives, as its handle promises; the driver writes to live locals and takes
    // null for what is not asked.
    unsafe {
        call!(cuStreamGetCaptureInfo_v3(
            stream.0 as sys::CUstream,
            &raw mut status,
            ptr::null_mut(),
            &raw mut graph,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
        ))?;
    }
    let active = status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if active && !graph.is_null() {
        return Ok(GraphHandle(graph as u64));
    }
    Err(DeviceError::NoCapture { stream: stream.0 })
}

/// The driver's number of a node's kind, which a newer driver may have more of than are named.
fn kind_of(node: sys::CUgraphNode) -> Result<NodeKind, DeviceError> {
    let mut kind = u32::MAX;
    // SAFETY: a node of a graph that lives; the driver writes an enumeration of 32 bits, taken as a
    // number since it may have no name here.
    unsafe { call!(cuGraphNodeGetType(node, (&raw mut kind).cast()))? };
    Ok(match kind {
        0 => NodeKind::Kernel,
        1 => NodeKind::Memcpy,
        2 => NodeKind::Memset,
        3 => NodeKind::Host,
        4 => NodeKind::Graph,
        5..=9 => NodeKind::Order,
        10 => NodeKind::MemAlloc,
        11 => NodeKind::MemFree,
        12 => NodeKind::BatchMemOp,
        13 => NodeKind::Conditional,
        other => NodeKind::Other(other),
    })
}

/// Why the graph in the node at this path is not followed; nothing where it is.
fn too_deep(path: &[u32]) -> Option<String> {
    let why = || format!("graphs that are nested {DEEPEST} deep are not followed further");
    (path.len() >= DEEPEST).then(why)
}

impl Reader {
    fn graph(&mut self, graph: sys::CUgraph, path: &[u32]) -> Result<(), DeviceError> {
        let mut count = 0;
        // SAFETY: a graph that lives, by its handle's promise; null asks for the number of nodes.
        unsafe { call!(cuGraphGetNodes(graph, ptr::null_mut(), &raw mut count))? };
        let mut handles = vec![ptr::null_mut(); count];
        if count > 0 {
            // SAFETY: room for as many as the driver said.
            unsafe { call!(cuGraphGetNodes(graph, handles.as_mut_ptr(), &raw mut count))? };
        }
        for (index, handle) in handles.into_iter().take(count).enumerate() {
            let path: Vec<u32> = path.iter().copied().chain([index as u32]).collect();
            self.node(handle, path)?;
        }
        Ok(())
    }

    fn node(&mut self, handle: sys::CUgraphNode, path: Vec<u32>) -> Result<(), DeviceError> {
        let kind = kind_of(handle)?;
        let mut node = Node {
            path,
            kind,
            kernel: kind.name().to_owned(),
            arguments: Vec::new(),
            unread: None,
        };
        let read = match kind {
            NodeKind::Kernel => self.kernel(handle, &mut node),
            NodeKind::Memcpy => memcpy(handle, &mut node),
            NodeKind::Memset => memset(handle, &mut node),
            NodeKind::Host => host(handle, &mut node),
            NodeKind::MemAlloc => mem_alloc(handle, &mut node),
            NodeKind::MemFree => mem_free(handle, &mut node),
            NodeKind::Graph => {
                node.unread = too_deep(&node.path);
                Ok(())
            }
            NodeKind::Order => Ok(()),
            NodeKind::Conditional => {
                // The bodies are given when the node is made, and by `cuGraphNodeGetParams` as of
                // CUDA 13.2: no call of 13.0 gives those of a node that was captured.
                node.unread = Some("the driver of CUDA 13.0 does not give its bodies".to_owned());
                Ok(())
            }
            NodeKind::BatchMemOp | NodeKind::Other(_) => {
                node.unread = Some("nodes of this kind are not read".to_owned());
                Ok(())
            }
        };
        if let Err(error) = read {
            node.unread = Some(error.to_string());
        }
        let is_followed = kind == NodeKind::Graph && node.unread.is_none();
        let deeper = is_followed.then(|| node.path.clone());
        self.nodes.push(node);
        deeper.map_or(Ok(()), |path| self.child(handle, &path))
    }

    fn child(&mut self, handle: sys::CUgraphNode, path: &[u32]) -> Result<(), DeviceError> {
        let mut graph = ptr::null_mut();
        // SAFETY: a child graph's node; the graph that it gives lives as long as the node.
        unsafe { call!(cuGraphChildGraphNodeGetGraph(handle, &raw mut graph))? };
        self.graph(graph, path)
    }

    fn kernel(&mut self, handle: sys::CUgraphNode, node: &mut Node) -> Result<(), DeviceError> {
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut params: sys::CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
        // SAFETY: a kernel node; the driver fills the struct of this version.
        unsafe { call!(cuGraphKernelNodeGetParams_v2(handle, &raw mut params))? };
        let signature = self.signature(params.func, params.kern)?;
        node.kernel.clone_from(&signature.name);
        let parameters = &signature.parameters;
        let read = if !params.kernelParams.is_null() {
            // SAFETY: the node holds one pointer for each parameter of its kernel, to a copy of
            // that parameter's bytes, while the graph lives.
            unsafe { arguments::listed(params.kernelParams, parameters) }
        } else if !params.extra.is_null() {
            // SAFETY: the node holds a list of tags and values that ends with the end's tag.
            unsafe { arguments::packed(params.extra, parameters) }
        } else {
            let none = || "the driver gives none of its arguments".to_owned();
            let unread = (!parameters.is_empty()).then(none);
            Read { arguments: Vec::new(), unread }
        };
        (node.arguments, node.unread) = (read.arguments, read.unread);
        Ok(())
    }

    fn signature(
        &mut self,
        function: sys::CUfunction,
        kernel: sys::CUkernel,
    ) -> Result<&Signature, DeviceError> {
        match self.kernels.entry((function as usize, kernel as usize)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => Ok(new.insert(Signature {
                name: name_of(function, kernel)?,
                parameters: parameters_of(function, kernel)?,
            })),
        }
    }
}

fn name_of(function: sys::CUfunction, kernel: sys::CUkernel) -> Result<String, DeviceError> {
    let mut name = ptr::null();
    // SAFETY: a node has a function or a kernel; the name is the module's, which the graph keeps.
    unsafe {
        if kernel.is_null() {
            call!(cuFuncGetName(&raw mut name, function))?;
        } else {
            call!(cuKernelGetName(&raw mut name, kernel))?;
        }
        if name.is_null() {
            return Ok("kernel".to_owned());
        }
        Ok(CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

/// (offset, bytes) of each parameter: the driver is asked until it knows no more.
fn parameters_of(
    function: sys::CUfunction,
    kernel: sys::CUkernel,
) -> Result<Vec<(usize, usize)>, DeviceError> {
    let mut found = Vec::new();
    loop {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: as in `name_of`; both pointers are to live locals.
        let status = unsafe {
            if kernel.is_null() {
                sys::cuFuncGetParamInfo(function, found.len(), &raw mut offset, &raw mut bytes)
            } else {
                sys::cuKernelGetParamInfo(kernel, found.len(), &raw mut offset, &raw mut bytes)
            }
        };
        match status {
            sys::CUresult::CUDA_SUCCESS if found.len() < LONGEST => {
                found.push((offset, bytes.min(LONGEST)));
            }
            sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_INVALID_VALUE => {
                return Ok(found);
            }
            other => super::driver::checked("cuFuncGetParamInfo", other)?,
        }
    }
}

fn memcpy(handle: sys::CUgraphNode, node: &mut Node) -> Result<(), DeviceError> {
    // Enumerations among the fields may hold what has no name here: the struct is not taken whole.
    let mut filled = MaybeUninit::<sys::CUDA_MEMCPY3D>::zeroed();
    let params = filled.as_mut_ptr();
    // SAFETY: a copy's node; the driver fills the struct.
    unsafe { call!(cuGraphMemcpyNodeGetParams(handle, params))? };
    // SAFETY: the driver filled the struct, which was zero before.
    let read = unsafe { copy::sides(params) };
    (node.arguments, node.unread) = (read.arguments, read.unread);
    Ok(())
}

fn memset(handle: sys::CUgraphNode, node: &mut Node) -> Result<(), DeviceError> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut params: sys::CUDA_MEMSET_NODE_PARAMS = unsafe { std::mem::zeroed() };
    // SAFETY: a fill's node; the driver fills the struct.
    unsafe { call!(cuGraphMemsetNodeGetParams(handle, &raw mut params))? };
    node.arguments.push(Argument::pointer(0, params.dst));
    Ok(())
}

/// What a function of the host reads is its own affair: its data's address is on record.
fn host(handle: sys::CUgraphNode, node: &mut Node) -> Result<(), DeviceError> {
    // SAFETY: an optional function and a pointer, for which zero is a value.
    let mut params: sys::CUDA_HOST_NODE_PARAMS = unsafe { std::mem::zeroed() };
    // SAFETY: a host function's node; the driver fills the struct.
    unsafe { call!(cuGraphHostNodeGetParams(handle, &raw mut params))? };
    node.arguments.push(Argument::pointer(0, params.userData as u64));
    Ok(())
}

fn mem_alloc(handle: sys::CUgraphNode, node: &mut Node) -> Result<(), DeviceError> {
    let mut filled = MaybeUninit::<sys::CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
    let params = filled.as_mut_ptr();
    // SAFETY: an allocation's node; the driver fills the struct, of which one number is read.
    let address = unsafe {
        call!(cuGraphMemAllocNodeGetParams(handle, params))?;
        (*params).dptr
    };
    node.arguments.push(Argument::pointer(0, address));
    Ok(())
}

fn mem_free(handle: sys::CUgraphNode, node: &mut Node) -> Result<(), DeviceError> {
    let mut address = 0;
    // SAFETY: a node that frees; the driver writes one address.
    unsafe { call!(cuGraphMemFreeNodeGetParams(handle, &raw mut address))? };
    node.arguments.push(Argument::pointer(0, address));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_that_is_nested_too_deep_is_not_read() {
        assert_eq!(too_deep(&[0; DEEPEST - 1]), None);
        assert!(too_deep(&[0; DEEPEST]).is_some());
    }
}
