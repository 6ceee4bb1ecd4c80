//! The few calls of the C API that look into an object without running any of its code.
#![expect(unsafe_code, reason = "these calls have no safe form")]

use std::ptr;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use pyo3::{Borrowed, ffi};

/// Whether `class` is `base` or derives from it, by the method resolution order alone.
pub(super) fn is_subtype(class: &Bound<'_, PyType>, base: &Bound<'_, PyType>) -> bool {
    // SAFETY: both are live types.
    unsafe { ffi::PyType_IsSubtype(class.as_type_ptr(), base.as_type_ptr()) != 0 }
}

/// Whether instances take part in garbage collection: their references can be asked for.
pub(super) fn is_collected(class: &Bound<'_, PyType>) -> bool {
    // SAFETY: a live type.
    unsafe { ffi::PyType_GetFlags(class.as_type_ptr()) & ffi::Py_TPFLAGS_HAVE_GC != 0 }
}

/// Where the instances of a type have their `__dict__`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DictPlace {
    /// Nowhere.
    None,
    /// So many bytes from the object's start; null until it is needed.
    Offset(usize),
    /// Where the interpreter knows. Asking makes one where there was none.
    Managed,
}

impl DictPlace {
    /// What a type's `__dictoffset__` says.
    pub(super) fn of(offset: i64) -> Self {
        match usize::try_from(offset) {
            Ok(0) => Self::None,
            Ok(offset) => Self::Offset(offset),
            Err(_) => Self::Managed,
        }
    }

    /// The `__dict__` of an instance, never through a property.
    pub(super) fn get<'py>(self, object: &Bound<'py, PyAny>) -> Option<Bound<'py, PyDict>> {
        let py = object.py();
        // SAFETY: a live object. A positive `tp_dictoffset` is the place of a pointer to an object
        // or null within every instance; the call gives a new reference or null with an exception
        // set.
        let found = unsafe {
            match self {
                Self::None => return None,
                Self::Offset(offset) => {
                    let place = object.as_ptr().byte_add(offset).cast::<*mut ffi::PyObject>();
                    return Bound::from_borrowed_ptr_or_opt(py, *place)?.cast_into().ok();
                }
                Self::Managed => {
                    let found = ffi::PyObject_GenericGetDict(object.as_ptr(), ptr::null_mut());
                    Bound::from_owned_ptr_or_opt(py, found)
                }
            }
        };
        if found.is_none() {
            // The type has no place for one after all.
            drop(PyErr::take(py));
        }
        found?.cast_into().ok()
    }
}

/// The entries of a dictionary's own table, whatever its class overrides. One that is changed
/// meanwhile gives some of its entries.
pub(super) struct Entries<'a, 'py> {
    dict: &'a Bound<'py, PyDict>,
    position: ffi::Py_ssize_t,
    count: usize,
}

impl<'a, 'py> Entries<'a, 'py> {
    pub(super) const fn of(dict: &'a Bound<'py, PyDict>) -> Self {
        Self { dict, position: 0, count: 0 }
    }

    /// Number, key and value of the next entry that holds anything. `is_leaf` says of the address
    /// of a type whether its instances are plain values, and runs nothing of the interpreter's.
    pub(super) fn next(
        &mut self,
        is_leaf: impl Fn(usize) -> bool,
    ) -> Option<(usize, Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let py = self.dict.py();
        loop {
            let (mut key, mut value) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: a live dictionary, a position that only this call writes, and places for two
            // borrowed references. They are looked at and made strong before anything else can run.
            unsafe {
                let dict = self.dict.as_ptr();
                if ffi::PyDict_Next(dict, &raw mut self.position, &mut key, &mut value) == 0 {
                    return None;
                }
                self.count += 1;
                if [key, value].into_iter().any(|held| !is_leaf(ffi::Py_TYPE(held) as usize)) {
                    let strong = |held| Bound::from_borrowed_ptr(py, held);
                    return Some((self.count - 1, strong(key), strong(value)));
                }
            }
        }
    }
}

/// The value of a slot of an instance, if it is set. `descriptor` is one of the class's own
/// (`types.MemberDescriptorType`): reading it copies a pointer.
pub(super) fn slot<'py>(
    descriptor: &Bound<'py, PyAny>,
    object: &Bound<'py, PyAny>,
) -> Option<Bound<'py, PyAny>> {
    let py = object.py();
    // SAFETY: `PyMemberDescr_Type` is a static type with this slot, whose function takes the
    // descriptor, the instance and its type; the descriptor's type was checked when it was
    // collected. The result is a new reference or null with an exception set.
    let found = unsafe {
        debug_assert!(ptr::eq(descriptor.get_type_ptr(), &raw mut ffi::PyMemberDescr_Type));
        let get = ffi::PyType_GetSlot(&raw mut ffi::PyMemberDescr_Type, ffi::Py_tp_descr_get);
        if get.is_null() {
            return None;
        }
        let get: ffi::descrgetfunc = std::mem::transmute(get);
        let found = get(descriptor.as_ptr(), object.as_ptr(), object.get_type_ptr().cast());
        Bound::from_owned_ptr_or_opt(py, found)
    };
    if found.is_none() {
        // The slot is not set.
        drop(PyErr::take(py));
    }
    found
}

/// What a function of an extension was bound to.
pub(super) fn builtin_self<'a, 'py>(function: &'a Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
    // SAFETY: an instance of `PyCFunction_Type`, as its kind says; the result is borrowed from the
    // function and may be null.
    unsafe {
        let found = ffi::PyCFunction_GetSelf(function.as_ptr());
        Borrowed::<'a, 'py, PyAny>::from_ptr_or_opt(function.py(), found)
            .map(|borrowed| borrowed.to_owned())
    }
}

/// Whether a descriptor is a slot of a class.
pub(super) fn is_slot(descriptor: &Bound<'_, PyAny>) -> bool {
    ptr::eq(descriptor.get_type_ptr(), &raw mut ffi::PyMemberDescr_Type)
}

/// The type of functions of extensions.
pub(super) fn builtin_type(py: Python<'_>) -> Bound<'_, PyType> {
    // SAFETY: a static type of the interpreter.
    unsafe { PyType::from_borrowed_type_ptr(py, &raw mut ffi::PyCFunction_Type) }
}

/// No garbage is collected while it lives: no finaliser runs in the middle of a walk.
pub(super) struct NoCollection {
    was_enabled: bool,
}

impl NoCollection {
    pub(super) fn begin(_: Python<'_>) -> Self {
        // SAFETY: the interpreter is attached.
        Self { was_enabled: unsafe { ffi::PyGC_Disable() != 0 } }
    }
}

impl Drop for NoCollection {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: it was begun with the interpreter attached, and a walk does not detach.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
