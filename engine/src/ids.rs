//! Numbers that must not be confused with one another.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A page of a pool; the same page in every layer.
    PageId(u32)
}
id! {
    /// One admission of one request: whoever was given a page. Pages keep the number of the admission that filled them, so
    /// that a page in other hands is told apart; 0 is nobody's.
    Generation(u64)
}
id! {
    /// A slot of a pool that is not paged: the compressor rings of a running request.
    SlotIndex(u32)
}
id! {
    /// Place of a token in its sequence, from 0.
    Position(u32)
}
id! {
    /// A request; ids ascend in order of arrival and are not used twice.
    SequenceId(u64)
}
id! {
    /// An entry of the vocabulary.
    TokenId(u32)
}
