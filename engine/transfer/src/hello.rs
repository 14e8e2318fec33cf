//! The handshake: what both sides must have in common, and a refusal that names the first field they differ in.

use crate::ids::Unit;
use crate::layout::{ClassSpec, ItemSpec, Layout, LayoutError};
use std::fmt;

/// Version of the conversation, raised with every change of meaning.
pub const PROTOCOL: u32 = 2;
/// Most units of a layout: bits of the set a room keeps.
pub const MAX_UNITS: u32 = 128;

/// Bytes of a peer's name, which stands in logs, metrics and reasons.
pub const MAX_NAME_BYTES: usize = 256;
/// Bytes of a transport's blob.
pub const MAX_BLOB_BYTES: usize = 256 << 10;

/// Which half of the pair an endpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Computes the prompt and writes.
    Prefill,
    /// Asks, and owns the landing pages.
    Decode,
}

/// What a rank says of itself first on every connection.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// Must be the other one.
    pub side: Side,
    /// The process and rank as the operator calls them; a new incarnation under the same name replaces the old.
    pub name: String,
    /// Drawn at random when the process starts.
    pub incarnation: u64,
    /// Rank i feeds rank i.
    pub rank: u32,
    /// Tensor-parallel size.
    pub tp_size: u32,
    /// Name of the model.
    pub model: String,
    /// Hash over its configuration and weights.
    pub model_hash: u64,
    /// `v4_fp8`, `v32_fp8`, `bf16`.
    pub kv_dtype: String,
    /// `fp8`, `bf16`.
    pub index_k_dtype: String,
    /// Type of what passes from operation to operation: `f32`, `bf16`. Halves that differ in it give other tokens than one process.
    pub activations: String,
    /// Tokens of a page, by class.
    pub page_sizes: Vec<u32>,
    /// One letter per layer: what kind of attention it has.
    pub layer_schedule: String,
    /// Units, the draft layer's included.
    pub units: u32,
    /// Classes of the arena; the numbers of pages may differ.
    pub classes: Vec<ClassSpec>,
    /// What travels, in the order of the layout.
    pub items: Vec<ItemSpec>,
    /// [`Layout::hash`] as the sender's own code computes it.
    pub layout_hash: u64,
    /// `tcp`, `nixl`, `in_process`.
    pub transport: String,
    /// What that transport needs to reach the sender's memory.
    pub blob: Vec<u8>,
}

impl Hello {
    /// The sender's arena.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        Layout::new(self.classes.clone(), self.items.clone())
    }
}

/// The first difference, as each side has it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error("{field}: ours {ours}, theirs {theirs}")]
pub struct Refusal {
    /// Path of the field in [`Hello`], e.g. `items[7].page_bytes`.
    pub field: String,
    /// The refusing side's value.
    pub ours: String,
    /// The refused side's value.
    pub theirs: String,
}

fn same<T: PartialEq + fmt::Debug>(field: impl fmt::Display, ours: &T, theirs: &T) -> Result<(), Refusal> {
    if ours == theirs {
        return Ok(());
    }
    Err(refusal(field, format!("{ours:?}"), format!("{theirs:?}")))
}

fn refusal(field: impl fmt::Display, ours: impl fmt::Display, theirs: impl fmt::Display) -> Refusal {
    Refusal { field: field.to_string(), ours: ours.to_string(), theirs: theirs.to_string() }
}

fn at_most(field: &str, limit: usize, bytes: usize) -> Result<(), Refusal> {
    if bytes <= limit {
        return Ok(());
    }
    Err(refusal(field, format_args!("at most {limit} bytes"), format_args!("{bytes} bytes")))
}

/// Checks that two ranks can hand requests to each other.
///
/// # Errors
/// The first field that differs. Name, incarnation, page counts and blob are each side's own.
pub fn agree(ours: &Hello, theirs: &Hello) -> Result<(), Refusal> {
    same("protocol", &ours.protocol, &theirs.protocol)?;
    if ours.side == theirs.side {
        return Err(refusal("side", format!("{:?}", ours.side), format!("{:?}, expected the other one", theirs.side)));
    }
    at_most("name", MAX_NAME_BYTES, theirs.name.len())?;
    at_most("blob", MAX_BLOB_BYTES, theirs.blob.len())?;
    same("tp_size", &ours.tp_size, &theirs.tp_size)?;
    same("rank", &ours.rank, &theirs.rank)?;
    same("model", &ours.model, &theirs.model)?;
    same("model_hash", &ours.model_hash, &theirs.model_hash)?;
    same("kv_dtype", &ours.kv_dtype, &theirs.kv_dtype)?;
    same("index_k_dtype", &ours.index_k_dtype, &theirs.index_k_dtype)?;
    same("activations", &ours.activations, &theirs.activations)?;
    same("page_sizes", &ours.page_sizes, &theirs.page_sizes)?;
    same("layer_schedule", &ours.layer_schedule, &theirs.layer_schedule)?;
    same("units", &ours.units, &theirs.units)?;
    same("classes", &ours.classes.len(), &theirs.classes.len())?;
    for (i, (ours, theirs)) in ours.classes.iter().zip(&theirs.classes).enumerate() {
        same(format_args!("classes[{i}].name"), &ours.name, &theirs.name)?;
    }
    same("items", &ours.items.len(), &theirs.items.len())?;
    for (i, (ours, theirs)) in ours.items.iter().zip(&theirs.items).enumerate() {
        same(format_args!("items[{i}].unit"), &ours.unit, &theirs.unit)?;
        same(format_args!("items[{i}].name"), &ours.name, &theirs.name)?;
        same(format_args!("items[{i}].class"), &ours.class, &theirs.class)?;
        same(format_args!("items[{i}].page_bytes"), &ours.page_bytes, &theirs.page_bytes)?;
    }
    same("layout_hash", &ours.layout_hash, &theirs.layout_hash)?;
    same("transport", &ours.transport, &theirs.transport)?;
    let fits = |classes: &[ClassSpec]| Layout::new(classes.to_vec(), theirs.items.clone());
    if let Err(error) = fits(&theirs.classes) {
        return Err(refusal("classes", "an arena that can be addressed", error));
    }
    Ok(())
}

