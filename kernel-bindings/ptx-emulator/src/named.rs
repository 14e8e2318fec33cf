//! Enums with names, written once.

/// An enum whose variants have stable lower-case names, with `ALL` and `name`.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $ty:ident { $($variant:ident = $name:literal,)* }) => {
        $(#[$meta])*
        pub enum $ty {
            $($variant,)*
        }

        impl $ty {
            /// Every one, in the order of declaration.
            pub const ALL: [$ty; [$($name),*].len()] = [$($ty::$variant),*];

            /// Stable lower-case name.
            pub const fn name(self) -> &'static str {
                match self {
                    $($ty::$variant => $name,)*
                }
            }
        }
    };
}

pub(crate) use named;
