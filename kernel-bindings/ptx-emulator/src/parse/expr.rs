//! Constant expressions: integers of 64 bits and floating-point literals.

use super::cursor::Cursor;
use super::error::{ParseError, ParseErrorKind};
use super::lex::{Tok, int_value};

/// A constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Const {
    /// 64 bits; `unsigned` as the ISA's rules for constant expressions have it.
    Int { bits: u64, unsigned: bool },
    /// `0f`, with its exact bits.
    F32(u32),
    /// `0d` or a decimal literal.
    F64(f64),
}

impl Const {
    const fn signed(value: i64) -> Const {
        Const::Int { bits: value as u64, unsigned: false }
    }
}

/// Deepest nesting of parentheses, unary operators and conditionals.
const MAX_DEPTH: u32 = 64;

/// Binary operators with their precedence, longest spelling first.
const OPERATORS: [(&str, u32); 18] = [
    ("||", 1),
    ("&&", 2),
    ("==", 6),
    ("!=", 6),
    ("<=", 7),
    (">=", 7),
    ("<<", 8),
    (">>", 8),
    ("|", 3),
    ("^", 4),
    ("&", 5),
    ("<", 7),
    (">", 7),
    ("+", 9),
    ("-", 9),
    ("*", 10),
    ("/", 10),
    ("%", 10),
];

impl<'a> Cursor<'a> {
    /// True if the next token can start a constant expression.
    pub(crate) fn at_constant(&self) -> bool {
        match self.peek() {
            Tok::Int | Tok::Float | Tok::HexF32 | Tok::HexF64 => true,
            Tok::Punct(b'!') => self.peek_at(1) != Tok::Ident,
            Tok::Punct(b) => matches!(b, b'-' | b'+' | b'~' | b'('),
            Tok::Ident => self.text() == "WARP_SZ",
            _ => false,
        }
    }

    /// A whole constant expression.
    pub(crate) fn constant(&mut self) -> Result<Const, ParseError> {
        self.conditional(0)
    }

    /// An integer constant expression as a signed number.
    pub(crate) fn constant_int(&mut self, what: &str) -> Result<i64, ParseError> {
        let at = self.pos();
        match self.constant()? {
            Const::Int { bits, .. } => Ok(bits as i64),
            _ => Err(self.error_at(at, ParseErrorKind::Syntax, format!("{what}: expected an integer constant"))),
        }
    }

    /// An integer constant in `0..=max`.
    pub(crate) fn constant_u32(&mut self, what: &str) -> Result<u32, ParseError> {
        let at = self.pos();
        let value = self.constant_int(what)?;
        u32::try_from(value).map_err(|_| {
            self.error_at(at, ParseErrorKind::Syntax, format!("{what}: expected 0 to {}, got {value}", u32::MAX))
        })
    }

    /// The number in `name<count>`, where `>` is no operator.
    pub(crate) fn register_count(&mut self) -> Result<u32, ParseError> {
        let at = self.pos();
        match self.unary(0)? {
            Const::Int { bits, .. } if bits <= u64::from(u32::MAX) => Ok(bits as u32),
            _ => Err(self.error_at(at, ParseErrorKind::Syntax, "register count: expected a 32-bit number".into())),
        }
    }

    fn conditional(&mut self, depth: u32) -> Result<Const, ParseError> {
        let test = self.binary(0, depth)?;
        if self.peek() != Tok::Punct(b'?') {
            return Ok(test);
        }
        self.check_depth(depth)?;
        let at = self.pos();
        self.bump();
        let yes = self.conditional(depth + 1)?;
        self.expect(b':', "constant expression")?;
        let no = self.conditional(depth + 1)?;
        match test {
            Const::Int { bits, .. } => Ok(if bits != 0 { yes } else { no }),
            _ => Err(self.error_at(at, ParseErrorKind::Syntax, "constant expression: `?` needs an integer".into())),
        }
    }

    fn operator(&self) -> Option<(&'static str, u32)> {
        if !matches!(self.peek(), Tok::Punct(_)) {
            return None;
        }
        let rest = self.rest();
        OPERATORS.iter().copied().find(|(op, _)| rest.starts_with(op))
    }

    fn binary(&mut self, min: u32, depth: u32) -> Result<Const, ParseError> {
        let mut left = self.unary(depth)?;
        while let Some((op, precedence)) = self.operator().filter(|(_, p)| *p > min) {
            self.check_depth(depth)?;
            let at = self.pos();
            for _ in 0..op.len() {
                self.bump();
            }
            let right = self.binary(precedence, depth + 1)?;
            left = apply(op, left, right).map_err(|m| self.error_at(at, ParseErrorKind::Syntax, m))?;
        }
        Ok(left)
    }

    fn check_depth(&self, depth: u32) -> Result<(), ParseError> {
        if depth < MAX_DEPTH {
            return Ok(());
        }
        Err(self.error(ParseErrorKind::Syntax, format!("constant expression: nested deeper than {MAX_DEPTH}")))
    }