/// Checks a rank's own words before it says them.
///
/// # Errors
/// Fields that contradict each other, or more units than a room counts.
pub fn check_own(hello: &Hello) -> Result<Layout, Refusal> {
    if hello.units == 0 || hello.units > MAX_UNITS {
        return Err(refusal("units", hello.units, format_args!("1 to {MAX_UNITS}")));
    }
    if let Some(item) = hello.items.iter().find(|item| item.unit >= Unit(hello.units)) {
        let given = format_args!("item {} of unit {}", item.name, item.unit);
        return Err(refusal("items", given, format_args!("units below {}", hello.units)));
    }
    let layout = hello.layout().map_err(|error| refusal("items", error, "a layout"))?;
    same("units", &hello.units, &layout.num_units())?;
    same("page_sizes", &hello.page_sizes.len(), &hello.classes.len())?;
    same("layout_hash", &hello.layout_hash, &layout.hash())?;
    at_most("name", MAX_NAME_BYTES, hello.name.len())?;
    Ok(layout)
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;
    use crate::ids::Class;

    /// A small pair's words.
    pub(crate) fn hello(side: Side) -> Hello {
        let class = |name: &str, num_pages| ClassSpec { name: name.into(), num_pages };
        let item =
            |unit, name: &str, class, page_bytes| ItemSpec { unit: Unit(unit), name: name.into(), class, page_bytes };
        let mut hello = Hello {
            protocol: PROTOCOL,
            side,
            name: format!("{side:?} 0"),
            incarnation: 7 + side as u64,
            rank: 1,
            tp_size: 2,
            model: "small".into(),
            model_hash: 99,
            kv_dtype: "v4_fp8".into(),
            index_k_dtype: "fp8".into(),
            activations: "f32".into(),
            page_sizes: vec![256, 128],
            layer_schedule: "WC".into(),
            units: 2,
            classes: vec![class("compressed", 4), class("window", 3)],
            items: vec![
                item(0, "window KV", Class(1), 100),
                item(1, "window KV", Class(1), 100),
                item(1, "CSA index K", Class(0), 132),
            ],
            layout_hash: 0,
            transport: "in_process".into(),
            blob: vec![1, 2],
        };
        hello.layout_hash = hello.layout().unwrap().hash();
        hello
    }

    #[test]
    fn a_missing_class_or_item_is_named() {
        let (ours, mut theirs) = (hello(Side::Decode), hello(Side::Prefill));
        theirs.items.pop();
        assert_eq!(agree(&ours, &theirs).unwrap_err().to_string(), "items: ours 3, theirs 2");
        theirs.classes.pop();
        assert_eq!(agree(&ours, &theirs).unwrap_err().field, "classes");
    }

    #[test]
    fn an_arena_out_of_range_is_refused() {
        let (ours, mut theirs) = (hello(Side::Decode), hello(Side::Prefill));
        let big = |hello: &mut Hello| {
            hello.items[0].page_bytes = 1 << 40;
            hello.layout_hash = 1;
        };
        let mut ours = ours.clone();
        big(&mut ours);
        big(&mut theirs);
        theirs.classes[1].num_pages = u32::MAX;
        assert_eq!(agree(&ours, &theirs).unwrap_err().field, "classes");
    }

    #[test]
    fn long_names_and_blobs_are_refused() {
        let (ours, theirs) = (hello(Side::Decode), hello(Side::Prefill));
        let refused = |theirs: &Hello| agree(&ours, theirs).err().map(|refusal| refusal.to_string());
        let long = |bytes| Hello { name: "x".repeat(bytes), ..theirs.clone() };
        assert_eq!(refused(&long(256)), None);
        assert_eq!(refused(&long(257)).as_deref(), Some("name: ours at most 256 bytes, theirs 257 bytes"));
        let long = |bytes| Hello { blob: vec![0; bytes], ..theirs.clone() };
        assert_eq!(refused(&long(256 << 10)), None);
        assert_eq!(
            refused(&long(1 + (256 << 10))).as_deref(),
            Some("blob: ours at most 262144 bytes, theirs 262145 bytes")
        );
        assert_eq!(check_own(&Hello { name: "x".repeat(257), ..theirs.clone() }).unwrap_err().field, "name");
    }

    #[test]
    fn another_transport_is_refused() {
        let theirs = Hello { transport: "nixl".into(), ..hello(Side::Prefill) };
        let refusal = agree(&hello(Side::Decode), &theirs).unwrap_err();
        assert_eq!(refusal.to_string(), "transport: ours \"in_process\", theirs \"nixl\"");
    }

    #[test]
    fn own_words_must_be_consistent() {
        let mut wrong = hello(Side::Decode);
        wrong.layout_hash ^= 1;
        assert_eq!(check_own(&wrong).unwrap_err().field, "layout_hash");
        let mut wrong = hello(Side::Decode);
        wrong.units = 200;
        assert_eq!(check_own(&wrong).unwrap_err().to_string(), "units: ours 200, theirs 1 to 128");
        let mut wrong = hello(Side::Decode);
        wrong.items[0].unit = Unit(u32::MAX);
        assert_eq!(check_own(&wrong).unwrap_err().field, "items");
    }
}
