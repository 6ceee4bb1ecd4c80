//! The two sides of a copy.

use cudarc::driver::sys;

use super::arguments::Read;
use crate::census::Argument;

/// `CU_MEMORYTYPE_ARRAY`.
const ARRAY: u32 = 3;

/// Where one side begins, as the fields of `CUDA_MEMCPY3D` say it.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    /// The number of its `CUmemorytype`.
    kind: u32,
    device: u64,
    host: u64,
    /// Bytes, rows and slices before it.
    x: usize,
    y: usize,
    z: usize,
    /// Bytes of a row, and rows of a slice.
    pitch: usize,
    height: usize,
}

impl Side {
    /// Its first byte; nothing where it has no address, as an array has none.
    fn address(self) -> Option<u64> {
        // A side of the host, or of unified memory, stands in the other field.
        let base = if self.device == 0 { self.host } else { self.device };
        let rows = self.z.wrapping_mul(self.height).wrapping_add(self.y);
        let before = rows.wrapping_mul(self.pitch).wrapping_add(self.x);
        (self.kind != ARRAY && base != 0).then(|| base.wrapping_add(before as u64))
    }
}

/// The addresses of both sides: where it writes, then where it reads.
///
/// # Safety
/// The struct is initialised, though an enumeration in it may hold what has no name here.
pub(super) unsafe fn sides(params: *const sys::CUDA_MEMCPY3D) -> Read {
    // SAFETY: numbers and pointers of a struct that is initialised; enumerations of 32 bits are
    // taken as numbers.
    let sides = unsafe {
        [
            Side {
                kind: (&raw const (*params).dstMemoryType).cast::<u32>().read(),
                device: (*params).dstDevice,
                host: (*params).dstHost as u64,
                x: (*params).dstXInBytes,
                y: (*params).dstY,
                z: (*params).dstZ,
                pitch: (*params).dstPitch,
                height: (*params).dstHeight,
            },
            Side {
                kind: (&raw const (*params).srcMemoryType).cast::<u32>().read(),
                device: (*params).srcDevice,
                host: (*params).srcHost as u64,
                x: (*params).srcXInBytes,
                y: (*params).srcY,
                z: (*params).srcZ,
                pitch: (*params).srcPitch,
                height: (*params).srcHeight,
            },
        ]
    };
    read(sides)
}

fn read(sides: [Side; 2]) -> Read {
    let mut read = Read::default();
    for (side, index) in sides.into_iter().zip(0..) {
        match side.address() {
            Some(address) => read.arguments.push(Argument::pointer(index, address)),
            None => {
                read.unread = Some("a side of the copy is an array, without address".to_owned())
            }
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Side =
        Side { kind: 2, device: 0x7f00_0000_0000, host: 0, x: 8, y: 1, z: 2, pitch: 64, height: 4 };

    #[test]
    fn a_side_begins_behind_its_slices_rows_and_bytes() {
        assert_eq!(DEVICE.address(), Some(0x7f00_0000_0000 + (2 * 4 + 1) * 64 + 8));
        let host = Side { kind: 1, device: 0, host: 0x1000, ..Side::default() };
        assert_eq!(host.address(), Some(0x1000));
        assert_eq!(Side::default().address(), None);
    }

    #[test]
    fn a_copy_with_an_array_is_not_all_read() {
        let flat = Side { x: 0, y: 0, z: 0, ..DEVICE };
        let both = read([DEVICE, flat]);
        assert_eq!(both.arguments[1], Argument::pointer(1, 0x7f00_0000_0000));
        assert_eq!((both.arguments.len(), both.unread), (2, None));
        let array = read([DEVICE, Side { kind: ARRAY, ..flat }]);
        assert_eq!(array.arguments, [both.arguments[0].clone()]);
        assert!(array.unread.is_some());
    }
}
