//! Rows by number.

use reference::ops::GatherRows;

use super::HostBuffer;
use super::numbers::s32_at;
use super::rows::for_rows;

pub(super) fn run(args: GatherRows<'_, HostBuffer>) {
    let row_bytes = args.row_bytes as usize;
    let (src, rows) = (&args.src.bytes, &args.rows.bytes);
    for_rows(&mut args.out.bytes, row_bytes, args.n as usize, row_bytes / 32, |i, out| {
        match u32::try_from(s32_at(rows, i)).ok().filter(|&row| row < args.num_rows) {
            Some(row) => out.copy_from_slice(&src[row as usize * row_bytes..(row as usize + 1) * row_bytes]),
            None => out.fill(0),
        }
    });
}
