use super::*;
use crate::pools::PoolSizes;

const PAGE: u32 = 4;

fn text(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().map(|&id| TokenId(id)).collect()
}

/// A cache, pools, and what a sequence would do with them.
struct Fixture {
    cache: PrefixCache,
    pools: Pools,
}

impl Fixture {
    fn new(pages: u32, hash: fn(&[TokenId]) -> u64) -> Self {
        let sizes = PoolSizes { compressed_pages: pages, window_pages: pages, request_slots: 0 };
        Self { cache: PrefixCache::with_hash(PAGE, hash), pools: Pools::new(sizes) }
    }

    /// Computes a text of whole pages and stores every boundary, as a sequence does that runs and ends.
    fn store(&mut self, tokens: &[TokenId]) -> Option<NodeId> {
        let pages = tokens.len() / PAGE as usize;
        let compressed: Vec<_> = (0..pages).map(|_| self.pools.compressed.alloc().unwrap()).collect();
        let mut node = None;
        for n in 1..=pages {
            let window = self.pools.window.alloc().unwrap();
            node = self.cache.insert(node, &tokens[..n * PAGE as usize], &compressed[..n], &window, &mut self.pools);
            self.pools.window.release(window);
        }
        compressed.into_iter().for_each(|page| _ = self.pools.compressed.release(page));
        self.audit();
        node
    }

    fn cached(&mut self, tokens: &[TokenId]) -> u32 {
        let Some(hit) = self.cache.lookup(tokens, tokens.len() as u32, &mut self.pools) else { return 0 };
        assert_eq!(hit.compressed.len() as u32 * PAGE, hit.tokens);
        hit.compressed.into_iter().for_each(|page| _ = self.pools.compressed.release(page));
        self.pools.window.release(hit.window);
        hit.tokens
    }

    /// Drops texts until a compressed page is free again, those that free one first.
    fn evict_compressed(&mut self) -> bool {
        let before = self.pools.compressed.num_free();
        while self.pools.compressed.num_free() == before {
            let Some(leaf) = self.cache.idle_leaf(&self.pools).or(self.cache.oldest_leaf()) else { return false };
            self.cache.drop_node(leaf, &mut self.pools);
        }
        true
    }

    fn evict_window(&mut self) -> bool {
        let window = self.cache.idle_window(&self.pools);
        window.into_iter().for_each(|id| self.cache.drop_node(id, &mut self.pools));
        window.is_some()
    }

    /// Nobody but the cache holds a page.
    fn audit(&self) {
        self.pools.compressed.audit(self.cache.compressed_pages()).unwrap();
        self.pools.window.audit(self.cache.window_pages()).unwrap();
        for (id, node) in &self.cache.nodes {
            assert!(node.children > 0 || node.window.is_some(), "{id:?} is a leaf of no use");
            assert_eq!(node.children == 0, self.cache.leaves.contains(&(node.used, *id)));
            assert_eq!(node.window.is_some(), self.cache.windows.contains(&(node.window_used, *id)));
        }
    }
}