    fn unary(&mut self, depth: u32) -> Result<Const, ParseError> {
        self.check_depth(depth)?;
        let at = self.pos();
        let text = self.text();
        match self.peek() {
            Tok::Punct(op @ (b'-' | b'+' | b'~' | b'!')) => {
                self.bump();
                let value = self.unary(depth + 1)?;
                match (op, value) {
                    (b'+', v) => Ok(v),
                    (b'-', Const::Int { bits, unsigned }) => Ok(Const::Int { bits: bits.wrapping_neg(), unsigned }),
                    (b'-', Const::F64(v)) => Ok(Const::F64(-v)),
                    (b'~', Const::Int { bits, unsigned }) => Ok(Const::Int { bits: !bits, unsigned }),
                    (b'!', Const::Int { bits, .. }) => Ok(Const::signed(i64::from(bits == 0))),
                    _ => Err(self.error_at(
                        at,
                        ParseErrorKind::Syntax,
                        format!("constant expression: `{}` needs an integer", op as char),
                    )),
                }
            }
            Tok::Punct(b'(') => {
                self.bump();
                if self.peek() == Tok::Dot {
                    let cast = self.text();
                    let unsigned = match cast {
                        ".u64" => true,
                        ".s64" => false,
                        _ => {
                            return Err(self.error(
                                ParseErrorKind::Syntax,
                                format!("constant expression: expected the cast .s64 or .u64, got {cast}"),
                            ));
                        }
                    };
                    self.bump();
                    self.expect(b')', "constant expression")?;
                    return match self.unary(depth + 1)? {
                        Const::Int { bits, .. } => Ok(Const::Int { bits, unsigned }),
                        _ => Err(self.error_at(
                            at,
                            ParseErrorKind::Syntax,
                            format!("constant expression: {cast} needs an integer"),
                        )),
                    };
                }
                let value = self.conditional(depth + 1)?;
                self.expect(b')', "constant expression")?;
                Ok(value)
            }
            Tok::Int => {
                self.bump();
                let bits = int_value(text).ok_or_else(|| {
                    self.error_at(at, ParseErrorKind::Syntax, format!("`{text}` is not a 64-bit integer"))
                })?;
                // A literal is .s64 unless it has the U suffix or does not fit.
                Ok(Const::Int { bits, unsigned: text.ends_with('U') || bits > i64::MAX as u64 })
            }
            Tok::HexF32 => {
                self.bump();
                Ok(Const::F32(u32::from_str_radix(&text[2..], 16).unwrap_or(0)))
            }
            Tok::HexF64 => {
                self.bump();
                Ok(Const::F64(f64::from_bits(u64::from_str_radix(&text[2..], 16).unwrap_or(0))))
            }
            Tok::Float => {
                self.bump();
                let value = text.parse().map_err(|_| {
                    self.error_at(at, ParseErrorKind::Syntax, format!("`{text}` is not a floating-point number"))
                })?;
                Ok(Const::F64(value))
            }
            Tok::Ident if text == "WARP_SZ" => {
                self.bump();
                Ok(Const::signed(32))
            }
            _ => Err(self.unexpected("a constant")),
        }
    }
}

fn apply(op: &str, left: Const, right: Const) -> Result<Const, String> {
    let (a, ua, b, ub) = match (left, right) {
        (Const::Int { bits: a, unsigned: ua }, Const::Int { bits: b, unsigned: ub }) => (a, ua, b, ub),
        (Const::F64(a), Const::F64(b)) if matches!(op, "+" | "-" | "*" | "/") => {
            return Ok(Const::F64(match op {
                "+" => a + b,
                "-" => a - b,
                "*" => a * b,
                _ => a / b,
            }));
        }
        _ => return Err(format!("constant expression: `{op}` needs two integers or two decimal numbers")),
    };
    let unsigned = ua || ub;
    let (sa, sb) = (a as i64, b as i64);
    let truth = |t: bool| Ok(Const::signed(i64::from(t)));
    let less = |x: u64, y: u64| if unsigned { x < y } else { (x as i64) < (y as i64) };
    let bits = match op {
        "||" => return truth(a != 0 || b != 0),
        "&&" => return truth(a != 0 && b != 0),
        "==" => return truth(a == b),
        "!=" => return truth(a != b),
        "<" => return truth(less(a, b)),
        ">" => return truth(less(b, a)),
        "<=" => return truth(!less(b, a)),
        ">=" => return truth(!less(a, b)),
        "|" => a | b,
        "^" => a ^ b,
        "&" => a & b,
        "+" => a.wrapping_add(b),
        "-" => a.wrapping_sub(b),
        "*" => a.wrapping_mul(b),
        // Shift counts of 64 and more shift everything out; the result has the type of the left side.
        "<<" => {
            return Ok(Const::Int {
                bits: u32::try_from(b).ok().and_then(|n| a.checked_shl(n)).unwrap_or(0),
                unsigned: ua,
            });
        }
        ">>" => {
            let n = b.min(64) as u32;
            let bits = if ua { a.checked_shr(n).unwrap_or(0) } else { (sa >> n.min(63)) as u64 };
            return Ok(Const::Int { bits, unsigned: ua });
        }
        "/" | "%" if b == 0 => return Err("constant expression: division by zero".into()),
        "/" if unsigned => a / b,
        "%" if unsigned => a % b,
        "/" => sa.wrapping_div(sb) as u64,
        _ => sa.wrapping_rem(sb) as u64,
    };
    Ok(Const::Int { bits, unsigned })
}
