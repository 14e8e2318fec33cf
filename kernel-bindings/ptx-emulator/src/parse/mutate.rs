//! Synchronising statements of a text, and the text without one of them: the raw material of a mutation score.
//!
//! A kernel's waits, barriers, fences and arrivals are correct only if each is missed when it is gone. This module
//! finds them by statement, not by instruction of the checked form, so that a mutated text takes the same way through
//! parser and machine as any other. Removing keeps the number of lines: places in reports stay comparable.

use super::lex::{Tok, Token, lex};
use std::ops::Range;

/// What a synchronising statement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SyncKind {
    /// Blocks until something else has happened: `cp.async.wait_*`, `cp.async.bulk.wait_group`, `mbarrier.test_wait`,
    /// `mbarrier.try_wait`, `barrier.cluster.wait`, `griddepcontrol.wait`.
    Wait,
    /// Arrives and waits: `bar.sync`, `bar.red`, `bar.warp.sync` and their `barrier` spellings.
    Barrier,
    /// `fence`, `membar`.
    Fence,
    /// Signals without waiting: `bar.arrive`, `barrier.cluster.arrive`, `mbarrier.arrive`, `.arrive_drop`, `.expect_tx`,
    /// `.complete_tx`, `cp.async.mbarrier.arrive`.
    Arrive,
}

/// One synchronising statement of a text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SyncPoint {
    /// Line of the instruction's name, from 1, as in [`crate::ir::Instruction::line`].
    pub line: u32,
    /// What it does.
    pub kind: SyncKind,
    /// The statement with its guard and without its semicolon, blanks collapsed.
    pub text: String,
    /// Bytes of the statement in the text it was found in, guard and semicolon included.
    pub span: Range<usize>,
}

/// Every synchronising statement of `text`, in order; none if the text cannot be split into tokens.
pub fn sync_points(text: &str) -> Vec<SyncPoint> {
    let Ok(tokens) = lex(text) else { return Vec::new() };
    let source = Source { text, tokens: &tokens };
    (0..tokens.len())
        .filter_map(|at| {
            let statement = source.statement(at)?;
            let kind = source.kind(at)?;
            let span = tokens[statement.start].start as usize..tokens[statement.end - 1].end as usize;
            let words: Vec<&str> = text[span.start..span.end - 1].split_whitespace().collect();
            Some(SyncPoint { line: tokens[at].line, kind, text: words.join(" "), span })
        })
        .collect()
}

/// `text` without the statement `point`, which must come from [`sync_points`] of the same text; otherwise the text comes
/// back unchanged.
///
/// What the statement would have written is written in another way: the predicate of an mbarrier wait becomes true, the
/// result of `bar.red` is that of the thread alone, and the state of an arrival becomes 0 if anything reads it.
pub fn remove_statement(text: &str, point: &SyncPoint) -> String {
    let Ok(tokens) = lex(text) else { return text.to_string() };
    let source = Source { text, tokens: &tokens };
    let found = (0..tokens.len()).find_map(|at| {
        let statement = source.statement(at)?;
        let span = tokens[statement.start].start as usize..tokens[statement.end - 1].end as usize;
        (span == point.span && source.kind(at) == Some(point.kind)).then_some((at, statement))
    });
    let Some((at, statement)) = found else { return text.to_string() };
    let guard = &text[point.span.start..tokens[at].start as usize];
    let mut instead = match source.instead(at, &statement) {
        Some(instruction) => format!("{guard}{instruction}"),
        None => String::new(),
    };
    let lines = |s: &str| s.bytes().filter(|b| *b == b'\n').count();
    let missing = lines(&text[point.span.clone()]).saturating_sub(lines(&instead));
    instead.extend(std::iter::repeat_n('\n', missing));
    format!("{}{instead}{}", &text[..point.span.start], &text[point.span.end..])
}

struct Source<'a> {
    text: &'a str,
    tokens: &'a [Token],
}

