//! Whether the tensors of a table lie on the device: a kernel that reads what is not there ends the
//! context.

use coldproof_contract::words::{Address, ByteRange};
use cudarc::driver::sys::CUpointer_attribute_enum as Attribute;

use super::driver::Cuda;
use crate::census::PAGE;
use crate::digest::{Span, Table};
use crate::{Device as _, DeviceError};

/// Refuses a table with a tensor of which a part does not lie on the device.
pub(super) fn check(cuda: &Cuda, table: &Table) -> Result<(), DeviceError> {
    check_by(|at| extent(cuda, at), table.spans())
}

/// Walks each tensor from one piece of memory to the next. `extent` gives the piece that holds an
/// address, and nothing where none does.
fn check_by(
    mut extent: impl FnMut(Address) -> Option<ByteRange>,
    spans: &[Span],
) -> Result<(), DeviceError> {
    // Tensors that follow one another often share a piece.
    let mut last: Option<ByteRange> = None;
    for span in spans {
        let (mut at, end) = (span.address, span.address.0.saturating_add(span.bytes));
        while at.0 < end {
            last = last.filter(|piece| piece.contains(at)).or_else(|| extent(at));
            let Some(piece) = last.filter(|piece| piece.contains(at)) else {
                let (name, address, bytes) = (span.name.clone(), span.address, span.bytes);
                return Err(DeviceError::NotOnDevice { name, address, bytes });
            };
            at = Address(piece.address.0.saturating_add(piece.bytes));
        }
    }
    Ok(())
}

/// The piece of memory of this device that holds an address. The driver's range may be a whole
/// reservation with holes in it, of which one mapping counts; where it tells none, one page does.
fn extent(cuda: &Cuda, at: Address) -> Option<ByteRange> {
    let whole = cuda.allocation(at)?;
    let of = |which| cuda.attribute_of(which, at);
    // The ordinal is a signed number of 32 bits, negative where the driver cannot tell.
    let ordinal = of(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL).map(|word| word as u32 as i32);
    if ordinal.is_some_and(|ordinal| ordinal >= 0 && ordinal != cuda.ordinal()) {
        return None;
    }
    let mapping = of(Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR)
        .zip(of(Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE))
        .map(|(start, bytes)| ByteRange { address: Address(start), bytes });
    Some(piece(at, whole, mapping))
}

/// The part of a range that one mapping, or one page, backs around an address.
fn piece(at: Address, whole: ByteRange, mapping: Option<ByteRange>) -> ByteRange {
    let page = ByteRange { address: Address(at.0 - at.0 % PAGE), bytes: PAGE };
    let backed = mapping.filter(|mapping| mapping.contains(at)).unwrap_or(page);
    let end = |range: ByteRange| range.address.0.saturating_add(range.bytes);
    let start = whole.address.max(backed.address);
    ByteRange { address: start, bytes: end(whole).min(end(backed)) - start.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x7f00_0000_0000;

    fn range(start: u64, bytes: u64) -> ByteRange {
        ByteRange { address: Address(BASE + start), bytes }
    }

    fn is_there(pieces: &[ByteRange], start: u64, bytes: u64) -> bool {
        let extent = |at| pieces.iter().copied().find(|piece| piece.contains(at));
        let span = Span { name: "w".to_owned(), address: Address(BASE + start), bytes };
        check_by(extent, &[span]).is_ok()
    }

    #[test]
    fn a_tensor_may_span_mappings_that_adjoin_and_no_hole() {
        let adjoining = [range(0, 64), range(64, 64), range(128, 64)];
        assert!(is_there(&adjoining, 32, 160));
        assert!(is_there(&adjoining, 64, 64));
        assert!(!is_there(&adjoining, 32, 161));
        // Both ends are there.
        let holed = [range(0, 64), range(128, 64)];
        assert!(!is_there(&holed, 32, 160));
        assert!(is_there(&holed, 128, 64));
        assert!(is_there(&[], 0, 0));
    }

    #[test]
    fn the_refusal_names_the_tensor() {
        let span = Span { name: "w".to_owned(), address: Address(BASE), bytes: 8 };
        let error = check_by(|_| None, &[span]).unwrap_err().to_string();
        assert!(error.starts_with("8 bytes at 0x7f0000000000 of `w` are not memory"), "{error}");
    }

    #[test]
    fn a_reservation_counts_by_the_mapping_or_the_page() {
        let whole = range(0, 4 * PAGE);
        let at = Address(BASE + PAGE + 5);
        assert_eq!(piece(at, whole, Some(range(0, 3 * PAGE))), range(0, 3 * PAGE));
        assert_eq!(piece(at, whole, None), range(PAGE, PAGE));
        assert_eq!(piece(at, whole, Some(range(0, PAGE))), range(PAGE, PAGE));
        // A block within a larger mapping ends where it does.
        let block = range(PAGE, 512);
        assert_eq!(piece(at, block, Some(range(0, 3 * PAGE))), block);
    }
}