#[test]
fn the_longest_cached_beginning_is_found() {
    let mut f = Fixture::new(8, hash_tokens);
    f.store(&text(&[1, 2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(f.cached(&text(&[1, 2, 3, 4, 5, 6, 7, 8, 9])), 8);
    assert_eq!(f.cached(&text(&[1, 2, 3, 4, 5, 6, 7, 9, 9])), 4);
    assert_eq!(f.cached(&text(&[1, 2, 3])), 0, "no whole page");
    assert_eq!(f.cached(&text(&[5, 6, 7, 8])), 0, "the same tokens elsewhere in the text are another text");
    let limited = f.cache.lookup(&text(&[1, 2, 3, 4, 5, 6, 7, 8]), 7, &mut f.pools).unwrap();
    assert_eq!(limited.tokens, 4, "at least one token is left to run");
}

/// With a hash that knows four values only, the tokens decide.
#[test]
fn equal_hashes_do_not_make_equal_texts() {
    let mut f = Fixture::new(32, |tokens| u64::from(tokens[0].0 % 4));
    f.store(&text(&[1, 0, 0, 0, 2, 0, 0, 0]));
    assert_eq!(f.store(&text(&[5, 0, 0, 0, 2, 0, 0, 0])), None, "its place is taken");
    assert_eq!(f.cached(&text(&[5, 0, 0, 0, 2, 0, 0, 0])), 0);
    assert_eq!(f.cached(&text(&[1, 0, 0, 0, 6, 0, 0, 0])), 4);
    assert_eq!(f.cached(&text(&[1, 0, 0, 0, 2, 0, 0, 0])), 8);
    f.audit();
}

#[test]
fn the_least_recently_used_leaf_goes_first() {
    let mut f = Fixture::new(4, hash_tokens);
    let (a, b) = (text(&[1, 1, 1, 1, 2, 2, 2, 2]), text(&[1, 1, 1, 1, 3, 3, 3, 3]));
    f.store(&a);
    f.store(&b);
    assert_eq!((f.cached(&a), f.cache.len()), (8, 3));
    assert!(f.evict_compressed());
    f.audit();
    assert_eq!((f.cached(&a), f.cached(&b)), (8, 4), "b's own page, used longer ago, went");
    assert!(f.evict_compressed() && f.evict_compressed());
    assert!(!f.evict_compressed(), "nothing is left");
    assert_eq!((f.cache.is_empty(), f.pools.compressed.num_free(), f.pools.window.num_free()), (true, 4, 4));
}

#[test]
fn a_node_without_its_window_is_a_step_on_the_way() {
    let mut f = Fixture::new(8, hash_tokens);
    let long = text(&[1, 1, 1, 1, 2, 2, 2, 2]);
    f.store(&long);
    assert!(f.evict_window(), "of the first page: stored longer ago");
    f.audit();
    assert_eq!((f.cached(&long), f.cached(&long[..4]), f.cache.len()), (8, 0, 2));
    f.store(&long[..4]);
    assert_eq!((f.cached(&long[..4]), f.cache.len()), (4, 2), "computed again, it has a window page again");
    while f.evict_window() {
        f.audit();
    }
    assert!(f.cache.is_empty(), "without any window page no text can be resumed");
    assert_eq!(f.pools.compressed.num_free(), 8);
}

/// Pages that a sequence uses are not freed by eviction, and do not keep the pages of others from being freed.
#[test]
fn pages_in_use_survive() {
    let mut f = Fixture::new(4, hash_tokens);
    let long = text(&[1, 1, 1, 1, 2, 2, 2, 2]);
    f.store(&long);
    let hit = f.cache.lookup(&long, 8, &mut f.pools).unwrap();
    assert_eq!(f.cache.evictable_compressed(&f.pools), 0);
    assert_eq!(f.cache.evictable_windows(&f.pools), 1, "of the first page, which the hit does not need");
    assert!(f.evict_window());
    assert!(!f.evict_window());
    let (first, last) = (hit.compressed[0].id(), hit.compressed[1].id());
    assert!(!f.evict_compressed(), "nothing becomes free");
    assert!(!f.pools.compressed.is_free(first) && !f.pools.compressed.is_free(last));
    f.pools.window.audit([&hit.window]).unwrap();
    f.pools.compressed.audit(&hit.compressed).unwrap();
}

/// A sequence that goes on after its path was evicted stores the whole path again.
#[test]
fn an_evicted_parent_is_stored_again() {
    let mut f = Fixture::new(8, hash_tokens);
    let long = text(&[1, 1, 1, 1, 2, 2, 2, 2]);
    let node = f.store(&long[..4]);
    f.cache.clear(&mut f.pools);
    let compressed: Vec<_> = (0..2).map(|_| f.pools.compressed.alloc().unwrap()).collect();
    let window = f.pools.window.alloc().unwrap();
    assert!(f.cache.insert(node, &long, &compressed, &window, &mut f.pools).is_some());
    assert_eq!((f.cached(&long), f.cached(&long[..4])), (8, 0));
}