impl<'a> Source<'a> {
    fn word(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |t| &self.text[t.start as usize..t.end as usize])
    }

    fn kind_of(&self, at: usize) -> Tok {
        self.tokens.get(at).map_or(Tok::Eof, |t| t.kind)
    }

    /// Tokens of the statement whose instruction name is token `at`, guard and semicolon included; `None` if `at` is no
    /// name of a synchronising instruction.
    fn statement(&self, at: usize) -> Option<Range<usize>> {
        let name = self.kind_of(at) == Tok::Ident
            && self.kind_of(at + 1) == Tok::Dot
            && matches!(self.word(at), "bar" | "barrier" | "cp" | "fence" | "griddepcontrol" | "mbarrier" | "membar");
        if !name {
            return None;
        }
        // `@p` or `@!p` before the name.
        let mut start = at;
        if at >= 2 && self.kind_of(at - 1) == Tok::Ident {
            let bang = usize::from(self.kind_of(at - 2) == Tok::Punct(b'!'));
            if at >= 2 + bang && self.kind_of(at - 2 - bang) == Tok::Punct(b'@') {
                start = at - 2 - bang;
            }
        }
        // A statement follows the end of another, a label, or a directive that ends with its line.
        let fresh = match start.checked_sub(1) {
            None => true,
            Some(before) => {
                matches!(self.kind_of(before), Tok::Punct(b';' | b'{' | b'}' | b':'))
                    || self.tokens[before].line < self.tokens[start].line
            }
        };
        if !fresh {
            return None;
        }
        let length =
            self.tokens[at..].iter().position(|t| matches!(t.kind, Tok::Punct(b';' | b'{' | b'}') | Tok::Eof))?;
        let end = at + length;
        (self.kind_of(end) == Tok::Punct(b';')).then_some(start..end + 1)
    }

    /// Modifiers after the name at `at`, without their dots.
    fn mods(&self, at: usize) -> impl Iterator<Item = &'a str> + '_ {
        (at + 1..).take_while(|i| self.kind_of(*i) == Tok::Dot).map(|i| &self.word(i)[1..])
    }

    fn has(&self, at: usize, word: &str) -> bool {
        self.mods(at).any(|w| w == word)
    }

    fn kind(&self, at: usize) -> Option<SyncKind> {
        let has = |word| self.has(at, word);
        let waits = has("test_wait") || has("try_wait") || has("wait");
        let arrives = has("arrive") || has("arrive_drop") || has("expect_tx") || has("complete_tx");
        match self.word(at) {
            "fence" | "membar" => Some(SyncKind::Fence),
            "griddepcontrol" | "mbarrier" | "barrier" if waits => Some(SyncKind::Wait),
            "mbarrier" | "bar" | "barrier" if arrives => Some(SyncKind::Arrive),
            "bar" | "barrier" if has("sync") || has("red") => Some(SyncKind::Barrier),
            "cp" if has("async") && (has("wait_group") || has("wait_all")) => Some(SyncKind::Wait),
            "cp" if has("async") && has("mbarrier") && has("arrive") => Some(SyncKind::Arrive),
            _ => None,
        }
    }

    /// The instruction that stands in for the removed one; `None` for nothing.
    fn instead(&self, at: usize, statement: &Range<usize>) -> Option<String> {
        let operands = at + 1 + self.mods(at).count();
        let first = self.word(operands);
        if self.kind_of(operands) != Tok::Ident {
            return None;
        }
        match self.word(at) {
            "mbarrier" if self.has(at, "test_wait") || self.has(at, "try_wait") => {
                Some(format!("setp.eq.u32 {first}, 0, 0;"))
            }
            "mbarrier" if first != "_" && self.reads(first, statement) => Some(format!("mov.b64 {first}, 0;")),
            "bar" | "barrier" if self.has(at, "red") => {
                let negated = self.kind_of(statement.end - 3) == Tok::Punct(b'!');
                let own = self.word(statement.end - 2);
                Some(match (self.has(at, "popc"), negated) {
                    (true, false) => format!("selp.u32 {first}, 1, 0, {own};"),
                    (true, true) => format!("selp.u32 {first}, 0, 1, {own};"),
                    (false, false) => format!("mov.pred {first}, {own};"),
                    (false, true) => format!("not.pred {first}, {own};"),
                })
            }
            _ => None,
        }
    }

    /// True if `name` stands anywhere but in `statement` and in `.reg` declarations.
    fn reads(&self, name: &str, statement: &Range<usize>) -> bool {
        let mut declaration = false;
        self.tokens.iter().enumerate().any(|(i, token)| {
            match token.kind {
                Tok::Dot if self.word(i) == ".reg" => declaration = true,
                Tok::Punct(b';') => declaration = false,
                _ => {}
            }
            !declaration && token.kind == Tok::Ident && !statement.contains(&i) && self.word(i) == name
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Module;
    use proptest::prelude::*;

    const TEXT: &str = "\
.version 9.0
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 out)
{
	.reg .pred %p<4>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<4>;
	.shared .align 8 .b8 bars[16];
	mov.u32 %r1, bars; // bar.sync 1;
	mbarrier.init.shared.b64 [%r1], 1;
	fence.proxy.async.shared::cta;
	.loc 1 7 3
	bar.sync 0;
	@!%p1 mbarrier.arrive.shared.b64 %rd1, [%r1];
	mbarrier.arrive.shared.b64 _,
		[%r1];
$L__wait: { .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%r1], 0; selp.u32 %r2, 1, 0, p; }
	setp.eq.s32 %p2, %r2, 0;
	@%p2 bra $L__wait;
	@%p3 bar.warp.sync -1;
	cp.async.wait_group 0;
	ret;
}
";

    fn module(body: &str) -> String {
        format!(
            ".version 9.0\n.target sm_120a\n.address_size 64\n.visible .entry k()\n{{\n.reg .pred %p<4>;\n.reg .b32 %r<9>;\n\
             .reg .b64 %rd<9>;\n.shared .align 8 .b8 s[64];\n{body}\nret;\n}}\n"
        )
    }

    /// Text after removing the only statement; it must still parse.
    fn removed(body: &str) -> String {
        let text = module(body);
        Module::parse(&text).expect("the text parses");
        let points = sync_points(&text);
        assert_eq!(points.len(), 1, "{points:?}");
        let mutated = remove_statement(&text, &points[0]);
        Module::parse(&mutated).expect("the mutated text parses");
        assert_eq!(text.lines().count(), mutated.lines().count());
        let start = text.find(body).expect("the body is there");
        let end = mutated.len() - "\nret;\n}\n".len();
        mutated[start..end].to_string()
    }

    #[test]
    fn every_family_is_found_with_its_kind() {
        use SyncKind::*;
        let cases = [
            ("bar.sync 0;", Barrier),
            ("barrier.sync.aligned 1, 64;", Barrier),
            ("barrier.cta.sync 0;", Barrier),
            ("bar.warp.sync 0xffffffff;", Barrier),
            ("bar.red.popc.u32 %r1, 0, %p1;", Barrier),
            ("bar.arrive 1, 64;", Arrive),
            ("barrier.cluster.arrive.aligned;", Arrive),
            ("barrier.cluster.wait.aligned;", Wait),
            ("cp.async.wait_group 1;", Wait),
            ("cp.async.wait_all;", Wait),
            ("cp.async.bulk.wait_group.read 0;", Wait),
            ("cp.async.mbarrier.arrive.noinc.shared.b64 [s];", Arrive),
            ("mbarrier.arrive.shared.b64 _, [s];", Arrive),
            ("mbarrier.arrive.expect_tx.shared.b64 _, [s], 16;", Arrive),
            ("mbarrier.expect_tx.relaxed.cta.shared.b64 [s], 16;", Arrive),
            ("mbarrier.arrive_drop.shared.b64 _, [s];", Arrive),
            ("mbarrier.try_wait.parity.shared.b64 %p1, [s], 0;", Wait),
            ("mbarrier.test_wait.shared.b64 %p1, [s], %rd1;", Wait),
            ("fence.proxy.async;", Fence),
            ("fence.mbarrier_init.release.cluster;", Fence),
            ("membar.gl;", Fence),
            ("griddepcontrol.wait;", Wait),
        ];
        for (statement, kind) in cases {
            let points = sync_points(&module(statement));
            let found: Vec<(SyncKind, &str)> = points.iter().map(|p| (p.kind, p.text.as_str())).collect();
            assert_eq!(found, [(kind, statement.trim_end_matches(';'))]);
            assert_eq!(points[0].line, 10);
            removed(statement);
        }
    }

    #[test]
    fn other_instructions_of_the_same_names_are_left() {
        for statement in [
            "cp.async.commit_group;",
            "cp.async.bulk.commit_group;",
            "cp.async.ca.shared.global [s], [%rd1], 4;",
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%rd1], 16, [s];",
            "mbarrier.init.shared.b64 [s], 1;",
            "mbarrier.inval.shared.b64 [s];",
            "mbarrier.pending_count.b64 %r1, %rd1;",
            "griddepcontrol.launch_dependents;",
        ] {
            Module::parse(&module(statement)).expect("the text parses");
            assert_eq!(sync_points(&module(statement)), []);
        }
    }

    #[test]
    fn a_wait_becomes_true_and_keeps_its_guard() {
        let body = "mbarrier.try_wait.parity.shared.b64 %p1, [s], %r1, 100;";
        assert_eq!(removed(body), "setp.eq.u32 %p1, 0, 0;");
        let body = "@!%p2 mbarrier.test_wait.shared.b64\n %p1, [s],\n %rd1;";
        assert_eq!(removed(body), "@!%p2 setp.eq.u32 %p1, 0, 0;\n\n");
        assert_eq!(removed("@%p2 bar.sync 0;"), "");
    }

    #[test]
    fn an_inline_wait_loop_falls_through() {
        let body = "{ .reg .pred P; W: mbarrier.try_wait.parity.shared.b64 P, [s], 0; @P bra D; bra W; D: }";
        assert_eq!(removed(body), "{ .reg .pred P; W: setp.eq.u32 P, 0, 0; @P bra D; bra W; D: }");
    }

    #[test]
    fn a_state_is_kept_only_where_it_is_read() {
        assert_eq!(removed("{ .reg .b64 st; mbarrier.arrive.shared.b64 st, [s]; }"), "{ .reg .b64 st;  }");
        let text = module("mbarrier.arrive.shared.b64 %rd1, [s];\nmbarrier.test_wait.shared.b64 %p1, [s], %rd1;");
        let mutated = remove_statement(&text, &sync_points(&text)[0]);
        assert!(mutated.contains("\nmov.b64 %rd1, 0;\nmbarrier.test_wait"), "{mutated}");
        Module::parse(&mutated).expect("the mutated text parses");
    }

    #[test]
    fn a_reduction_keeps_the_threads_own_value() {
        assert_eq!(removed("bar.red.popc.u32 %r1, 0, %p1;"), "selp.u32 %r1, 1, 0, %p1;");
        assert_eq!(removed("bar.red.and.pred %p0, 0, 64, !%p1;"), "not.pred %p0, %p1;");
        assert_eq!(removed("barrier.red.or.aligned.pred %p0, 0, %p1;"), "mov.pred %p0, %p1;");
    }

    #[test]
    fn a_statement_after_a_location_is_found() {
        let text = module(".loc 1 7 3\n\tbar.sync 0;");
        assert_eq!(sync_points(&text)[0].line, 11);
    }

    #[test]
    fn a_foreign_point_changes_nothing() {
        let text = module("bar.sync 0;");
        let mut point = sync_points(&text).remove(0);
        point.span.start += 1;
        assert_eq!(remove_statement(&text, &point), text);
        point.span = usize::MAX - 1..usize::MAX;
        assert_eq!(remove_statement(&text, &point), text);
    }

    #[test]
    fn every_kind_is_found_where_it_stands() {
        let found: Vec<(u32, SyncKind, String)> =
            sync_points(TEXT).into_iter().map(|p| (p.line, p.kind, p.text)).collect();
        let point = |line, kind, text: &str| (line, kind, text.to_owned());
        assert_eq!(
            found,
            [
                point(12, SyncKind::Fence, "fence.proxy.async.shared::cta"),
                point(14, SyncKind::Barrier, "bar.sync 0"),
                point(15, SyncKind::Arrive, "@!%p1 mbarrier.arrive.shared.b64 %rd1, [%r1]"),
                point(16, SyncKind::Arrive, "mbarrier.arrive.shared.b64 _, [%r1]"),
                point(18, SyncKind::Wait, "mbarrier.try_wait.parity.shared.b64 p, [%r1], 0"),
                point(21, SyncKind::Barrier, "@%p3 bar.warp.sync -1"),
                point(22, SyncKind::Wait, "cp.async.wait_group 0"),
            ]
        );
    }

    #[test]
    fn each_removal_takes_one_statement_and_keeps_the_lines() {
        Module::parse(TEXT).expect("the text parses");
        let points = sync_points(TEXT);
        for point in &points {
            let mutated = remove_statement(TEXT, point);
            Module::parse(&mutated).unwrap_or_else(|e| panic!("without {}: {e}\n{mutated}", point.text));
            assert_eq!(mutated.lines().count(), TEXT.lines().count(), "without {}", point.text);
            let left = sync_points(&mutated);
            assert_eq!(left.len(), points.len() - 1, "without {}", point.text);
            assert!(left.iter().all(|other| other.line != point.line), "without {}", point.text);
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[ -~\n\t]{0,80}|((@p |@!%p1 )?(bar\\.sync|mbarrier\\.arrive|fence)[.a-z]{0,8}[ {};,@!0-9]{0,9}){0,4}") {
            for point in sync_points(&text) {
                let _ = remove_statement(&text, &point);
            }
        }
    }
}
