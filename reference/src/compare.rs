//! Comparison of an output with what it must be.
//!
//! Floats in three parts: NaN, +inf and -inf stand in the same places; every other element lies within its own bound;
//! the whole tensor differs by little, `1 - 2<x,y> / (|x|^2 + |y|^2)`. Integers and bytes are equal. What the
//! operation must not write still holds what stood there before. A verdict names the worst element with its
//! coordinates, both values and the bound, whether it passes or not.

use std::fmt;

use ndarray::Dimension;
use serde::Serialize;

use crate::formats::{bf16, f32s, s32s};
use crate::ops::Dtype;
use crate::plain::Cells;

/// How far an output may be from the exact result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bound {
    /// Absolute, in units of the element's magnitude ([`crate::plain::Exact`]).
    pub abs: f64,
    /// Relative to the exact value. An element passes if it meets one of the two.
    pub rel: f64,
    /// Of the whole tensor: `1 - 2<x,y> / (|x|^2 + |y|^2)`, which is `|x-y|^2 / (|x|^2 + |y|^2)`.
    pub difference: f64,
}

/// Type of the stored elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float {
    /// 4 bytes.
    F32,
    /// 2 bytes.
    Bf16,
}

impl From<Dtype> for Float {
    fn from(dtype: Dtype) -> Float {
        match dtype {
            Dtype::F32 => Float::F32,
            Dtype::Bf16 => Float::Bf16,
        }
    }
}

impl Float {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::Bf16 => 2,
        }
    }

    fn read(self, memory: &[u8], element: usize) -> f32 {
        let at = element * self.bytes();
        match self {
            Float::F32 => f32s(&memory[at..at + 4])[0],
            Float::Bf16 => bf16::from_le_bytes([memory[at], memory[at + 1]]).to_f32(),
        }
    }
}

/// An element with its place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Located {
    /// Coordinates in the tensor.
    pub at: Vec<usize>,
    /// What was found.
    pub got: f64,
    /// What must be.
    pub expected: f64,
    /// `|got - expected|`.
    pub error: f64,
    /// What `error` may be.
    pub bound: f64,
}

/// Why an output does not pass.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Failure {
    /// NaN or an infinity on one side only, or an infinity of the other sign.
    Places {
        /// The first such element.
        first: Located,
        /// How many.
        count: usize,
    },
    /// Elements beyond their bound; the worst is in [`Verdict::worst`].
    Elements {
        /// How many.
        count: usize,
    },
    /// The tensor as a whole is too far off.
    Difference {
        /// What was found.
        got: f64,
        /// What may be.
        bound: f64,
    },
    /// Integers that differ.
    Integers {
        /// Coordinates of the first.
        at: Vec<usize>,
        /// What was found there.
        got: i32,
        /// What must be there.
        expected: i32,
        /// How many differ.
        count: usize,
        /// Values of that row that are missing, up to eight.
        missing: Vec<i32>,
        /// Values of that row that should not be there, up to eight.
        extra: Vec<i32>,
    },
    /// Bytes that differ.
    Bytes {
        /// Offset of the first.
        offset: usize,
        /// What lies at that offset.
        place: String,
        /// What was found there.
        got: u8,
        /// What must be there.
        expected: u8,
        /// How many differ.
        count: usize,
    },
    /// Bytes changed that the operation must not write.
    Touched {
        /// Offset of the first.
        offset: usize,
        /// What was found there.
        got: u8,
        /// What stood there before.
        before: u8,
        /// How many changed.
        count: usize,
    },
    /// The output has another size.
    Size {
        /// Bytes found.
        got: usize,
        /// Bytes needed.
        expected: usize,
    },
}

/// Result of comparing one output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// Name of the output.
    pub output: String,
    /// Elements compared.
    pub elements: usize,
    /// Largest absolute error of a finite element.
    pub max_abs: f64,
    /// Largest error in units of its bound: 1 is the limit.
    pub max_share: f64,
    /// `1 - 2<x,y> / (|x|^2 + |y|^2)` over the finite elements.
    pub difference: f64,
    /// The element behind `max_share`; none if there is no finite element or no error at all.
    pub worst: Option<Located>,
    /// Why the output does not pass; `None` if it does.
    pub failure: Option<Failure>,
}

impl Verdict {
    fn new(output: &str, elements: usize) -> Verdict {
        Verdict {
            output: output.to_string(),
            elements,
            max_abs: 0.0,
            max_share: 0.0,
            difference: 0.0,
            worst: None,
            failure: None,
        }
    }

