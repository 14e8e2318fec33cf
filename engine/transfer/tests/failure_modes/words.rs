//! What two small ranks say of themselves. The fuzzer has this file too.

use transfer::hello::{Hello, PROTOCOL, Side};
use transfer::ids::{Class, Unit};
use transfer::layout::{ClassSpec, ItemSpec, Layout};

pub(crate) const RANKS: usize = 2;
pub(crate) const UNITS: u32 = 3;

/// Few pages, so that they are used again at once.
pub(crate) fn layout(side: Side) -> Layout {
    let pages = match side {
        Side::Decode => [5, 3],
        Side::Prefill => [6, 4],
    };
    let class = |name: &str, num_pages| ClassSpec { name: name.into(), num_pages };
    let item =
        |unit, name: &str, class, page_bytes| ItemSpec { unit: Unit(unit), name: name.into(), class, page_bytes };
    let items = vec![
        item(0, "window KV", Class(1), 100),
        item(1, "window KV", Class(1), 100),
        item(1, "CSA KV", Class(0), 584),
        item(1, "CSA index K", Class(0), 132),
        item(2, "window KV", Class(1), 100),
        item(2, "HCA KV", Class(0), 64),
    ];
    Layout::new(vec![class("compressed", pages[0]), class("window", pages[1])], items).unwrap()
}

pub(crate) fn hello(side: Side, process: usize, rank: usize, incarnation: u64) -> Hello {
    let layout = layout(side);
    Hello {
        protocol: PROTOCOL,
        side,
        name: format!("{side:?} {process} rank {rank}"),
        incarnation,
        rank: rank as u32,
        tp_size: RANKS as u32,
        model: "small".into(),
        model_hash: 1,
        kv_dtype: "v4_fp8".into(),
        index_k_dtype: "fp8".into(),
        activations: "f32".into(),
        page_sizes: vec![256, 128],
        layer_schedule: "WCH".into(),
        units: UNITS,
        classes: layout.classes().to_vec(),
        items: layout.items().iter().map(|item| item.spec.clone()).collect(),
        layout_hash: layout.hash(),
        transport: "simulated".into(),
        blob: vec![],
    }
}
