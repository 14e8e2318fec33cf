//! num.