    /// Whether the output is right.
    pub fn passes(&self) -> bool {
        self.failure.is_none()
    }
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "at {:?}: got {:e}, expected {:e}, off by {:.3e}, bound {:.3e}",
            self.at, self.got, self.expected, self.error, self.bound
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Places { first, count } => {
                write!(f, "{count} NaN or infinities in other places, first {:?}: ", first.at)?;
                write!(f, "got {}, expected {}", first.got, first.expected)
            }
            Failure::Elements { count } => write!(f, "{count} elements beyond their bound"),
            Failure::Difference { got, bound } => {
                write!(f, "1 - 2<x,y>/(|x|^2 + |y|^2): got {got:.3e}, expected at most {bound:.3e}")
            }
            Failure::Integers { at, got, expected, count, missing, extra } => {
                write!(f, "{count} integers differ, first at {at:?}: got {got}, expected {expected}")?;
                write!(f, "; of that row missing {missing:?}, extra {extra:?}")
            }
            Failure::Bytes { offset, place, got, expected, count } => {
                write!(f, "{count} bytes differ, first at {offset} ({place}): got {got:#04x}, expected {expected:#04x}")
            }
            Failure::Touched { offset, got, before, count } => {
                write!(f, "{count} bytes changed that must stay, first at {offset}: got {got:#04x}, was {before:#04x}")
            }
            Failure::Size { got, expected } => write!(f, "got {got} bytes, expected {expected} bytes"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.output)?;
        match &self.failure {
            None => write!(f, "passes, {} elements, worst at {:.2} of its bound", self.elements, self.max_share)?,
            Some(failure) => write!(f, "{failure}")?,
        }
        match &self.worst {
            Some(worst) => write!(f, "; worst {worst}"),
            None => Ok(()),
        }
    }
}

/// Which of NaN, +inf, -inf or finite.
fn class(x: f64) -> u8 {
    match x {
        _ if x.is_nan() => 0,
        f64::INFINITY => 1,
        f64::NEG_INFINITY => 2,
        _ => 3,
    }
}

/// What a result may lose below the normal numbers: kernels flush those to zero (`ex2.approx.ftz`), and neither f32 nor
/// bf16 holds anything below 2^-149. An element without terms (magnitude 0) has nothing to lose: it is exactly 0.
fn underflow(magnitude: f64) -> f64 {
    if magnitude > 0.0 { f64::from(f32::MIN_POSITIVE) } else { 0.0 }
}

/// Compares float elements that stand in `memory` with `strides` (in elements, one per axis of `cells`). Where `cells`
/// has `None`, and in the gaps between the elements, `memory` must equal `before`.
pub fn floats(
    output: &str,
    memory: &[u8],
    before: &[u8],
    float: Float,
    strides: &[u64],
    cells: &Cells,
    bound: &Bound,
) -> Verdict {
    let mut verdict = Verdict::new(output, 0);
    if memory.len() != before.len() {
        verdict.failure = Some(Failure::Size { got: memory.len(), expected: before.len() });
        return verdict;
    }
    let mut written = vec![false; memory.len()];
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    let mut places: Option<(Located, usize)> = None;
    let mut beyond = 0;
    for (place, cell) in cells.indexed_iter() {
        let Some(exact) = cell else { continue };
        let at: Vec<usize> = place.as_array_view().to_vec();
        let element = at.iter().zip(strides).map(|(&i, &s)| i * s as usize).sum::<usize>();
        written[element * float.bytes()..(element + 1) * float.bytes()].fill(true);
        let (got, expected) = (f64::from(float.read(memory, element)), exact.value);
        verdict.elements += 1;
        if class(got) != class(expected) {
            let first = Located { at, got, expected, error: f64::INFINITY, bound: 0.0 };
            places.get_or_insert((first, 0)).1 += 1;
            continue;
        }
        if class(expected) != 3 {
            continue;
        }
        xy += got * expected;
        xx += got * got;
        yy += expected * expected;
        let error = (got - expected).abs();
        let limit = (bound.abs * exact.magnitude).max(bound.rel * expected.abs()) + underflow(exact.magnitude);
        let share = if error == 0.0 { 0.0 } else { error / limit };
        verdict.max_abs = verdict.max_abs.max(error);
        if share > verdict.max_share {
            verdict.max_share = share;
            verdict.worst = Some(Located { at, got, expected, error, bound: limit });
        }
        beyond += usize::from(share > 1.0);
    }
    verdict.difference = if xx + yy == 0.0 { 0.0 } else { 1.0 - 2.0 * xy / (xx + yy) };
    let touched = |i: &usize| !written[*i] && memory[*i] != before[*i];
    verdict.failure = if let Some((first, count)) = places {
        Some(Failure::Places { first, count })
    } else if beyond > 0 {
        Some(Failure::Elements { count: beyond })
    } else if verdict.difference > bound.difference {
        Some(Failure::Difference { got: verdict.difference, bound: bound.difference })
    } else {
        (0..memory.len()).find(touched).map(|offset| Failure::Touched {
            offset,
            got: memory[offset],
            before: before[offset],
            count: (0..memory.len()).filter(touched).count(),
        })
    };
    verdict
}

