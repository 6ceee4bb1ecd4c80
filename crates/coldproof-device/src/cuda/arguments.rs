//! The arguments of a kernel's node, from either form in which a node holds them.

use std::ffi::c_void;
use std::ptr;

use crate::census::Argument;

/// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER` and `_BUFFER_SIZE`: the tags of `extra`.
const EXTRA_END: usize = 0;
const EXTRA_POINTER: usize = 1;
const EXTRA_SIZE: usize = 2;
/// A kernel has at most 4 KiB of arguments before Volta, 32 KiB since.
pub(super) const LONGEST: usize = 1 << 16;

/// What was read of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    /// Its arguments, as far as they are there.
    pub(super) arguments: Vec<Argument>,
    /// Why that is not all of them.
    pub(super) unread: Option<String>,
}

impl Read {
    fn nothing(why: String) -> Self {
        Self { arguments: Vec::new(), unread: Some(why) }
    }
}

/// The arguments behind one pointer each, by (offset, bytes) of each parameter.
///
/// # Safety
/// The list has as many pointers as there are parameters, each null or to that parameter's bytes.
pub(super) unsafe fn listed(list: *mut *mut c_void, parameters: &[(usize, usize)]) -> Read {
    let mut read = Read::default();
    for (index, (_, bytes)) in parameters.iter().enumerate() {
        // SAFETY: by the promise of this function.
        let found = unsafe { copied(*list.add(index), *bytes) };
        if found.is_none() {
            read.unread = Some(format!("the driver gives no value of argument {index}"));
        }
        read.arguments.push(Argument::opaque(index as u32, found.unwrap_or_default()));
    }
    read
}

/// The arguments in the packed buffer that `extra` names.
///
/// # Safety
/// `extra` is a list as `cuLaunchKernel` takes it.
pub(super) unsafe fn packed(extra: *mut *mut c_void, parameters: &[(usize, usize)]) -> Read {
    let (mut at, mut buffer, mut bytes) = (extra, ptr::null_mut(), 0_usize);
    loop {
        // SAFETY: the list ends with the end's tag, and the tags that are known have one value
        // behind them.
        unsafe {
            match *at as usize {
                EXTRA_POINTER => buffer = *at.add(1),
                EXTRA_SIZE => bytes = *(*at.add(1)).cast::<usize>(),
                EXTRA_END => break,
                tag => return Read::nothing(format!("tag {tag} of its arguments is not known")),
            }
            at = at.add(2);
        }
    }
    if bytes > LONGEST {
        return Read::nothing(format!("{bytes} bytes of arguments are more than a kernel takes"));
    }
    // SAFETY: the buffer has the size that stands beside it.
    match unsafe { copied(buffer, bytes) } {
        Some(buffer) => unpacked(&buffer, parameters),
        None => Read::nothing("the driver gives no buffer of its arguments".to_owned()),
    }
}

/// Cuts a packed buffer by the kernel's parameters; one whose parameters are not known stays whole.
fn unpacked(buffer: &[u8], parameters: &[(usize, usize)]) -> Read {
    if parameters.is_empty() {
        let whole = (!buffer.is_empty()).then(|| Argument::opaque(0, buffer.to_vec()));
        return Read { arguments: whole.into_iter().collect(), unread: None };
    }
    let end = |&(offset, bytes): &(usize, usize)| offset.saturating_add(bytes);
    let cut = parameters.iter().zip(0..).map(|(parameter, index)| {
        let part = buffer.get(parameter.0..end(parameter).min(buffer.len()));
        Argument::opaque(index, part.unwrap_or_default().to_vec())
    });
    let wanted = parameters.iter().map(end).max().unwrap_or(0);
    let given = buffer.len();
    let short = || format!("the driver gives {given} of {wanted} bytes of its arguments");
    Read { arguments: cut.collect(), unread: (given < wanted).then(short) }
}

