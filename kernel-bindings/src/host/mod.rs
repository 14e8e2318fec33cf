//! The operations on the host, f32 with rayon.
