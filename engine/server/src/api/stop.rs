//! Stop strings in a text that comes in pieces.

/// Looks for stop strings. Held back is only what may still become one: the longest end of the text that a stop string begins
/// with. A text stops where the first stop string is complete, and is cut at that string's beginning (of several that end
/// there, the longest), so that the result does not depend on the pieces.
#[derive(Debug, Clone, Default)]
pub struct StopScanner {
    stops: Vec<String>,
    held: String,
}

impl StopScanner {
    /// Looks for these; empty strings are ignored.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(), held: String::new() }
    }

    /// The text that can be handed out, and whether it stops there.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held += text;
        let ends = self.stops.iter().filter_map(|stop| self.held.find(stop).map(|start| (start + stop.len(), start)));
        if let Some((_, start)) = ends.min() {
            let mut out = std::mem::take(&mut self.held);
            out.truncate(start);
            return (out, true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// Whether nothing is held back.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// What was held back: the text ended first.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest end of `text` that is a beginning of `stop`, but not all of it.
pub(super) fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    // In valid UTF-8 an end that equals a cut character does not exist.
    let fits = |len: &usize| text.as_bytes().ends_with(&stop.as_bytes()[..*len]);
    (1..=longest).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Character by character: stops as soon as the text ends with a stop string.
    fn plain(text: &str, stops: &[String]) -> (String, bool) {
        let mut seen = String::new();
        for c in text.chars() {
            seen.push(c);
            let longest = stops.iter().filter(|stop| !stop.is_empty() && seen.ends_with(*stop)).map(String::len).max();
            if let Some(len) = longest {
                seen.truncate(seen.len() - len);
                return (seen, true);
            }
        }
        (seen, false)
    }

    fn in_pieces(pieces: &[&str], stops: &[String]) -> (String, bool, usize) {
        let mut scanner = StopScanner::new(stops);
        let (mut out, mut most) = (String::new(), 0);
        for piece in pieces {
            let (text, stopped) = scanner.push(piece);
            out += &text;
            if stopped {
                assert_eq!(scanner.finish(), "", "nothing is left behind a stop");
                return (out, true, most);
            }
            most = most.max(scanner.held.len());
        }
        (out + &scanner.finish(), false, most)
    }

    #[test]
    fn held_back_is_what_may_become_a_stop_string() {
        let mut scanner = StopScanner::new(&["###".to_owned(), "é!".to_owned()]);
        assert_eq!(scanner.push("a#"), ("a".into(), false));
        assert_eq!(scanner.push("#b"), ("##b".into(), false));
        assert_eq!(scanner.push("##c##"), ("##c".into(), false));
        assert_eq!(scanner.push("é"), ("##".into(), false));
        assert_eq!(scanner.push("?é"), ("é?".into(), false));
        assert_eq!(scanner.finish(), "é");
        assert_eq!(scanner.push("1é!2"), ("1".into(), true));
        assert_eq!(StopScanner::new(&[String::new()]).push("ab"), ("ab".into(), false));
    }

    #[test]
    fn the_first_complete_one_counts() {
        let stops = ["xaby".to_owned(), "ab".to_owned(), "b".to_owned()];
        assert_eq!(StopScanner::new(&stops).push("..xaby"), ("..x".into(), true), "ab and b end first, ab is longer");
    }

    proptest! {
        #[test]
        fn the_same_at_every_border(
            text in "[abé#🙂]{0,24}",
            stops in proptest::collection::vec("[abé#🙂]{0,4}", 0..4),
            cuts in proptest::collection::vec(0usize..25, 0..8),
        ) {
            let (expected, stopped) = plain(&text, &stops);
            let chars: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let mut borders: Vec<usize> = cuts.iter().map(|cut| chars[cut % chars.len()]).chain([0, text.len()]).collect();
            borders.sort_unstable();
            let pieces: Vec<&str> = borders.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let (out, found, held) = in_pieces(&pieces, &stops);
            prop_assert_eq!((&out, found), (&expected, stopped));
            let longest = stops.iter().map(String::len).max().unwrap_or(0);
            prop_assert!(held <= longest.saturating_sub(1));
            let (whole, found, _) = in_pieces(&[&text], &stops);
            prop_assert_eq!((whole, found), (expected, stopped));
        }
    }
}