/// Compares a contiguous `[rows, columns]` s32 output; every element must be equal.
pub fn integers(output: &str, memory: &[u8], columns: usize, expected: &[i32]) -> Verdict {
    let mut verdict = Verdict::new(output, expected.len());
    if memory.len() != 4 * expected.len() {
        verdict.failure = Some(Failure::Size { got: memory.len(), expected: 4 * expected.len() });
        return verdict;
    }
    let got = s32s(memory);
    let differs = |i: &usize| got[*i] != expected[*i];
    if let Some(first) = (0..expected.len()).find(differs) {
        let columns = columns.max(1);
        let row = first / columns * columns..(first / columns * columns + columns).min(expected.len());
        let lacking = |from: &[i32], of: &[i32]| -> Vec<i32> {
            let mut of = of.to_vec();
            of.sort_unstable();
            from.iter().copied().filter(|v| of.binary_search(v).is_err()).take(8).collect()
        };
        verdict.failure = Some(Failure::Integers {
            at: vec![first / columns, first % columns],
            got: got[first],
            expected: expected[first],
            count: (0..expected.len()).filter(differs).count(),
            missing: lacking(&expected[row.clone()], &got[row.clone()]),
            extra: lacking(&got[row.clone()], &expected[row]),
        });
    }
    verdict
}

/// Compares bytes; `place` says what lies at an offset. At the offsets where `any_nan` says so, 0x7f and 0xff are equal
/// (an e4m3 NaN of either sign).
pub fn bytes(
    output: &str,
    memory: &[u8],
    expected: &[u8],
    any_nan: impl Fn(usize) -> bool,
    place: impl Fn(usize) -> String,
) -> Verdict {
    let mut verdict = Verdict::new(output, expected.len());
    if memory.len() != expected.len() {
        verdict.failure = Some(Failure::Size { got: memory.len(), expected: expected.len() });
        return verdict;
    }
    let differs = |i: &usize| {
        let (got, want) = (memory[*i], expected[*i]);
        got != want && !(got & want & 0x7f == 0x7f && any_nan(*i))
    };
    if let Some(offset) = (0..expected.len()).find(differs) {
        verdict.failure = Some(Failure::Bytes {
            offset,
            place: place(offset),
            got: memory[offset],
            expected: expected[offset],
            count: (0..expected.len()).filter(differs).count(),
        });
    }
    verdict
}

#[cfg(test)]
mod tests {
    use ndarray::ArrayD;

    use super::*;
    use crate::formats::{f32_bytes, s32_bytes};
    use crate::plain::Exact;

    const BOUND: Bound = Bound { abs: 1e-3, rel: 1e-2, difference: 1e-4 };

    fn cells(values: &[f64]) -> Cells {
        let cells = values.iter().map(|&value| Some(Exact { value, magnitude: 1.0 })).collect();
        ArrayD::from_shape_vec(vec![2, values.len() / 2], cells).unwrap()
    }

    fn compare(got: &[f32], expected: &Cells) -> Verdict {
        let memory = f32_bytes(got);
        let columns = expected.shape()[1] as u64;
        floats("x", &memory, &vec![0; memory.len()], Float::F32, &[columns, 1], expected, &BOUND)
    }

    #[test]
    fn an_element_passes_by_the_absolute_or_the_relative_bound() {
        let expected = cells(&[0.0, 1.0, 100.0, -50.0]);
        assert!(compare(&[0.0009, 1.0009, 100.9, -50.0], &expected).passes());
        let verdict = compare(&[0.0009, 1.0, 101.5, -50.0], &expected);
        assert_eq!(verdict.failure, Some(Failure::Elements { count: 1 }));
        let text = verdict.to_string();
        assert_eq!(
            text,
            "x: 1 elements beyond their bound; worst at [1, 0]: got 1.015e2, expected 1e2, off by 1.500e0, bound 1.000e0"
        );
    }

