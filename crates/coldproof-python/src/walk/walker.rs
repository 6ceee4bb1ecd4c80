//! The walk itself: two stacks of what is still to be entered, and what was found.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use super::kind::{Kind, Plan, Types};
use super::path::{Edge, Paths, Place};
use super::plans;
use super::raw::{self, DictPlace, Entries};

/// Neighbours in memory stay neighbours in the table, so that a walk over objects that were made
/// together stays in the cache; only the tag is spread. Only lookups: no order reaches an output.
#[derive(Default)]
struct Nearby(u64);

impl Hasher for Nearby {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        const TAG: u64 = 0x7f << 57;
        let tag = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15) & TAG;
        // Objects are aligned to 16 bytes.
        self.0 = tag | ((self.0 ^ value) >> 4) & !TAG;
    }

    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// Objects that a walk has room for at first.
const OBJECTS: usize = 8192;

type ByAddress<T> = HashMap<usize, T, BuildHasherDefault<Nearby>>;

/// What an object that was seen is.
#[derive(Clone, Copy, Debug)]
enum Seen {
    /// The tensor at this index.
    Tensor(u32),
    Other,
}

/// An object that was found and is still to be entered.
struct Pending<'py> {
    object: Bound<'py, PyAny>,
    plan: PlanId,
    place: Place,
    /// Whether its parameters, buffers and submodules are done.
    is_module_done: bool,
}

/// The plan of a type, in one walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlanId(usize);

impl PlanId {
    /// That of all plain values.
    const LEAF: Self = Self(usize::MAX);
}

/// A submodule that counts as found when its turn comes, so that paths are those that
/// `named_parameters` gives.
struct Submodule<'py> {
    object: Bound<'py, PyAny>,
    parent: Place,
    edge: Edge<'py>,
}

/// The three dictionaries of a module.
struct Registries<'py> {
    parameters: Bound<'py, PyDict>,
    buffers: Bound<'py, PyDict>,
    modules: Bound<'py, PyDict>,
}

