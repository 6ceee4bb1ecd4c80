//! Plans of types, kept from walk to walk. A type has the plan of when it was first met: what its
//! instances are made of is settled when it is made, but for a later change of its bases or module.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyType, PyWeakrefReference};

use super::kind::Plan;

/// Plans by the address of their type, for one type of tensors. The types are held weakly: an
/// address may be used again.
struct Kept {
    tensor: Py<PyWeakrefReference>,
    plans: HashMap<usize, (Py<PyWeakrefReference>, Arc<Plan>)>,
}

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

fn is_of(reference: &Py<PyWeakrefReference>, class: &Bound<'_, PyType>) -> bool {
    reference.bind(class.py()).upgrade().is_some_and(|found| found.is(class))
}

/// The plan of a type that a walk over such tensors has met.
pub(super) fn known(tensor: &Bound<'_, PyType>, class: &Bound<'_, PyType>) -> Option<Arc<Plan>> {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.as_ref().filter(|kept| is_of(&kept.tensor, tensor))?;
    let (reference, plan) = kept.plans.get(&(class.as_ptr() as usize))?;
    is_of(reference, class).then(|| Arc::clone(plan))
}

/// Keeps the plan of a type, unless it has slots: their descriptors would keep the type itself.
///
/// # Errors
/// The interpreter has no memory for a weak reference.
pub(super) fn keep(
    tensor: &Bound<'_, PyType>,
    class: &Bound<'_, PyType>,
    plan: &Arc<Plan>,
) -> PyResult<()> {
    if !plan.slots.is_empty() {
        return Ok(());
    }
    let reference = |class: &Bound<'_, PyType>| PyWeakrefReference::new(class).map(Bound::unbind);
    let own = (reference(class)?, Arc::clone(plan));
    let of_tensor = reference(tensor)?;
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = match &mut *kept {
        Some(kept) if is_of(&kept.tensor, tensor) => kept,
        other => other.insert(Kept { tensor: of_tensor, plans: HashMap::new() }),
    };
    if kept.plans.len() == kept.plans.capacity() {
        // Types that are gone make room before more is taken.
        kept.plans.retain(|_, (reference, _)| reference.bind(class.py()).upgrade().is_some());
    }
    kept.plans.insert(class.as_ptr() as usize, own);
    Ok(())
}
