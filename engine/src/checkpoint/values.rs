//! The values themselves: finite numbers, expert ids that exist. Reads everything, which opening does not.

use super::{Checkpoint, CheckpointError, Class, Problems, TensorView};
use std::convert::Infallible;
use std::sync::Mutex;

/// Elements decoded at once.
const PART: usize = 1 << 20;

impl Checkpoint {
    /// Decodes every tensor and reports those with a value that no forward pass survives. `progress` gets bytes, out of
    /// [`Checkpoint::bytes`] in all.
    pub fn check_values(&self, progress: impl Fn(u64) + Sync) -> Problems {
        let found = Mutex::new(Vec::new());
        let each = |tensor: TensorView<'_>| {
            if let Some((expected, got)) = wrong_value(&tensor, self.class(tensor.name), self.config.experts) {
                let mut found = found.lock().expect("no holder panics");
                found.push((tensor.name.to_owned(), expected, got));
            }
            Ok::<(), Infallible>(())
        };
        let Ok(()) = self.visit(progress, each);
        let mut found = found.into_inner().expect("no holder panics");
        found.sort();
        let mut problems = Problems::default();
        for (name, expected, got) in found {
            problems.add(&name, expected, got);
        }
        problems
    }
}

/// The first wrong value: what was expected, what was found.
fn wrong_value(tensor: &TensorView<'_>, class: Option<Class>, experts: u32) -> Option<(String, String)> {
    if class == Some(Class::Ids) {
        return match tensor.ids(experts) {
            Err(CheckpointError::Refused { expected, got, .. }) => Some((expected, got)),
            _ => None,
        };
    }
    let step = (PART / tensor.row_len()).max(1);
    for start in (0..tensor.rows()).step_by(step) {
        let values = tensor.f32s(start..tensor.rows().min(start + step)).expect("rows of the tensor");
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let (row, column) = (start + at / tensor.row_len(), at % tensor.row_len());
            return Some(("finite values".to_owned(), format!("{} in row {row}, column {column}", values[at])));
        }
    }
    None
}
