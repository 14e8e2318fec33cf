//! The devices of this machine.

use crate::cli::DeviceKind;
use kernel_bindings::cuda::Cuda;
use kernel_bindings::device::{Device, DeviceError};
use kernels::{Operation, Variant};
use serde::Serialize;

/// A device, or why it is not there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceRow {
    /// `host`, `emulated`, `cuda`
    pub kind: String,
    /// Name.
    pub name: String,
    /// Present.
    pub present: bool,
    /// Variants it can run, best first, or what is missing.
    pub facts: String,
}

/// Lists every kind of device.
pub fn list() -> Vec<DeviceRow> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let row = |kind: &str, name: String, present, facts| DeviceRow { kind: kind.to_owned(), name, present, facts };
    let mut rows = vec![
        row("host", "this CPU".to_owned(), true, format!("f32 operations, {threads} threads")),
        row("emulated", "PTX machine on this CPU".to_owned(), true, shipped(&[Variant::Sm89, Variant::Sm120a])),
    ];
    rows.push(match Cuda::open(0) {
        Ok(card) => {
            let (major, minor) = card.compute_capability();
            let properties = card.properties();
            let library = match card.product_library() {
                Ok(name) => format!("bf16 products by {name}"),
                Err(why) => format!("bf16 products by the kernels ({why})"),
            };
            let facts = format!(
                "compute capability {major}.{minor}, {} SMs; {}; {library}",
                properties.num_sms,
                shipped(&properties.variants)
            );
            row("cuda", properties.name.clone(), true, facts)
        }
        Err(DeviceError::Absent { reason, .. }) => row("cuda", "-".to_owned(), false, reason),
        Err(other) => row("cuda", "-".to_owned(), false, other.to_string()),
    });
    rows
}

/// How many operations have PTX for each of the variants.
fn shipped(variants: &[Variant]) -> String {
    let counts: Vec<String> = variants
        .iter()
        .map(|&variant| {
            let count = Operation::ALL.into_iter().filter(|&op| kernels::ptx(op, variant).is_some()).count();
            format!("{variant}: {count} of {} operations", Operation::ALL.len())
        })
        .collect();
    counts.join(", ")
}

/// The kinds that parity judges when none is named: host, emulated, and the card if there is one.
pub fn default_kinds() -> Vec<DeviceKind> {
    let mut kinds = vec![DeviceKind::Host, DeviceKind::Emulated];
    if Cuda::open(0).is_ok() {
        kinds.push(DeviceKind::Cuda);
    }
    kinds
}
