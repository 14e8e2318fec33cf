//! A deterministic model of hashes. It keeps the caches that the real one keeps, writes and reads them through the
//! arrays of a [`Batch`] alone, and its next token depends on every token of the text through every kind of row: a
//! wrong slot, a page reused too early or a stale cached page gives another text. [`Oracle`] computes the same texts
//! without any cache.

use engine::batch::{Batch, CompletedRows};
use engine::geometry::CacheShape;
use engine::ids::TokenId;
use engine::pools::{PoolSizes, Pools};
use std::collections::HashSet;
use transfer::ids::Class;

/// Tokens of the vocabulary; few, so that stop tokens turn up.
pub(crate) const VOCAB: u64 = 61;

fn mix(a: u64, b: u64) -> u64 {
    let z = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (z >> 32)
}

fn fold(tag: u64, values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(tag, mix)
}

// Tags of what a value stands for.
const ROW: u64 = 1;
const STATE: u64 = 2;
const CSA: u64 = 3;
const HCA: u64 = 4;
const OUT: u64 = 5;

/// Value of the window row of a token behind the row `before`.
fn window_row(before: u64, id: i32) -> u64 {
    fold(ROW, [before, id as u64])
}

fn next_token(window: u64, csa: u64, hca: u64, temperature: f32) -> TokenId {
    TokenId((fold(OUT, [window, csa, hca, u64::from(temperature.to_bits())]) % VOCAB) as u32)
}

/// The text that a request must produce.
pub(crate) struct Oracle {
    shape: CacheShape,
    temperature: f32,
    rows: Vec<u64>,
    csa: u64,
    hca: u64,
}

impl Oracle {
    pub(crate) fn new(shape: CacheShape, temperature: f32) -> Self {
        Self { shape, temperature, rows: Vec::new(), csa: OUT, hca: OUT }
    }

    /// The token behind the text that `id` continues.
    pub(crate) fn step(&mut self, id: TokenId) -> TokenId {
        let before = self.rows.last().copied().unwrap_or(0);
        self.rows.push(window_row(before, id.0 as i32));
        let t = self.rows.len();
        let states = |from: usize| self.rows[from..].iter().map(|&row| mix(STATE, row));
        let CacheShape { csa_ratio, hca_ratio, window, .. } = self.shape;
        if t.is_multiple_of(csa_ratio as usize) {
            self.csa = mix(self.csa, fold(CSA, states(t.saturating_sub(2 * csa_ratio as usize))));
        }
        if t.is_multiple_of(hca_ratio as usize) {
            self.hca = mix(self.hca, fold(HCA, states(t - hca_ratio as usize)));
        }
        let seen = fold(OUT, self.rows[t.saturating_sub(window as usize)..].iter().copied());
        next_token(seen, self.csa, self.hca, self.temperature)
    }
}

/// A pool: what each slot holds, `None` for garbage.
#[derive(Clone)]
struct Cells {
    name: &'static str,
    cells: Vec<Option<u64>>,
    per_page: usize,
    written: HashSet<usize>,
}

impl Cells {
    fn new(name: &'static str, pages: u32, per_page: u32) -> Self {
        let cells = vec![None; (pages * per_page) as usize];
        Self { name, cells, per_page: per_page as usize, written: HashSet::new() }
    }

    fn read(&self, slot: i32) -> u64 {
        let cell = usize::try_from(slot).ok().and_then(|slot| self.cells.get(slot).copied());
        cell.unwrap_or_else(|| panic!("{}: slot {slot} is outside the pool", self.name))
            .unwrap_or_else(|| panic!("{}: slot {slot} is read and was never written", self.name))
    }

    /// Writes a slot that nobody else writes in this step.
    fn write(&mut self, slot: i32, value: u64) {
        assert!(self.written.insert(slot as usize), "{}: slot {slot} has two writers", self.name);
        self.cells[slot as usize] = Some(value);
    }

    fn poison(&mut self, page: u32) {
        let start = page as usize * self.per_page;
        self.cells[start..start + self.per_page].fill(None);
    }
}

/// Rows of a page, pool by pool; `None` for garbage.
pub(crate) type PageRows = Vec<Vec<Option<u64>>>;

/// The caches, and the samples of the step before.
#[derive(Clone)]
pub(crate) struct FakeModel {
    shape: CacheShape,
    window: Cells,
    csa_state: Cells,
    hca_state: Cells,
    csa_rows: Cells,
    hca_rows: Cells,
    samples: Vec<TokenId>,
}

