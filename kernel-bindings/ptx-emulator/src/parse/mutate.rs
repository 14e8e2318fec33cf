//! Taking synchronisation out of a text, one statement at a time.
//!
//! A sanitizer is worth what it notices. [`sync_points`] lists every wait, barrier, fence and arrive of a text;
//! [`remove_statement`] yields the text without one of them, in such a form that it still parses: a wait that answers with
//! a predicate becomes "done", an arrive that returns a state becomes a constant state. Line numbers stay what they were.

use super::lex::{Tok, Token, lex};

/// What a synchronising statement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SyncKind {
    /// Waits for copies, a phase of an mbarrier or another grid.
    Wait,
    /// Block or warp barrier.
    Barrier,
    /// Memory or proxy fence.
    Fence,
    /// Arrival at an mbarrier or barrier, or bytes to expect.
    Arrive,
}

/// A synchronising statement of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncPoint {
    /// Line, from 1.
    pub line: u32,
    /// What it does.
    pub kind: SyncKind,
    /// The statement with single blanks, guard included, without its semicolon.
    pub text: String,
    /// Byte range of the statement without its guard, from the opcode up to the semicolon, which is not in it.
    range: (usize, usize),
}

/// Every wait, barrier, fence and arrive, in the order of the text. A text that is not made of tokens has none.
pub fn sync_points(text: &str) -> Vec<SyncPoint> {
    let Ok(tokens) = lex(text) else { return Vec::new() };
    let mut points = Vec::new();
    let mut at = 0;
    while at < tokens.len() && tokens[at].kind != Tok::Eof {
        if is(&tokens, at, b'{') || is(&tokens, at, b'}') || is(&tokens, at, b';') {
            at += 1;
            continue;
        }
        if tokens[at].kind == Tok::Ident && is(&tokens, at + 1, b':') {
            at += 2;
            continue;
        }
        // A statement or directive: up to its semicolon, braces of vectors included; a directive with a body (an entry)
        // ends at the brace that opens it.
        let start = at;
        let directive = tokens[at].kind == Tok::Dot;
        while at < tokens.len()
            && tokens[at].kind != Tok::Eof
            && !is(&tokens, at, b';')
            && !(directive && is(&tokens, at, b'{'))
        {
            at += 1;
        }
        if !directive && is(&tokens, at, b';') {
            points.extend(sync_point(text, &tokens[start..at]));
        }
    }
    points
}

fn is(tokens: &[Token], at: usize, punct: u8) -> bool {
    tokens.get(at).is_some_and(|token| token.kind == Tok::Punct(punct))
}

fn word<'a>(text: &'a str, token: &Token) -> &'a str {
    text.get(token.start as usize..token.end as usize).unwrap_or_default()
}

/// Tokens before the opcode: `@p`, `@!p`.
fn guard_len(tokens: &[Token]) -> usize {
    match (is(tokens, 0, b'@'), is(tokens, 1, b'!')) {
        (true, true) => 3,
        (true, false) => 2,
        _ => 0,
    }
}

/// The opcode with its modifiers, and how many tokens it takes.
fn opcode(text: &str, tokens: &[Token]) -> (String, usize) {
    let mut name = tokens.first().map(|token| word(text, token).to_owned()).unwrap_or_default();
    let mut len = 1;
    for token in tokens.iter().skip(1).take_while(|token| token.kind == Tok::Dot) {
        name.push_str(word(text, token));
        len += 1;
    }
    (name, len)
}

fn kind_of(opcode: &str) -> Option<SyncKind> {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| opcode.starts_with(prefix));
    if starts(&["bar.arrive", "barrier.arrive", "barrier.cta.arrive", "bar.cta.arrive", "barrier.cluster.arrive"])
        || starts(&["mbarrier.arrive", "mbarrier.expect_tx", "mbarrier.complete_tx", "cp.async.mbarrier.arrive"])
    {
        Some(SyncKind::Arrive)
    } else if starts(&["cp.async.wait_", "cp.async.bulk.wait_group", "mbarrier.test_wait", "mbarrier.try_wait"])
        || starts(&["griddepcontrol.wait"])
    {
        Some(SyncKind::Wait)
    } else if starts(&["bar.", "barrier."]) {
        Some(SyncKind::Barrier)
    } else if starts(&["fence.", "membar."]) {
        Some(SyncKind::Fence)
    } else {
        None
    }
}