/// A walk in progress.
pub(super) struct Walker<'py> {
    py: Python<'py>,
    tensor: Bound<'py, PyType>,
    /// Made for the first type that no walk has met.
    types: Option<Types<'py>>,
    plans: Vec<Arc<Plan>>,
    plan_of_type: ByAddress<PlanId>,
    seen: ByAddress<Seen>,
    /// What was seen is kept, so that no address is used again.
    kept: Vec<Bound<'py, PyAny>>,
    paths: Paths<'py>,
    tensors: Vec<(Place, Bound<'py, PyAny>)>,
    aliases: Vec<(Place, usize)>,
    opaque: Vec<(Place, Bound<'py, PyAny>)>,
    objects: usize,
    cap: usize,
    capped: bool,
    submodules: Vec<Submodule<'py>>,
    pending: VecDeque<Pending<'py>>,
    set_iter: Bound<'py, PyAny>,
    frozenset_iter: Bound<'py, PyAny>,
    deque_iter: Bound<'py, PyAny>,
    referents: Bound<'py, PyAny>,
}

/// What a walk found, in words.
pub(super) struct Found<'py> {
    pub(super) tensors: Vec<(String, Bound<'py, PyAny>)>,
    pub(super) aliases: Vec<(String, String)>,
    pub(super) opaque: Vec<(String, Bound<'py, PyAny>)>,
    pub(super) objects: usize,
    pub(super) capped: bool,
}

impl<'py> Walker<'py> {
    pub(super) fn new(tensor: &Bound<'py, PyType>, cap: Option<usize>) -> PyResult<Self> {
        let py = tensor.py();
        let builtins = py.import("builtins")?;
        let iterator = |class: Bound<'py, PyAny>| class.getattr("__iter__");
        Ok(Self {
            py,
            tensor: tensor.clone(),
            types: None,
            plans: Vec::new(),
            plan_of_type: ByAddress::default(),
            seen: ByAddress::with_capacity_and_hasher(OBJECTS, BuildHasherDefault::default()),
            kept: Vec::with_capacity(OBJECTS),
            paths: Paths::with_capacity(OBJECTS),
            tensors: Vec::new(),
            aliases: Vec::new(),
            opaque: Vec::new(),
            objects: 0,
            cap: cap.unwrap_or(usize::MAX),
            capped: false,
            submodules: Vec::new(),
            pending: VecDeque::new(),
            set_iter: iterator(builtins.getattr("set")?)?,
            frozenset_iter: iterator(builtins.getattr("frozenset")?)?,
            deque_iter: iterator(py.import("collections")?.getattr("deque")?)?,
            referents: py.import("gc")?.getattr("get_referents")?,
        })
    }

    pub(super) fn run(&mut self, root: &Bound<'py, PyAny>) -> PyResult<()> {
        self.visit(root.clone(), || (Paths::ROOT, Edge::Word("")))?;
        loop {
            if let Some(submodule) = self.submodules.pop() {
                let Submodule { object, parent, edge } = submodule;
                let pending = self.pending.len();
                self.visit(object, || (parent, edge))?;
                // Its own parameters come before anything else that is pending.
                if self.pending.len() > pending
                    && let Some(next) = self.pending.pop_back()
                {
                    self.enter(next)?;
                }
            } else if let Some(next) = self.pending.pop_front() {
                self.enter(next)?;
            } else {
                return Ok(());
            }
        }
    }

    pub(super) fn finish(self, name: &str) -> PyResult<Found<'py>> {
        let write = |place| self.paths.write(place, name);
        let named = |found: &[(Place, Bound<'py, PyAny>)]| {
            found.iter().map(|(place, object)| (write(*place), object.clone())).collect::<Vec<_>>()
        };
        let tensors = named(&self.tensors);
        let alias = |&(place, tensor): &(Place, usize)| (write(place), tensors[tensor].0.clone());
        Ok(Found {
            aliases: self.aliases.iter().map(alias).collect(),
            opaque: named(&self.opaque),
            objects: self.objects,
            capped: self.capped,
            tensors,
        })
    }

    /// The plan of an object's type.
    fn plan(&mut self, object: &Bound<'py, PyAny>) -> PyResult<PlanId> {
        match self.plan_of_type.entry(object.get_type_ptr() as usize) {
            Entry::Occupied(found) => Ok(*found.get()),
            Entry::Vacant(place) => {
                let class = object.get_type();
                let plan = match plans::known(&self.tensor, &class) {
                    Some(plan) => plan,
                    None => {
                        let types = match &mut self.types {
                            Some(types) => types,
                            none => none.insert(Types::new(&self.tensor)?),
                        };
                        let plan = Arc::new(types.plan(&class)?);
                        plans::keep(&self.tensor, &class, &plan)?;
                        plan
                    }
                };
                self.kept.push(class.into_any());
                if plan.is_leaf() {
                    return Ok(*place.insert(PlanId::LEAF));
                }
                self.plans.push(plan);
                Ok(*place.insert(PlanId(self.plans.len() - 1)))
            }
        }
    }

    /// Whether instances of the type at this address are known to hold nothing.
    fn is_leaf(&self, class: usize) -> bool {
        self.plan_of_type.get(&class).is_some_and(|plan| *plan == PlanId::LEAF)
    }

    /// Notes an object that was reached. `way` is only asked where the object is worth a path.
    fn visit(
        &mut self,
        object: Bound<'py, PyAny>,
        way: impl FnOnce() -> (Place, Edge<'py>),
    ) -> PyResult<()> {
        let id = self.plan(&object)?;
        let Some(plan) = self.plans.get(id.0) else { return Ok(()) };
        let is_tensor = plan.kind == Kind::Tensor;
        match self.seen.entry(object.as_ptr() as usize) {
            Entry::Occupied(seen) => {
                if let Seen::Tensor(index) = *seen.get() {
                    let (parent, edge) = way();
                    let place = self.paths.step(parent, edge);
                    self.aliases.push((place, index as usize));
                }
                return Ok(());
            }
            Entry::Vacant(_) if self.objects >= self.cap => {
                self.capped = true;
                return Ok(());
            }
            Entry::Vacant(unseen) if is_tensor => {
                // As many as places: see `Paths::step`.
                unseen.insert(Seen::Tensor(u32::try_from(self.tensors.len()).unwrap_or(u32::MAX)));
            }
            Entry::Vacant(unseen) => {
                unseen.insert(Seen::Other);
            }
        }
        self.objects += 1;
        let (parent, edge) = way();
        let place = self.paths.step(parent, edge);
        if is_tensor {
            self.tensors.push((place, object.clone()));
        }
        if plan.is_opaque {
            self.opaque.push((place, object.clone()));
        }
        // Most containers of a model are empty: they are done while they are at hand.
        if is_empty(&object, plan) {
            self.kept.push(object);
        } else {
            self.pending.push_back(Pending { object, plan: id, place, is_module_done: false });
        }
        Ok(())
    }

    /// Notes all that an object holds.
    fn enter(&mut self, next: Pending<'py>) -> PyResult<()> {
        let Some(plan) = self.plans.get(next.plan.0) else { return Ok(()) };
        let (kind, has_referents) = (plan.kind, plan.has_referents);
        let dict = plan.dict.get(&next.object).filter(|dict| !dict.is_empty());
        let with_slots = (!plan.slots.is_empty()).then(|| Arc::clone(plan));
        if let Some(dict) = &dict
            && !next.is_module_done
            && let Some(registries) = registries(dict)
        {
            self.enter_module(registries, next.place)?;
            self.pending.push_back(Pending { is_module_done: true, ..next });
            return Ok(());
        }
        let Pending { object, place, .. } = next;
        self.enter_kind(&object, kind, place)?;
        if let Some(dict) = dict {
            let mut entries = Entries::of(&dict);
            while let Some((_, name, value)) = entries.next(|class| self.is_leaf(class)) {
                self.visit(value, || (place, Edge::Attribute(name)))?;
            }
        }
        for (name, descriptor) in with_slots.iter().flat_map(|plan| &plan.slots) {
            let (name, descriptor) = (name.bind(self.py), descriptor.bind(self.py));
            let Some(value) = raw::slot(descriptor, &object) else { continue };
            self.visit(value, || match kind {
                Kind::Partial => (place, Edge::Inner("<partial>", name.clone())),
                _ => (place, Edge::Attribute(name.clone())),
            })?;
        }
        if has_referents {
            let found = self.referents.call1((&object,))?.cast_into::<PyList>()?;
            self.items(found.iter(), "<referent>", place)?;
        }
        self.kept.push(object);
        Ok(())
    }

    /// Parameters and buffers now, submodules next, so that the tree of modules names what it owns.
    fn enter_module(&mut self, own: Registries<'py>, place: Place) -> PyResult<()> {
        for registry in [own.parameters, own.buffers] {
            self.mark(registry.clone());
            let mut entries = Entries::of(&registry);
            while let Some((_, name, value)) = entries.next(|class| self.is_leaf(class)) {
                self.visit(value, || (place, Edge::Attribute(name)))?;
            }
        }
        self.mark(own.modules.clone());
        let first = self.submodules.len();
        let mut entries = Entries::of(&own.modules);
        while let Some((_, name, object)) = entries.next(|class| self.is_leaf(class)) {
            let edge = Edge::Attribute(name);
            self.submodules.push(Submodule { object, parent: place, edge });
        }
        self.submodules[first..].reverse();
        Ok(())
    }

    /// A registry of a module is not entered again as an object of its own.
    fn mark(&mut self, dict: Bound<'py, PyDict>) {
        self.seen.insert(dict.as_ptr() as usize, Seen::Other);
        self.kept.push(dict.into_any());
    }

    fn enter_kind(&mut self, object: &Bound<'py, PyAny>, kind: Kind, place: Place) -> PyResult<()> {
        match kind {
            Kind::Leaf | Kind::Never | Kind::Tensor | Kind::Object | Kind::Partial => Ok(()),
            Kind::Dict => self.enter_dict(object.cast::<PyDict>()?, place),
            Kind::List => {
                let list = object.cast::<PyList>()?;
                // A list may shrink meanwhile: each item is asked for.
                (0..list.len()).try_for_each(|index| match list.get_item(index) {
                    Ok(item) => self.visit(item, || (place, Edge::Index("", index))),
                    Err(_) => Ok(()),
                })
            }
            Kind::Tuple => self.items(object.cast::<PyTuple>()?.iter(), "", place),
            Kind::Set => {
                let is_set = object.is_instance_of::<pyo3::types::PySet>();
                let iter = if is_set { &self.set_iter } else { &self.frozenset_iter };
                let items = drain(&iter.call1((object,))?);
                self.items(items.into_iter(), "<set>", place)
            }
            Kind::Deque => {
                let items = drain(&self.deque_iter.call1((object,))?);
                self.items(items.into_iter(), "", place)
            }
            Kind::Proxy => {
                // Its mapping, which only the garbage collector gives without running its code.
                for mapping in self.referents.call1((object,))?.cast_into::<PyList>()?.iter() {
                    match mapping.cast::<PyDict>() {
                        Ok(dict) if self.seen.contains_key(&(dict.as_ptr() as usize)) => {}
                        Ok(dict) if dict.is_exact_instance_of::<PyDict>() => {
                            self.mark(dict.clone());
                            self.enter_dict(dict, place)?;
                        }
                        _ => self.visit(mapping, || (place, Edge::Word("<mapping>")))?,
                    }
                }
                Ok(())
            }
            Kind::Function => self.enter_function(object, place),
            Kind::Builtin => match raw::builtin_self(object) {
                Some(own) => self.visit(own, || (place, Edge::Word("__self__"))),
                None => Ok(()),
            },
            Kind::Cell => match object.getattr(intern!(self.py, "cell_contents")) {
                Ok(held) => self.visit(held, || (place, Edge::Word("<cell>"))),
                Err(_) => Ok(()),
            },
        }
    }

    fn enter_dict(&mut self, dict: &Bound<'py, PyDict>, place: Place) -> PyResult<()> {
        let mut entries = Entries::of(dict);
        while let Some((position, key, value)) = entries.next(|class| self.is_leaf(class)) {
            self.visit(key.clone(), || (place, Edge::Index("<keys>", position)))?;
            self.visit(value, || (place, Edge::Key(key, position)))?;
        }
        Ok(())
    }

    /// An exact function: its attributes are the interpreter's own.
    fn enter_function(&mut self, function: &Bound<'py, PyAny>, place: Place) -> PyResult<()> {
        let py = self.py;
        let closure = function.getattr(intern!(py, "__closure__"))?;
        if let Ok(cells) = closure.cast::<PyTuple>() {
            let names = function
                .getattr(intern!(py, "__code__"))?
                .getattr(intern!(py, "co_freevars"))?
                .cast_into::<PyTuple>()?;
            for (name, cell) in names.iter().zip(cells.iter()) {
                let Ok(held) = cell.getattr(intern!(py, "cell_contents")) else { continue };
                self.visit(held, || (place, Edge::Inner("<closure>", name.clone())))?;
            }
        }
        for (name, word) in [
            (intern!(py, "__defaults__"), "__defaults__"),
            (intern!(py, "__kwdefaults__"), "__kwdefaults__"),
        ] {
            let held = function.getattr(name)?;
            self.visit(held, || (place, Edge::Word(word)))?;
        }
        Ok(())
    }

    fn items(
        &mut self,
        items: impl Iterator<Item = Bound<'py, PyAny>>,
        word: &'static str,
        place: Place,
    ) -> PyResult<()> {
        for (index, item) in items.enumerate() {
            self.visit(item, || (place, Edge::Index(word, index)))?;
        }
        Ok(())
    }
}

/// The dictionaries of a module, known by their names.
fn registries<'py>(dict: &Bound<'py, PyDict>) -> Option<Registries<'py>> {
    if dict.len() < 3 {
        return None;
    }
    let py = dict.py();
    let registry = |name| dict.get_item(name).ok()??.cast_into::<PyDict>().ok();
    Some(Registries {
        modules: registry(intern!(py, "_modules"))?,
        parameters: registry(intern!(py, "_parameters"))?,
        buffers: registry(intern!(py, "_buffers"))?,
    })
}

/// Whether a list or dictionary has nothing in it and nothing hung on it.
fn is_empty(object: &Bound<'_, PyAny>, plan: &Plan) -> bool {
    let is_empty = match plan.kind {
        Kind::Dict => object.cast::<PyDict>().is_ok_and(|dict| dict.is_empty()),
        Kind::List => object.cast::<PyList>().is_ok_and(|list| list.is_empty()),
        _ => false,
    };
    let is_bare = plan.dict != DictPlace::Managed && plan.dict.get(object).is_none();
    is_empty && plan.slots.is_empty() && is_bare
}

/// What an iterator of the interpreter's own gives, up to where the container was changed.
fn drain<'py>(iterator: &Bound<'py, PyAny>) -> Vec<Bound<'py, PyAny>> {
    iterator.try_iter().map(|items| items.map_while(Result::ok).collect()).unwrap_or_default()
}
