//! Comparison of a buffer with its expected bytes.

use super::dtype::ElementFormat;
use super::read::Reader;
use super::{Buffer, CaseError};
use serde::Deserialize;
use serde::Serialize;
use std::fmt;

/// How a buffer is compared with the expected bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Compare {
    /// The same bits; in float buffers NaN equals any NaN. With a mask, only the bits that are set in it.
    Exact {
        /// One mask byte per byte of the buffer.
        mask: Option<Vec<u8>>,
    },
    /// `|got - want| <= abs + rel * |want|`; NaN equals NaN and an infinity itself.
    Close {
        /// Absolute part.
        abs: f64,
        /// Part relative to the expected value.
        rel: f64,
    },
    /// `|got - want| <= bound[i]`, an infinite bound allows anything.
    Within {
        /// Bound of every element.
        bounds: Vec<f32>,
        /// Number format by index of the first axis; `None` = that of the buffer.
        formats: Vec<Option<ElementFormat>>,
    },
    /// The same elements in any order.
    Multiset,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCompare {
    kind: RawKind,
    mask_file: Option<String>,
    abs: Option<f64>,
    rel: Option<f64>,
    tolerance_file: Option<String>,
    element_formats: Option<RawFormats>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum RawKind {
    Exact,
    Close,
    Within,
    Multiset,
}

/// By position, or by index as a key.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawFormats {
    List(Vec<String>),
    Map(std::collections::BTreeMap<String, String>),
}

/// The first element that disagrees, and how many do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mismatch {
    /// Elements that disagree.
    pub count: u64,
    /// Elements compared.
    pub elements: u64,
    /// Coordinates of the worst element (for exact comparison of the first).
    pub at: Vec<u64>,
    /// What was there.
    pub got: String,
    /// What was expected.
    pub want: String,
    /// What was allowed.
    pub bound: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { count, elements, at, got, want, bound } = self;
        write!(f, "{count} of {elements} elements differ, worst at {at:?}: got {got}, expected {want} ({bound})")
    }
}

pub(super) fn load(reader: &Reader, what: &str, raw: RawCompare, buffer: &Buffer) -> Result<Compare, CaseError> {
    let allowed: &[&str] = match raw.kind {
        RawKind::Exact => &["mask_file"],
        RawKind::Close => &["abs", "rel"],
        RawKind::Within => &["tolerance_file", "element_formats"],
        RawKind::Multiset => &[],
    };
    for (key, there) in [
        ("mask_file", raw.mask_file.is_some()),
        ("abs", raw.abs.is_some()),
        ("rel", raw.rel.is_some()),
        ("tolerance_file", raw.tolerance_file.is_some()),
        ("element_formats", raw.element_formats.is_some()),
    ] {
        if there && !allowed.contains(&key) {
            return reader.wrong(what, format!("`{key}` does not go with this kind of comparison"));
        }
    }
    match raw.kind {
        RawKind::Multiset => Ok(Compare::Multiset),
        RawKind::Exact => {
            let Some(file) = raw.mask_file else { return Ok(Compare::Exact { mask: None }) };
            let mask = reader.read(what.to_owned(), &file)?;
            if mask.len() as u64 != buffer.bytes {
                let problem = format!("the buffer has {} bytes, the mask `{file}` has {}", buffer.bytes, mask.len());
                return reader.wrong(what, problem);
            }
            Ok(Compare::Exact { mask: Some(mask) })
        }
        RawKind::Close => {
            let (abs, rel) = (raw.abs.unwrap_or(0.0), raw.rel.unwrap_or(0.0));
            if !(abs >= 0.0 && rel >= 0.0) {
                return reader.wrong(what, format!("`abs` {abs} and `rel` {rel} must not be negative"));
            }
            Ok(Compare::Close { abs, rel })
        }
        RawKind::Within => {
            let Some(file) = raw.tolerance_file else {
                return reader.wrong(what, "`within` needs a `tolerance_file`");
            };
            let bytes = reader.read(what.to_owned(), &file)?;
            let elements = buffer.bytes / buffer.dtype.bytes() as u64;
            if bytes.len() as u64 != elements * 4 {
                let problem =
                    format!("{elements} elements need {} bytes of f32, `{file}` has {}", elements * 4, bytes.len());
                return reader.wrong(what, problem);
            }
            let bounds: Vec<f32> =
                bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
            if let Some(bad) = bounds.iter().find(|bound| bound.is_nan() || **bound < 0.0) {
                return reader.wrong(what, format!("`{file}` has the bound {bad}, expected 0 to inf"));
            }
            let formats = formats(reader, what, raw.element_formats, buffer)?;
            Ok(Compare::Within { bounds, formats })
        }
    }
}