/// A copy of `bytes` at an address of the host; nothing where they have none.
///
/// # Safety
/// They can be read.
unsafe fn copied(at: *const c_void, bytes: usize) -> Option<Vec<u8>> {
    if bytes == 0 {
        return Some(Vec::new());
    }
    if at.is_null() {
        return None;
    }
    // SAFETY: by the promise of this function.
    Some(unsafe { std::slice::from_raw_parts(at.cast::<u8>(), bytes) }.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a list of these tags over a buffer of 24 bytes, of which `size` are stated.
    fn read(tags: &[usize], mut size: usize, parameters: &[(usize, usize)]) -> Read {
        let mut buffer = bytes();
        let mut list = Vec::new();
        for tag in tags {
            list.push(*tag as *mut c_void);
            list.push(match *tag {
                EXTRA_POINTER => buffer.as_mut_ptr().cast(),
                EXTRA_SIZE => (&raw mut size).cast(),
                _ => ptr::null_mut(),
            });
        }
        // SAFETY: the list names a live buffer and a size of it, and ends or has an unknown tag.
        unsafe { packed(list.as_mut_ptr(), parameters) }
    }

    fn bytes() -> [u8; 24] {
        let mut buffer = [7_u8; 24];
        buffer[8..16].copy_from_slice(&0x7f00_1234_5678_u64.to_le_bytes());
        buffer
    }

    const LIST: [usize; 3] = [EXTRA_POINTER, EXTRA_SIZE, EXTRA_END];

    #[test]
    fn a_packed_buffer_is_read_from_its_list_and_cut_by_parameters() {
        let cut = read(&LIST, 24, &[(0, 4), (8, 8), (16, 8)]);
        let lengths: Vec<usize> = cut.arguments.iter().map(|found| found.bytes.len()).collect();
        assert_eq!((lengths, cut.unread), (vec![4, 8, 8], None));
        assert_eq!(cut.arguments[1].bytes, bytes()[8..16]);
        let whole = read(&LIST, 24, &[]);
        assert_eq!(whole.arguments, [Argument::opaque(0, bytes().to_vec())]);
        assert_eq!(whole.unread, None);
        assert_eq!(read(&LIST, 0, &[]), Read::default());
    }

    #[test]
    fn a_buffer_shorter_than_the_signature_is_not_all() {
        let short = read(&LIST, 12, &[(0, 4), (8, 8), (16, 8)]);
        let lengths: Vec<usize> = short.arguments.iter().map(|found| found.bytes.len()).collect();
        assert_eq!(lengths, [4, 4, 0]);
        let why = "the driver gives 12 of 24 bytes of its arguments";
        assert_eq!(short.unread.as_deref(), Some(why));
    }

    #[test]
    fn a_list_that_is_not_understood_is_not_read() {
        let unread = |tags: &[usize], size| read(tags, size, &[(0, 8)]).unread.unwrap();
        assert_eq!(unread(&[9, EXTRA_END], 24), "tag 9 of its arguments is not known");
        let none = "the driver gives no buffer of its arguments";
        assert_eq!(unread(&[EXTRA_SIZE, EXTRA_END], 24), none);
        let short = "the driver gives 0 of 8 bytes of its arguments";
        assert_eq!(unread(&[EXTRA_POINTER, EXTRA_END], 24), short);
        assert!(unread(&LIST, LONGEST + 1).ends_with("are more than a kernel takes"));
    }

    #[test]
    fn an_argument_without_a_value_is_not_read() {
        let mut value = bytes();
        let mut list = [value.as_mut_ptr().cast(), value[8..].as_mut_ptr().cast()];
        let parameters = [(0, 4), (8, 8)];
        // SAFETY: two live values, of 4 and 8 bytes at least.
        let read = unsafe { listed(list.as_mut_ptr(), &parameters) };
        assert_eq!(read.arguments[1], Argument::pointer(1, 0x7f00_1234_5678));
        assert_eq!(read.unread, None);
        list[1] = ptr::null_mut();
        // SAFETY: as above, and a null.
        let read = unsafe { listed(list.as_mut_ptr(), &parameters) };
        assert_eq!(read.arguments[0].bytes.len(), 4);
        assert_eq!(read.unread.as_deref(), Some("the driver gives no value of argument 1"));
    }
}
