//! What can be done with the instances of a type, found out once a type.

use pyo3::prelude::*;
use pyo3::types::{
    PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyMappingProxy, PyModule, PySet,
    PyString, PyTuple, PyType,
};

use super::raw::{self, DictPlace};

/// How an instance is entered, besides its `__dict__` and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A plain value: it holds nothing.
    Leaf,
    /// Not entered by rule, nor is what derives from it.
    Never,
    Tensor,
    Dict,
    List,
    Tuple,
    /// A set or frozenset.
    Set,
    Deque,
    /// `types.MappingProxyType`.
    Proxy,
    Partial,
    Function,
    /// A function of an extension.
    Builtin,
    Cell,
    Object,
}

/// What is to be done with the instances of one type.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    /// Where instances have their `__dict__`.
    pub(super) dict: DictPlace,
    /// Slots of all classes: name and descriptor.
    pub(super) slots: Vec<Slot>,
    /// Whether there is something inside that cannot be entered.
    pub(super) is_opaque: bool,
    /// Whether what an instance refers to is asked of the garbage collector.
    pub(super) has_referents: bool,
}

/// The name and the descriptor of a slot.
pub(super) type Slot = (Py<PyAny>, Py<PyAny>);

impl Plan {
    const LEAF: Self = Self {
        kind: Kind::Leaf,
        dict: DictPlace::None,
        slots: Vec::new(),
        is_opaque: false,
        has_referents: false,
    };

    /// Whether there is nothing to do.
    pub(super) fn is_leaf(&self) -> bool {
        self.kind == Kind::Leaf
    }
}

/// Types that are named without their module's being imported: plain values of extensions. A module
/// alone stands for all its types.
const PLAIN: [(&str, &[&str]); 12] = [
    ("torch", &["dtype", "device", "layout", "memory_format", "qscheme", "finfo", "iinfo"]),
    ("numpy", &["generic", "dtype"]),
    ("numpy.dtypes", &[]),
    ("re", &[]),
    ("_io", &[]),
    ("_thread", &["lock", "RLock"]),
    ("datetime", &[]),
    ("decimal", &[]),
    ("_struct", &[]),
    ("_random", &[]),
    ("_ctypes", &["PyCFuncPtr"]),
    ("_contextvars", &["ContextVar"]),
];

/// Modules of the interpreter whose objects show all they refer to.
const OPEN: [&str; 8] = [
    "builtins",
    "types",
    "functools",
    "_functools",
    "itertools",
    "operator",
    "_operator",
    "collections",
];

/// Types of `OPEN` modules that run code, or refer to all there is.
const SHUT: [&str; 6] =
    ["frame", "generator", "coroutine", "async_generator", "traceback", "BaseException"];

/// Slots that are no attribute of their own: the `__dict__`, and where in an instance things lie.
const LAYOUT: [&str; 4] =
    ["__dict__", "__dictoffset__", "__weaklistoffset__", "__vectorcalloffset__"];

/// Types, and how to ask a type about itself without asking its metaclass.
pub(super) struct Types<'py> {
    tensor: Bound<'py, PyType>,
    known: Vec<(Bound<'py, PyType>, Kind)>,
    object: Bound<'py, PyType>,
    mro: Bound<'py, PyAny>,
    own: Bound<'py, PyAny>,
    name: Bound<'py, PyAny>,
    module: Bound<'py, PyAny>,
    size: Bound<'py, PyAny>,
    dict_offset: Bound<'py, PyAny>,
    weak_offset: Bound<'py, PyAny>,
}

