//! Embedding rows, copied once per stream.

use reference::ops::Embed;

use super::HostBuffer;
use super::elements::size;
use super::numbers::s32_at;
use super::rows::for_rows;

pub(super) fn run(args: Embed<'_, HostBuffer>) {
    let row_bytes = args.d as usize * size(args.dtype);
    let (table, ids) = (&args.table.bytes, &args.ids.bytes);
    let copies = args.copies as usize;
    for_rows(&mut args.out.bytes, copies * row_bytes, args.t as usize, copies * row_bytes / 32, |token, out| {
        let id = u32::try_from(s32_at(ids, token)).ok().filter(|&id| id < args.vocab);
        match id {
            Some(id) => {
                let row = &table[id as usize * row_bytes..(id as usize + 1) * row_bytes];
                out.chunks_exact_mut(row_bytes).for_each(|copy| copy.copy_from_slice(row));
            }
            None => out.fill(0),
        }
    });
}
