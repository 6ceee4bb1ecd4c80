//! Paths of what a walk found, kept as steps and written only where they are asked for.

use std::fmt::Write as _;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple};

/// A place in the tree of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

/// How an object was reached from another.
#[derive(Clone, Debug)]
pub(super) enum Edge<'py> {
    /// `.name`
    Attribute(Bound<'py, PyAny>),
    /// `.<word>.name`
    Inner(&'static str, Bound<'py, PyAny>),
    /// `.word`; nothing where it is empty.
    Word(&'static str),
    /// `.word[3]`, or `[3]`.
    Index(&'static str, usize),
    /// `['k']`: the key, and the position of its entry.
    Key(Bound<'py, PyAny>, usize),
}

#[derive(Debug)]
struct Step<'py> {
    parent: Place,
    edge: Edge<'py>,
}

/// The tree of steps.
#[derive(Debug)]
pub(super) struct Paths<'py>(Vec<Step<'py>>);

impl<'py> Paths<'py> {
    /// Where a walk begins.
    pub(super) const ROOT: Place = Place(u32::MAX);

    /// No steps yet, and room for some.
    pub(super) fn with_capacity(steps: usize) -> Self {
        Self(Vec::with_capacity(steps))
    }

    /// The place that `edge` leads to.
    pub(super) fn step(&mut self, parent: Place, edge: Edge<'py>) -> Place {
        // Four billion steps need more memory than there is; the last place then stands for all.
        let place = Place(u32::try_from(self.0.len()).unwrap_or(u32::MAX - 1));
        self.0.push(Step { parent, edge });
        place
    }

    /// A path in words, beginning with `name`.
    pub(super) fn write(&self, place: Place, name: &str) -> String {
        let mut steps = Vec::new();
        let mut at = place;
        while let Some(step) = self.0.get(at.0 as usize) {
            steps.push(&step.edge);
            at = step.parent;
        }
        let mut path = name.to_owned();
        for edge in steps.into_iter().rev() {
            edge.write(&mut path);
        }
        path
    }
}

impl Edge<'_> {
    fn write(&self, path: &mut String) {
        match self {
            Self::Attribute(name) => attribute(path, name),
            Self::Inner(kind, name) => {
                word(path, kind);
                attribute(path, name);
            }
            Self::Word(name) => word(path, name),
            Self::Index(name, index) => {
                word(path, name);
                push(path, format_args!("[{index}]"));
            }
            Self::Key(key, position) => match plain(key) {
                Some(key) => push(path, format_args!("[{key}]")),
                None => push(path, format_args!("[<key {position}>]")),
            },
        }
    }
}

fn attribute(path: &mut String, name: &Bound<'_, PyAny>) {
    match name.cast::<PyString>() {
        Ok(name) => word(path, &name.to_string_lossy()),
        Err(_) => word(path, "<attribute>"),
    }
}

fn word(path: &mut String, name: &str) {
    if name.is_empty() {
        return;
    }
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

fn push(path: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = path.write_fmt(text);
}

/// How a key is written whose `repr` is the interpreter's own.
fn plain(key: &Bound<'_, PyAny>) -> Option<String> {
    let is_plain = |key: &Bound<'_, PyAny>| {
        key.is_none()
            || key.is_exact_instance_of::<PyString>()
            || key.is_exact_instance_of::<PyInt>()
            || key.is_exact_instance_of::<PyFloat>()
            || key.is_exact_instance_of::<PyBytes>()
            || key.is_exact_instance_of::<PyBool>()
    };
    let is_written = is_plain(key)
        || key.cast_exact::<PyTuple>().is_ok_and(|items| items.iter().all(|item| is_plain(&item)));
    if !is_written {
        return None;
    }
    key.repr().ok().map(|text| text.to_string())
}