impl<'py> Types<'py> {
    pub(super) fn new(tensor: &Bound<'py, PyType>) -> PyResult<Self> {
        let py = tensor.py();
        let class = |module: &str, name: &str| -> PyResult<Bound<'py, PyType>> {
            Ok(py.import(module)?.getattr(name)?.cast_into()?)
        };
        let mut known = vec![
            (tensor.clone(), Kind::Tensor),
            (py.get_type::<PyDict>(), Kind::Dict),
            (py.get_type::<PyList>(), Kind::List),
            (py.get_type::<PyTuple>(), Kind::Tuple),
            (py.get_type::<PySet>(), Kind::Set),
            (py.get_type::<PyFrozenSet>(), Kind::Set),
            (class("collections", "deque")?, Kind::Deque),
            (py.get_type::<PyMappingProxy>(), Kind::Proxy),
            (class("functools", "partial")?, Kind::Partial),
            (class("types", "FunctionType")?, Kind::Function),
            (raw::builtin_type(py), Kind::Builtin),
            (class("types", "CellType")?, Kind::Cell),
            (py.get_type::<PyType>(), Kind::Never),
            (py.get_type::<PyModule>(), Kind::Never),
            (py.get_type::<PyInt>(), Kind::Leaf),
            (py.get_type::<PyFloat>(), Kind::Leaf),
            (py.get_type::<PyString>(), Kind::Leaf),
            (py.get_type::<PyBytes>(), Kind::Leaf),
        ];
        for name in ["bytearray", "complex", "range", "slice"] {
            known.push((class("builtins", name)?, Kind::Leaf));
        }
        for name in [
            "CodeType",
            "MethodDescriptorType",
            "WrapperDescriptorType",
            "GetSetDescriptorType",
            "MemberDescriptorType",
            "ClassMethodDescriptorType",
        ] {
            known.push((class("types", name)?, Kind::Leaf));
        }
        for name in ["ReferenceType", "ProxyType", "CallableProxyType"] {
            known.push((class("weakref", name)?, Kind::Never));
        }
        let of_type = py.get_type::<PyType>().getattr("__dict__")?;
        Ok(Self {
            tensor: tensor.clone(),
            known,
            object: py.get_type::<PyAny>(),
            mro: of_type.get_item("__mro__")?,
            own: of_type.get_item("__dict__")?,
            name: of_type.get_item("__name__")?,
            module: of_type.get_item("__module__")?,
            size: of_type.get_item("__basicsize__")?,
            dict_offset: of_type.get_item("__dictoffset__")?,
            weak_offset: of_type.get_item("__weakrefoffset__")?,
        })
    }

    /// What to do with the instances of a type.
    pub(super) fn plan(&self, class: &Bound<'py, PyType>) -> PyResult<Plan> {
        let known = self.known.iter().find(|(base, _)| raw::is_subtype(class, base));
        let kind = known.map_or(Kind::Object, |(_, kind)| *kind);
        let is_exact = known.is_some_and(|(base, _)| base.is(class));
        let is_whole = kind == Kind::Never || (kind == Kind::Leaf && is_exact);
        if is_whole || self.is_plain(class)? {
            return Ok(Plan::LEAF);
        }
        let dict = DictPlace::of(number(&self.dict_offset, class)?);
        let has_dict = dict != DictPlace::None;
        if self.is_shut(class)? {
            return Ok(Plan { kind: Kind::Object, dict, is_opaque: true, ..Plan::LEAF });
        }
        let base = known.filter(|_| kind != Kind::Partial).map(|(base, _)| base);
        let slots = if kind == Kind::Function { vec![] } else { self.slots(class, base)? };
        let mut plan = Plan { kind, dict, slots, ..Plan::LEAF };
        match kind {
            Kind::Object => {
                let is_hidden = self.has_hidden_state(class)?;
                let is_open = is_hidden && self.is_open(class)?;
                plan.is_opaque = is_hidden && !is_open;
                plan.has_referents = is_hidden && plan.slots.is_empty() && raw::is_collected(class);
                if !has_dict && !plan.is_opaque && !plan.has_referents && plan.slots.is_empty() {
                    plan.kind = Kind::Leaf;
                }
            }
            // A number or text with something hung on it.
            Kind::Leaf if has_dict || !plan.slots.is_empty() => plan.kind = Kind::Object,
            _ => {}
        }
        Ok(plan)
    }

    fn mro(&self, class: &Bound<'py, PyType>) -> PyResult<Vec<Bound<'py, PyType>>> {
        let mro = get(&self.mro, class)?.cast_into::<PyTuple>()?;
        mro.iter().map(|base| Ok(base.cast_into()?)).collect()
    }

    fn full_name(&self, class: &Bound<'py, PyType>) -> (String, String) {
        let text = |descriptor| get(descriptor, class)?.extract::<String>();
        (text(&self.module).unwrap_or_default(), text(&self.name).unwrap_or_default())
    }

    fn is_plain(&self, class: &Bound<'py, PyType>) -> PyResult<bool> {
        if raw::is_subtype(class, &self.tensor) {
            return Ok(false);
        }
        let own = number(&self.dict_offset, class)? != 0;
        let is_named = |base: &Bound<'py, PyType>| {
            let (module, name) = self.full_name(base);
            let entry = PLAIN.iter().find(|(plain, _)| *plain == module);
            entry.is_some_and(|(_, names)| names.is_empty() || names.contains(&name.as_str()))
        };
        Ok(!own && self.mro(class)?.iter().any(is_named))
    }

    /// Whether nothing of its instances is entered but their `__dict__`.
    fn is_shut(&self, class: &Bound<'py, PyType>) -> PyResult<bool> {
        let is_shut = |base: &Bound<'py, PyType>| {
            let (module, name) = self.full_name(base);
            module == "builtins" && SHUT.contains(&name.as_str())
        };
        Ok(self.mro(class)?.iter().any(is_shut))
    }

    /// Slots of the classes that come before `base`, most derived first.
    fn slots(
        &self,
        class: &Bound<'py, PyType>,
        base: Option<&Bound<'py, PyType>>,
    ) -> PyResult<Vec<Slot>> {
        let mut slots = Vec::new();
        for class in self.mro(class)? {
            let is_inherited = base.is_some_and(|base| raw::is_subtype(base, &class));
            if is_inherited || class.is(&self.object) {
                continue;
            }
            for entry in get(&self.own, &class)?.call_method0("items")?.try_iter()? {
                let (name, value): (Bound<'py, PyAny>, Bound<'py, PyAny>) = entry?.extract()?;
                let is_layout = name.extract::<&str>().is_ok_and(|name| LAYOUT.contains(&name));
                if raw::is_slot(&value) && !is_layout {
                    slots.push((name.unbind(), value.unbind()));
                }
            }
        }
        Ok(slots)
    }

    /// Whether an instance is larger than what the slots of Python classes, `__dict__` and weak
    /// references take. What a class of an extension shows of itself may not be all of it.
    fn has_hidden_state(&self, class: &Bound<'py, PyType>) -> PyResult<bool> {
        const WORD: i64 = size_of::<usize>() as i64;
        let mut shown = number(&self.size, &self.object)?;
        for class in self.mro(class)? {
            let own = get(&self.own, &class)?;
            if own.contains("__slots__")? {
                for value in own.call_method0("values")?.try_iter()? {
                    shown += if raw::is_slot(&value?) { WORD } else { 0 };
                }
            }
        }
        for offset in [&self.dict_offset, &self.weak_offset] {
            shown += if number(offset, class)? > 0 { WORD } else { 0 };
        }
        Ok(number(&self.size, class)? > shown)
    }

    /// Whether everything inside belongs to the interpreter.
    fn is_open(&self, class: &Bound<'py, PyType>) -> PyResult<bool> {
        // The first class that is no Python class brings the hidden part in; its module tells.
        let size = number(&self.size, class)?;
        for base in self.mro(class)?.iter().rev() {
            if number(&self.size, base)? > number(&self.size, &self.object)? || size == 0 {
                return Ok(OPEN.contains(&self.full_name(base).0.as_str()));
            }
        }
        Ok(false)
    }
}

/// What a descriptor of `type` says of a class.
fn get<'py>(
    descriptor: &Bound<'py, PyAny>,
    class: &Bound<'py, PyType>,
) -> PyResult<Bound<'py, PyAny>> {
    descriptor.call_method1("__get__", (class,))
}

fn number(descriptor: &Bound<'_, PyAny>, class: &Bound<'_, PyType>) -> PyResult<i64> {
    get(descriptor, class)?.extract()
}
