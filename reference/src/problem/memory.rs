//! Contents of operands, and how they get to an implementation and back.

use super::{BEFORE, Bytes, Fill};
use crate::ops::{Ops, OpsError};

/// Contents of one operand: pieces at their offsets, the rest undefined.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Name in reports.
    pub label: &'static str,
    /// Size in bytes.
    pub len: u64,
    /// What is defined, by offset. Pieces do not overlap.
    pub pieces: Vec<(u64, Vec<u8>)>,
}

/// Above this size the undefined part is never filled: virtual pools.
const LARGE: u64 = 256 << 20;

impl Memory {
    /// Memory that is defined everywhere.
    pub fn full(label: &'static str, bytes: Vec<u8>) -> Memory {
        Memory { label, len: bytes.len() as u64, pieces: vec![(0, bytes)] }
    }

    /// Memory of which nothing is defined yet.
    pub fn undefined(label: &'static str, len: u64) -> Memory {
        Memory { label, len, pieces: Vec::new() }
    }

    /// Defines `bytes` at `offset`; a piece that continues the last one is joined to it.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        match self.pieces.last_mut() {
            Some((start, last)) if *start + last.len() as u64 == offset => last.extend_from_slice(bytes),
            _ => self.pieces.push((offset, bytes.to_vec())),
        }
    }

    /// All bytes, undefined ones as 0xff (0 in very large memory).
    pub fn image(&self) -> Bytes {
        let mut image = vec![if self.len > LARGE { 0 } else { 0xff }; self.len as usize];
        for (offset, bytes) in &self.pieces {
            image[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
        }
        image
    }

    /// Allocates and fills a buffer.
    pub(super) fn load<O: Ops>(&self, ops: &O, fill: Fill) -> Result<O::Buffer, OpsError> {
        let mut buffer = ops.alloc(self.len, self.label)?;
        if fill == Fill::Poison && self.len <= LARGE {
            ops.upload(&mut buffer, 0, &self.image())?;
        } else {
            for (offset, bytes) in &self.pieces {
                ops.upload(&mut buffer, *offset, bytes)?;
            }
        }
        Ok(buffer)
    }
}

pub(super) fn output<O: Ops>(ops: &O, label: &str, len: u64) -> Result<O::Buffer, OpsError> {
    let mut buffer = ops.alloc(len, label)?;
    ops.upload(&mut buffer, 0, &vec![BEFORE; len as usize])?;
    Ok(buffer)
}

pub(super) fn fetch<O: Ops>(ops: &O, buffer: &O::Buffer) -> Result<Bytes, OpsError> {
    let mut bytes = vec![0; ops.len_bytes(buffer) as usize];
    ops.download(buffer, 0, &mut bytes)?;
    Ok(bytes)
}