impl FakeModel {
    pub(crate) fn new(shape: CacheShape, sizes: PoolSizes) -> Self {
        let rings = if shape.has_request_slots() { sizes.request_slots } else { sizes.window_pages };
        Self {
            shape,
            window: Cells::new("window rows", sizes.window_pages, shape.window_page_tokens),
            csa_state: Cells::new("CSA state", sizes.window_pages, shape.csa_ring_rows),
            hca_state: Cells::new("HCA state", rings, shape.hca_ring_rows),
            csa_rows: Cells::new("CSA rows", sizes.compressed_pages, shape.csa_rows()),
            hca_rows: Cells::new("HCA rows", sizes.compressed_pages, shape.hca_rows()),
            samples: Vec::new(),
        }
    }

    /// Runs a step; the samples, one per row of logits.
    pub(crate) fn forward(&mut self, batch: &Batch) -> &[TokenId] {
        for cells in
            [&mut self.window, &mut self.csa_state, &mut self.hca_state, &mut self.csa_rows, &mut self.hca_rows]
        {
            cells.written.clear();
        }
        let t = batch.t as usize;
        let window = self.shape.window as usize;
        let rows_seen = |i: usize| batch.window_slots[i * window..][..window].iter().take_while(|&&slot| slot >= 0);
        let mut values = Vec::with_capacity(t);
        for i in 0..t {
            let id = match batch.id_rows[i] {
                -1 => batch.ids[i],
                row => self.samples[row as usize].0 as i32,
            };
            let seen = rows_seen(i).count();
            assert_eq!(seen, window.min(batch.positions[i] as usize + 1), "window of token {i}");
            let before = if seen > 1 { self.window.read(batch.window_slots[i * window + seen - 2]) } else { 0 };
            let value = window_row(before, id);
            self.window.write(batch.window_mapping[i], value);
            values.push(value);
        }
        let Self { shape, csa_state, hca_state, csa_rows, hca_rows, .. } = self;
        let csa_table = StateTable {
            table: &batch.window_table,
            columns: batch.window_columns,
            page_tokens: shape.window_page_tokens,
        };
        compress(
            batch,
            &values,
            &batch.csa,
            2 * shape.csa_ratio,
            CSA,
            csa_state,
            csa_table,
            shape.csa_ring_rows,
            csa_rows,
        );
        let hca_table = StateTable {
            table: &batch.hca_state_table,
            columns: batch.hca_state_columns,
            page_tokens: shape.hca_state_page_tokens(),
        };
        compress(batch, &values, &batch.hca, shape.hca_ratio, HCA, hca_state, hca_table, shape.hca_ring_rows, hca_rows);

        self.samples.clear();
        for i in 0..t {
            // Every token reads, as in the real model; only samples go out.
            let seen = fold(OUT, rows_seen(i).map(|&slot| self.window.read(slot)));
            let (seq, csa, hca) = (batch.seq[i] as usize, batch.csa.num_rows[i], batch.hca.num_rows[i] as usize);
            let per_page = self.shape.csa_rows() as i32;
            let table = &batch.block_table[seq * batch.max_pages as usize..][..batch.max_pages as usize];
            let slot = |row: i32| table[(row / per_page) as usize] * per_page + row % per_page;
            let csa = fold(OUT, (0..csa).map(|row| self.csa_rows.read(slot(row))));
            let listed = &batch.hca_slots[i * batch.hca_width as usize..][..batch.hca_width as usize];
            assert!(listed[hca..].iter().all(|&slot| slot == -1), "HCA list of token {i}");
            let hca = fold(OUT, listed[..hca].iter().map(|&slot| self.hca_rows.read(slot)));
            if let Some(n) = batch.logits_rows.iter().position(|&row| row == i as i32) {
                self.samples.push(next_token(seen, csa, hca, batch.temperature[n]));
            }
        }
        &self.samples
    }

    /// Takes over pages of another model: compressed, window, request.
    pub(crate) fn take_pages(&mut self, other: &FakeModel, from: &[Vec<u32>], to: &[Vec<u32>]) {
        let rings = usize::from(self.shape.has_request_slots()) + 1;
        let pools: [(&mut Cells, &Cells, usize); 5] = [
            (&mut self.csa_rows, &other.csa_rows, 0),
            (&mut self.hca_rows, &other.hca_rows, 0),
            (&mut self.window, &other.window, 1),
            (&mut self.csa_state, &other.csa_state, 1),
            (&mut self.hca_state, &other.hca_state, rings),
        ];
        for (mine, theirs, class) in pools {
            for (&from, &to) in from[class].iter().zip(&to[class]) {
                let (from, to) = (from as usize * mine.per_page, to as usize * mine.per_page);
                mine.cells[to..to + mine.per_page].copy_from_slice(&theirs.cells[from..from + mine.per_page]);
            }
        }
    }

