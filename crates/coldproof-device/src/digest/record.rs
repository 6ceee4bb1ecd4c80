//! The records that the kernel reads, field by field as `kernels/digest.cu` declares them.

use bytemuck::{Pod, Zeroable};

/// Outer axes that a layout may have after neighbours were merged.
pub(super) const MAX_AXES: usize = 7;

/// One tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct TensorRecord {
    /// The key of its source.
    pub key: [u64; 12],
    /// Address of the first element.
    pub base: u64,
    /// Blocks of all rows.
    pub blocks: u64,
    /// Blocks of one row.
    pub row_blocks: u64,
    /// Bytes of one row.
    pub row_bytes: u64,
    /// Index of its layout.
    pub layout: u32,
    /// Bytes that a full block can be loaded by.
    pub unit: u32,
    /// Bytes that the short block of a row can be loaded by.
    pub tail_unit: u32,
    /// 1 where it is one row whose full blocks lie on 16 bytes.
    pub is_flat: u32,
}

/// How the rows of a tensor lie in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct LayoutRecord {
    /// Bytes between neighbouring elements of a strided row.
    pub inner: i64,
    /// Axes in use.
    pub axes: u32,
    /// 1 where neighbouring threads take neighbouring rows.
    pub by_column: u32,
    /// Rows along each axis, the last one fastest.
    pub extent: [u64; MAX_AXES],
    /// Bytes between neighbours along each axis.
    pub pitch: [i64; MAX_AXES],
    /// 1 where the elements of a row do not adjoin.
    pub is_strided: u64,
}

/// A run of blocks that one warp takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Tile {
    /// Index of the tensor.
    pub tensor: u32,
    /// Which of its tiles.
    pub ordinal: u32,
}
