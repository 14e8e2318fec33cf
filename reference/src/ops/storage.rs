//! How operands stand in memory.

/// Element type of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit: runs on the host, and the reference.
    F32,
    /// 16-bit brain float: what the kernels read and write.
    Bf16,
}

impl Dtype {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }

    /// `f32`, `bf16`
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
        }
    }
}

/// Row format of a KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// 584 B: 448 e4m3 + 64 bf16 per row, then 7 ue8m0 + pad per row at the end of the page.
    V4Fp8,
    /// 1,024 B: 512 bf16.
    Bf16,
    /// `4 * d` B: f32. The width of rows, queries and outputs is `d` instead of 512.
    F32 {
        /// Channels, 1 to 8,192.
        d: u32,
    },
}

/// Row format of an index-K cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IndexKFormat {
    /// 132 B, block-planar: P x 128 e4m3, then P x f32.
    Fp8,
    /// 256 B: 128 bf16.
    Bf16,
    /// 68 B, block-planar: P x 64 B of e2m1 codes (low nibble = even channel), then P x 4 ue8m0, one per 32 channels.
    Fp4,
    /// `4 * d` B: f32. The width of rows and queries is `d` instead of 128.
    F32 {
        /// Channels, 1 to 8,192.
        d: u32,
    },
}

/// How `index_k_write` makes an fp8 scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScaleRule {
    /// `max(amax, 1e-4) / 448`
    Exact,
    /// That, rounded up to a power of two.
    PowerOfTwo,
}

/// How a weight matrix `[rows, k]` is stored, row-major. `k` is a multiple of 32. Values are decoded to f32, which is exact
/// (a code times a scale beyond the range of f32 is infinite; a NaN code or the scale byte 255 gives NaN); products are with
/// the decoded values. Where they are made of bf16, a decoded value below 2^-126 keeps the bits that bf16 has there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// f32.
    F32,
    /// bf16.
    Bf16,
    /// e4m3, one ue8m0 scale per 128 x 128 block: scales `[ceil(rows / 128), ceil(k / 128)]`. `rows` are all rows of the
    /// operand: matrices that are stacked have blocks of their own only where their rows are a multiple of 128.
    Fp8Block128,
    /// e2m1, two codes per byte (low nibble = even k), one ue8m0 scale per 32 along k: scales `[rows, k / 32]`.
    Fp4Block32,
}

/// A weight matrix, or several of equal size stacked along the rows.
#[derive(Debug)]
pub struct Weight<'a, B> {
    /// Storage.
    pub format: WeightFormat,
    /// Values or codes.
    pub data: &'a B,
    /// Scales of the block formats, absent otherwise.
    pub scale: Option<&'a B>,
}

impl<B> Clone for Weight<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B> Copy for Weight<'_, B> {}

/// Geometry of a paged cache: page `p` starts at byte `p * page_stride_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pages {
    /// Pages in the pool.
    pub num_pages: u32,
    /// Rows per page.
    pub page_size: u32,
    /// Bytes from one page to the next.
    pub page_stride_bytes: u64,
}

/// A paged cache operand.
#[derive(Debug)]
pub struct Paged<'a, B> {
    /// Memory of the pool.
    pub buffer: &'a B,
    /// Geometry.
    pub pages: Pages,
}

impl<B> Clone for Paged<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<B> Copy for Paged<'_, B> {}