fn sync_point(text: &str, tokens: &[Token]) -> Option<SyncPoint> {
    let body = &tokens[guard_len(tokens).min(tokens.len())..];
    let first = body.first().filter(|token| token.kind == Tok::Ident)?;
    let kind = kind_of(&opcode(text, body).0)?;
    let (from, to) = (tokens.first()?.start as usize, body.last()?.end as usize);
    let statement = text.get(from..to)?.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(SyncPoint { line: first.line, kind, text: statement, range: (first.start as usize, to) })
}

/// `text` without that statement. A point that does not belong to `text` leaves it unchanged.
pub fn remove_statement(text: &str, point: &SyncPoint) -> String {
    let (start, end) = point.range;
    let Some(statement) = text.get(start..end) else { return text.to_owned() };
    let stand_in = stand_in(statement);
    // Lines stay: whatever line ends the statement had follow what stands in for it.
    let lines: String = statement.chars().filter(|c| *c == '\n').collect();
    let tail = &text[end..];
    match stand_in {
        Some(stand_in) => format!("{}{stand_in}{lines}{tail}", &text[..start]),
        None => {
            // The guard goes too: it would guard nothing.
            let start = guard_start(text, start);
            let tail = tail.strip_prefix(';').unwrap_or(tail);
            format!("{}{lines}{tail}", &text[..start])
        }
    }
}

/// Start of the guard in front of the opcode at `start`, or `start`.
fn guard_start(text: &str, start: usize) -> usize {
    let before = text[..start].trim_end();
    let from = before.rfind(['@', ';', '{', '}', ':', '\n']).unwrap_or(0);
    if before.as_bytes().get(from) == Some(&b'@') { from } else { start }
}

/// What must stand in the place of a statement that gives a value: the value that lets the program go on.
fn stand_in(statement: &str) -> Option<String> {
    let tokens = lex(statement).ok()?;
    let (name, len) = opcode(statement, &tokens);
    let operands = statement.get(tokens.get(len)?.start as usize..)?;
    let first = operands.split(',').next()?.trim();
    if name.contains("test_wait") || name.contains("try_wait") {
        return Some(format!("setp.eq.u32 {first}, 0, 0"));
    }
    if name.contains(".red.popc") {
        return Some(format!("mov.u32 {first}, 0"));
    }
    if name.contains(".red.") {
        return Some(format!("setp.ne.u32 {first}, 0, 0"));
    }
    let returns_state = name.starts_with("mbarrier.arrive") && !first.starts_with('[') && first != "_";
    returns_state.then(|| format!("mov.b64 {first}, 0"))
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

    #[test]
    fn every_kind_is_found_where_it_stands() {
        let found: Vec<(u32, SyncKind, String)> =
            sync_points(TEXT).into_iter().map(|p| (p.line, p.kind, p.text)).collect();
        let point = |line, kind, text: &str| (line, kind, text.to_owned());
        assert_eq!(
            found,
            [
                point(12, SyncKind::Fence, "fence.proxy.async.shared::cta"),
                point(13, SyncKind::Barrier, "bar.sync 0"),
                point(14, SyncKind::Arrive, "@!%p1 mbarrier.arrive.shared.b64 %rd1, [%r1]"),
                point(15, SyncKind::Arrive, "mbarrier.arrive.shared.b64 _, [%r1]"),
                point(17, SyncKind::Wait, "mbarrier.try_wait.parity.shared.b64 p, [%r1], 0"),
                point(20, SyncKind::Barrier, "@%p3 bar.warp.sync -1"),
                point(21, SyncKind::Wait, "cp.async.wait_group 0"),
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

    #[test]
    fn values_stand_in_where_the_program_reads_them() {
        let without = |line: u32| {
            let point = sync_points(TEXT).into_iter().find(|p| p.line == line).expect("a point on that line");
            remove_statement(TEXT, &point).lines().nth(line as usize - 1).expect("the line").to_owned()
        };
        assert_eq!(without(14), "\t@!%p1 mov.b64 %rd1, 0;");
        assert!(without(17).contains("{ .reg .pred p; setp.eq.u32 p, 0, 0; selp.u32"), "{}", without(17));
        assert_eq!(without(20).trim(), "", "a guard must not be left over");
        assert_eq!(without(13).trim(), "");
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
