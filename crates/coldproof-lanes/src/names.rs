//! The names lane: the same content under every spelling that the family has (R34, R64).

use coldproof_contract::evidence::LaneName;

use crate::census::capture;
use crate::lane::Lane;
use crate::session::{Order, load, look, update};

/// P>B under the usual names, then under each other spelling, from a fresh P each time: P differs
/// from B in every element, so that a name that leads nowhere leaves bytes that are wrong.
pub(crate) fn run(lane: &mut Lane<'_, '_>) {
    let usual = std::iter::once(("names", None));
    let other = lane.inputs.spellings.iter().map(|delivery| ("names", Some(delivery.clone())));
    let arms: Vec<_> = usual.chain(other).collect();
    for (index, (stem, spelling)) in arms.into_iter().enumerate() {
        let arm = if index == 0 { stem.to_owned() } else { format!("{stem}-{index}") };
        let header = lane.against_cold(&arm, LaneName::Names);
        lane.arm(header, |inputs, driver| {
            load(driver, &inputs.changed)?;
            capture(driver)?;
            look(driver, inputs, inputs.topology)?;
            let delivery = spelling.as_ref().unwrap_or(&inputs.to);
            update(driver, &inputs.changed.label, delivery, None, Order::File)?;
            look(driver, inputs, inputs.topology)?;
            Ok(())
        });
    }
}