    #[test]
    fn results_below_the_normal_numbers_may_flush_to_zero() {
        let judge = |value: f64, got: f32| {
            let cells = ArrayD::from_elem(vec![1], Some(Exact { value, magnitude: value.abs() }));
            let memory = got.to_le_bytes();
            let bound = Bound { abs: 1e-6, rel: 1e-6, difference: f64::INFINITY };
            floats("x", &memory, &[0; 4], Float::F32, &[1], &cells, &bound).passes()
        };
        assert!(judge(5e-63, 0.0), "f32 has nothing that small");
        assert!(judge(1.1e-38, 0.0), "flushed");
        assert!(!judge(2.5e-38, 0.0), "a normal number is lost");
        assert!(!judge(5e-63, 3e-38), "nothing comes from nowhere");
    }

    #[test]
    fn the_bound_grows_with_the_magnitude_and_a_zero_magnitude_wants_the_exact_value() {
        let mut expected = cells(&[1.0, 1.0, 1.0, 0.0]);
        expected[[0, 0]] = Some(Exact { value: 1.0, magnitude: 100.0 });
        expected[[1, 1]] = Some(Exact { value: 0.0, magnitude: 0.0 });
        let bound = Bound { abs: 1e-3, rel: 0.0, difference: 1.0 };
        let compare = |got: &[f32]| {
            let memory = f32_bytes(got);
            floats("x", &memory, &[0; 16], Float::F32, &[2, 1], &expected, &bound)
        };
        assert!(compare(&[1.09, 1.0, 1.0, -0.0]).passes(), "minus zero is zero");
        assert!(!compare(&[1.0, 1.09, 1.0, 0.0]).passes());
        assert_eq!(compare(&[1.0, 1.0, 1.0, 1e-30]).worst.unwrap().at, [1, 1]);
    }

    #[test]
    fn places_of_nan_and_infinities_must_agree() {
        let expected = cells(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0]);
        assert!(compare(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0], &expected).passes());
        for (place, wrong) in [(0, 0.0), (1, f32::NEG_INFINITY), (2, f32::NAN), (3, f32::INFINITY)] {
            let mut got = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.0];
            got[place] = wrong;
            let verdict = compare(&got, &expected);
            assert!(matches!(verdict.failure, Some(Failure::Places { count: 1, .. })), "{verdict}");
        }
    }

    #[test]
    fn many_small_errors_fail_as_a_whole() {
        let expected = ArrayD::from_elem(vec![2, 8], Some(Exact { value: 1e-3, magnitude: 1.0 }));
        let verdict = compare(&[1.9e-3; 16], &expected);
        assert!(matches!(verdict.failure, Some(Failure::Difference { .. })), "{verdict}");
        // |x - y|^2 / (|x|^2 + |y|^2)
        let want = 0.9f64.powi(2) / (1.9f64.powi(2) + 1.0);
        assert!((verdict.difference - want).abs() < 1e-6, "{}", verdict.difference);
    }

    #[test]
    fn gaps_and_unwritten_elements_must_stay() {
        let mut expected = cells(&[1.0, 2.0, 3.0, 4.0]);
        expected[[0, 1]] = None;
        let before = f32_bytes(&[7.0; 8]);
        let check = |got: [f32; 8]| floats("x", &f32_bytes(&got), &before, Float::F32, &[4, 1], &expected, &BOUND);
        assert!(check([1.0, 7.0, 7.0, 7.0, 3.0, 4.0, 7.0, 7.0]).passes());
        for touched in [1, 3, 7] {
            let mut got = [1.0, 7.0, 7.0, 7.0, 3.0, 4.0, 7.0, 7.0];
            got[touched] = 0.0;
            let verdict = check(got);
            let Some(Failure::Touched { offset, .. }) = verdict.failure else { panic!("{verdict}") };
            assert_eq!(offset / 4, touched);
        }
    }

    #[test]
    fn integers_name_what_is_missing() {
        let expected = [0, 1, 2, 5, 7, -1];
        assert!(integers("x", &s32_bytes(&expected), 3, &expected).passes());
        let verdict = integers("x", &s32_bytes(&[0, 1, 2, 5, 8, -1]), 3, &expected);
        assert_eq!(
            verdict.to_string(),
            "x: 1 integers differ, first at [1, 1]: got 8, expected 7; of that row missing [7], extra [8]"
        );
    }

    #[test]
    fn bytes_accept_a_nan_of_either_sign_only_where_told() {
        let expected = [0x7f, 0x7f, 0x00];
        let check = |got: [u8; 3]| bytes("x", &got, &expected, |i| i == 0, |i| format!("byte {i}"));
        assert!(check([0xff, 0x7f, 0x00]).passes());
        let verdict = check([0x7f, 0xff, 0x01]);
        assert_eq!(verdict.to_string(), "x: 2 bytes differ, first at 1 (byte 1): got 0xff, expected 0x7f");
    }
}
