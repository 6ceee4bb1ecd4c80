//! The object walk: every tensor that can be reached from an object, with a path to it.
//!
//! It never runs code of the objects it walks: no property, no `__getattr__`, no `__iter__`, no
//! `__repr__`. It has no depth limit, and no limit of objects but the caller's, which is reported.

mod kind;
mod path;
mod plans;
mod raw;
mod walker;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyType};
use pyo3::{PyTraverseError, PyVisit};

use walker::Walker;

/// What a walk found.
#[pyclass(frozen, module = "coldproof")]
#[derive(Debug)]
pub(crate) struct Walk {
    tensors: Py<PyList>,
    aliases: Vec<(String, String)>,
    opaque: Py<PyList>,
    objects: usize,
    capped: bool,
}

#[pymethods]
impl Walk {
    /// Every tensor once, as (path, tensor), in the order in which they were found.
    #[getter]
    fn tensors(&self, py: Python<'_>) -> Py<PyList> {
        self.tensors.clone_ref(py)
    }

    /// Other ways to a tensor, as (path, path in `tensors`).
    #[getter]
    fn aliases(&self) -> Vec<(String, String)> {
        self.aliases.clone()
    }

    /// Objects with something inside that cannot be entered, as (path, object).
    #[getter]
    fn opaque(&self, py: Python<'_>) -> Py<PyList> {
        self.opaque.clone_ref(py)
    }

    /// Objects that were found: those that can hold something, tensors and opaque ones.
    #[getter]
    const fn objects(&self) -> usize {
        self.objects
    }

    /// Whether `max_objects` left something out.
    #[getter]
    const fn capped(&self) -> bool {
        self.capped
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (tensors, opaque) = (self.tensors.bind(py).len(), self.opaque.bind(py).len());
        let capped = if self.capped { ", capped" } else { "" };
        format!("Walk({tensors} tensors, {opaque} opaque, {} objects{capped})", self.objects)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.tensors)?;
        visit.call(&self.opaque)
    }
}

/// Every tensor that can be reached from `root`, and what was not entered.
///
/// An instance of `tensor_type` or of a subclass of it is a tensor. Paths begin with `name`:
///
/// - `a.b`: an attribute (instance `__dict__` or a slot), or a parameter, buffer or submodule of an
///   object that has `_parameters`, `_buffers` and `_modules`;
/// - `a[0]`, `a['k']`: an item of a list, tuple or deque, and of a dictionary; `a[<key 3>]` is the
///   entry at position 3 of a dictionary whose key is no plain value, `a.<keys>[3]` that key;
/// - `a.<set>[0]`: an element of a set, in no order that would be the same in another process;
/// - `f.<closure>.name`, `f.__defaults__[0]`, `f.__kwdefaults__['k']`: what a function keeps;
/// - `p.<partial>.func`, `p.<partial>.args[0]`, `p.<partial>.keywords['k']`;
/// - `m.__self__`, `m.__func__`: a bound method; `c.<cell>`: a cell;
/// - `x.<referent>[0]`: what an object of the interpreter's own (an iterator, a cache of
///   `functools.lru_cache`, a view) refers to.
///
/// Entered: those, and whatever is hung on a tensor. Not entered: modules, classes, globals of
/// functions, weak references, and what a tensor keeps in C++ (its gradient, its base). Objects of
/// extensions whose inside is not visible are listed as opaque. Every object is entered once.
#[pyfunction]
#[pyo3(signature = (root, *, tensor_type, name = "", max_objects = None))]
pub(crate) fn walk(
    root: &Bound<'_, PyAny>,
    tensor_type: &Bound<'_, PyType>,
    name: &str,
    max_objects: Option<usize>,
) -> PyResult<Walk> {
    let py = root.py();
    let _paused = raw::NoCollection::begin(py);
    let mut walker = Walker::new(tensor_type, max_objects)?;
    walker.run(root)?;
    let found = walker.finish(name)?;
    Ok(Walk {
        tensors: PyList::new(py, found.tensors)?.unbind(),
        aliases: found.aliases,
        opaque: PyList::new(py, found.opaque)?.unbind(),
        objects: found.objects,
        capped: found.capped,
    })
}