    fn cells_of(&mut self, class: Class) -> Vec<&mut Cells> {
        match class.0 {
            0 => vec![&mut self.csa_rows, &mut self.hca_rows],
            1 if self.shape.has_request_slots() => vec![&mut self.window, &mut self.csa_state],
            1 => vec![&mut self.window, &mut self.csa_state, &mut self.hca_state],
            other => panic!("pages of class {other} are not copied to the host"),
        }
    }

    /// What a page holds, in every pool of its class.
    pub(crate) fn page(&mut self, class: Class, page: u32) -> PageRows {
        let rows = |cells: &mut Cells| cells.cells[page as usize * cells.per_page..][..cells.per_page].to_vec();
        self.cells_of(class).into_iter().map(rows).collect()
    }

    /// Writes a page as [`FakeModel::page`] read it.
    pub(crate) fn set_page(&mut self, class: Class, page: u32, rows: &PageRows) {
        for (cells, rows) in self.cells_of(class).into_iter().zip(rows) {
            cells.cells[page as usize * cells.per_page..][..cells.per_page].copy_from_slice(rows);
        }
    }

    /// Turns a page into garbage.
    pub(crate) fn poison(&mut self, class: Class, page: u32) {
        self.cells_of(class).into_iter().for_each(|cells| cells.poison(page));
    }

    /// Turns the rows of free pages into garbage.
    pub(crate) fn poison_free(&mut self, pools: &Pools) {
        let free = |pages: u32, is_free: &dyn Fn(u32) -> bool| (0..pages).filter(|&p| is_free(p)).collect::<Vec<_>>();
        for page in free(pools.window.num_pages(), &|p| pools.window.is_free(engine::ids::PageId(p))) {
            self.window.poison(page);
            self.csa_state.poison(page);
            if !self.shape.has_request_slots() {
                self.hca_state.poison(page);
            }
        }
        for page in free(pools.compressed.num_pages(), &|p| pools.compressed.is_free(engine::ids::PageId(p))) {
            self.csa_rows.poison(page);
            self.hca_rows.poison(page);
        }
        let slots = if self.shape.has_request_slots() { pools.requests.num_pages() } else { 0 };
        for slot in free(slots, &|p| pools.requests.is_free(engine::ids::PageId(p))) {
            self.hca_state.poison(slot);
        }
    }
}

#[derive(Clone, Copy)]
struct StateTable<'a> {
    table: &'a [i32],
    columns: u32,
    page_tokens: u32,
}

/// One compressor: rows from the tokens of this step and, before them, from the state; then the state of every token.
#[allow(clippy::too_many_arguments)]
fn compress(
    batch: &Batch,
    values: &[u64],
    rows: &CompletedRows,
    pooled: u32,
    tag: u64,
    state: &mut Cells,
    table: StateTable<'_>,
    ring_rows: u32,
    cache: &mut Cells,
) {
    let slot = |seq: i32, position: i32| {
        let page = table.table[seq as usize * table.columns as usize + position as usize / table.page_tokens as usize];
        if page < 0 { -1 } else { page * ring_rows as i32 + position % ring_rows as i32 }
    };
    for (n, &token) in rows.row_tokens.iter().enumerate() {
        let (seq, position) = (batch.seq[token as usize], batch.positions[token as usize]);
        let first_token = batch.cu_seqlens[seq as usize];
        let start = batch.positions[first_token as usize];
        let pooled = (position + 1 - pooled as i32).max(0)..=position;
        let value = fold(
            tag,
            pooled.map(|p| match p >= start {
                true => mix(STATE, values[(first_token + p - start) as usize]),
                false => state.read(slot(seq, p)),
            }),
        );
        let ratio = (position + 1) / rows.num_rows[token as usize];
        assert_eq!(rows.row_positions[n], position + 1 - ratio, "row {n} starts with its window");
        cache.write(rows.slot_mapping[n], value);
    }
    for entry in 0..batch.b as usize {
        let tokens = batch.cu_seqlens[entry]..batch.cu_seqlens[entry + 1];
        let mut own = HashSet::new();
        // Of the tokens of a sequence that share a slot, the last one's state stays.
        for token in tokens.rev() {
            let slot = slot(batch.seq[token as usize], batch.positions[token as usize]);
            if own.insert(slot) {
                state.write(slot, mix(STATE, values[token as usize]));
            }
        }
    }
}