fn formats(
    reader: &Reader,
    what: &str,
    raw: Option<RawFormats>,
    buffer: &Buffer,
) -> Result<Vec<Option<ElementFormat>>, CaseError> {
    let rows = buffer.shape.first().copied().unwrap_or(1) as usize;
    let mut out = vec![None; rows];
    let pairs: Vec<(String, String)> = match raw {
        None => return Ok(out),
        Some(RawFormats::Map(map)) => map.into_iter().collect(),
        Some(RawFormats::List(list)) => {
            if list.len() != rows {
                let problem = format!("`element_formats` names {}, the first axis has {rows}", list.len());
                return reader.wrong(what, problem);
            }
            list.into_iter().enumerate().map(|(index, name)| (index.to_string(), name)).collect()
        }
    };
    for (index, name) in pairs {
        let slot = index.parse::<usize>().ok().and_then(|index| out.get_mut(index));
        let (Some(slot), Some(format)) = (slot, ElementFormat::from_name(&name)) else {
            return reader
                .wrong(what, format!("`element_formats` at {index}: `{name}` is no format, or no such index"));
        };
        if format.bits() > 8 * buffer.dtype.bytes() as u32 {
            return reader.wrong(what, format!("`{name}` does not fit into elements of type {}", buffer.dtype.name()));
        }
        *slot = Some(format);
    }
    Ok(out)
}

/// Compares the bytes of a buffer; `None` when they agree.
pub(super) fn compare(buffer: &Buffer, compare: &Compare, got: &[u8], want: &[u8]) -> Option<Mismatch> {
    let size = buffer.dtype.bytes();
    let element = |bytes: &[u8], i: usize| {
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(&bytes[i * size..(i + 1) * size]);
        u64::from_le_bytes(wide)
    };
    let elements = got.len() / size;
    let format = buffer.dtype.format();
    let mut worst = Worst { buffer, count: 0, badness: -1.0, found: None };
    match compare {
        Compare::Exact { mask } => {
            let full = u64::MAX >> (64 - 8 * size);
            for i in 0..elements {
                let (g, w) = (element(got, i), element(want, i));
                let mask = mask.as_ref().map_or(full, |mask| element(mask, i));
                let both_nan = mask == full && format.is_nan(g) && format.is_nan(w);
                if (g ^ w) & mask != 0 && !both_nan {
                    worst.add(i, 0.0, || (text(format, g), text(format, w), format!("mask {mask:#x}")));
                }
            }
        }
        Compare::Close { abs, rel } => {
            for i in 0..elements {
                let (g, w) = (format.value(element(got, i)), format.value(element(want, i)));
                let bound = abs + rel * w.abs();
                if let Some(excess) = outside(g, w, bound) {
                    worst.add(i, excess, || (format!("{g:e}"), format!("{w:e}"), format!("bound {bound:e}")));
                }
            }
        }
        Compare::Within { bounds, formats } => {
            let row = (elements / formats.len().max(1)).max(1);
            for (i, bound) in bounds.iter().enumerate().take(elements) {
                let format = formats.get(i / row).copied().flatten().unwrap_or(format);
                let (g, w) = (format.value(element(got, i)), format.value(element(want, i)));
                let bound = *bound as f64;
                if bound == f64::INFINITY {
                    continue;
                }
                if let Some(excess) = outside(g, w, bound) {
                    worst.add(i, excess, || (format!("{g:e}"), format!("{w:e}"), format!("bound {bound:e}")));
                }
            }
        }
        Compare::Multiset => {
            // All NaN count as one value.
            let sorted = |bytes: &[u8]| {
                let mut list: Vec<u64> = (0..elements)
                    .map(|i| element(bytes, i))
                    .map(|bits| if format.is_nan(bits) { u64::MAX } else { bits })
                    .collect();
                list.sort_unstable();
                list
            };
            let (g, w) = (sorted(got), sorted(want));
            for i in (0..elements).filter(|i| g[*i] != w[*i]) {
                worst.add(i, 0.0, || (text(format, g[i]), text(format, w[i]), "sorted order".to_owned()));
            }
        }
    }
    worst.finish(elements)
}

/// How far outside its bound a value is; `None` inside. NaN equals NaN, an infinity equals itself.
fn outside(got: f64, want: f64, bound: f64) -> Option<f64> {
    if got == want || (got.is_nan() && want.is_nan()) {
        return None;
    }
    let distance = (got - want).abs();
    if distance <= bound && !got.is_nan() && want.is_finite() && got.is_finite() {
        return None;
    }
    let excess = distance / bound.max(f64::MIN_POSITIVE);
    Some(if excess.is_nan() { f64::INFINITY } else { excess })
}

fn text(format: ElementFormat, bits: u64) -> String {
    format!("{:e} ({bits:#x})", format.value(bits))
}

struct Worst<'a> {
    buffer: &'a Buffer,
    count: u64,
    badness: f64,
    found: Option<(usize, (String, String, String))>,
}

impl Worst<'_> {
    fn add(&mut self, index: usize, badness: f64, describe: impl FnOnce() -> (String, String, String)) {
        self.count += 1;
        if badness > self.badness {
            self.badness = badness;
            self.found = Some((index, describe()));
        }
    }

    fn finish(self, elements: usize) -> Option<Mismatch> {
        let (index, (got, want, bound)) = self.found?;
        let mut at = Vec::new();
        let mut rest = index as u64;
        for axis in self.buffer.shape.iter().rev() {
            at.push(rest % (*axis).max(1));
            rest /= (*axis).max(1);
        }
        at.reverse();
        Some(Mismatch { count: self.count, elements: elements as u64, at, got, want, bound })
    }
}
