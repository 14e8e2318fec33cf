//! Variables: state space, type, size, initial bytes.

use super::cursor::Cursor;
use super::error::{ParseError, ParseErrorKind};
use super::expr::Const;
use super::inst::{type_name, type_of};
use super::lex::Tok;
use super::module::ModuleState;
use crate::ir::{Space, Type, Variable};

/// Largest variable.
const MAX_VARIABLE: u64 = 1 << 40;
/// Largest initialiser that is kept.
const MAX_INITIALISER: u64 = 64 << 20;
/// Static shared memory that an entry may have.
pub(crate) const MAX_STATIC_SHARED: u64 = 48 * 1024;

impl<'a> ModuleState<'a> {
    /// One variable declaration, with everything that its commas separate.
    pub(crate) fn variable(&mut self, c: &mut Cursor<'a>) -> Result<Vec<(usize, &'a str, Variable)>, ParseError> {
        let mut external = false;
        loop {
            match c.text() {
                ".extern" => external = true,
                ".visible" | ".weak" | ".common" => {}
                _ => break,
            }
            c.bump();
        }
        let space = match c.text() {
            ".global" => Space::Global,
            ".const" => Space::Const,
            ".shared" | ".shared::cta" => Space::Shared,
            ".local" => Space::Local,
            word => {
                let message = format!("directive `{word}` is not supported");
                return Err(c.error(ParseErrorKind::Unsupported, message));
            }
        };
        c.bump();
        let (align, width, ty) = self.declared_type(c)?;
        let mut found = Vec::new();
        loop {
            let at = c.pos();
            let name = c.ident("a variable name")?;
            let element = u64::from(ty.bytes()) * u64::from(width);
            let size = array_size(c, element)?;
            let natural = ty.bytes() * width;
            let init = if c.is(b'=') {
                if !matches!(space, Space::Global | Space::Const) {
                    return Err(c.error(
                        ParseErrorKind::Syntax,
                        format!("`{name}`: only .global and .const have initialisers"),
                    ));
                }
                c.bump();
                Some(initialiser(c, name, ty, size)?)
            } else {
                None
            };
            let size = match size {
                Size::Bytes(n) => n,
                Size::Open => match &init {
                    Some(bytes) => bytes.len() as u64,
                    None if external => 0,
                    None => {
                        let message = format!("`{name}[]`: only an .extern array may be unsized");
                        return Err(c.error_at(at, ParseErrorKind::Syntax, message));
                    }
                },
            };
            if external && space != Space::Shared {
                let message = format!("`.extern {name}`: variables of other modules are not supported");
                return Err(c.error_at(at, ParseErrorKind::Unsupported, message));
            }
            if space == Space::Shared && size > MAX_STATIC_SHARED {
                let message = format!("`{name}`: expected at most {MAX_STATIC_SHARED} static shared bytes, got {size}");
                return Err(c.error_at(at, ParseErrorKind::Syntax, message));
            }
            found.push((
                at,
                name,
                Variable { name: name.to_string(), space, align: align.unwrap_or(natural), size, external, init },
            ));
            if !c.eat(b',') {
                break;
            }
        }
        c.expect(b';', "the variable declaration")?;
        Ok(found)
    }

    /// `{.align N} {.vN} .type`
    pub(super) fn declared_type(&self, c: &mut Cursor<'a>) -> Result<(Option<u32>, u32, Type), ParseError> {
        let (mut align, mut width) = (None, 1);
        loop {
            if c.peek() != Tok::Dot {
                return Err(c.unexpected("a type in the declaration"));
            }
            let word = c.text();
            match word {
                ".align" => {
                    c.bump();
                    align = Some(alignment(c)?);
                }
                ".v2" | ".v4" => {
                    c.bump();
                    width = if word == ".v2" { 2 } else { 4 };
                }
                _ => {
                    use Type::*;
                    let ty = type_of(&word[1..]).filter(|t| {
                        matches!(t, B8 | B16 | B32 | B64 | B128 | U8 | U16 | U32 | U64 | S8 | S16 | S32 | S64)
                            || matches!(t, F16 | F16x2 | F32 | F64)
                    });
                    let Some(ty) = ty else {
                        let message = format!("type `{word}` of a variable is not supported");
                        return Err(c.error(ParseErrorKind::Unsupported, message));
                    };
                    if ty.bytes() * width > 16 {
                        let message = format!("a vector of {width} x .{} is longer than 16 bytes", type_name(ty));
                        return Err(c.error(ParseErrorKind::Syntax, message));
                    }
                    c.bump();
                    return Ok((align, width, ty));
                }
            }
        }
    }
}

/// Size of a declared name.
#[derive(Clone, Copy)]
pub(super) enum Size {
    Bytes(u64),
    /// `name[]`, or an open first dimension.
    Open,
}

/// `[a][b]...` after a name, in bytes.
pub(super) fn array_size(c: &mut Cursor<'_>, element: u64) -> Result<Size, ParseError> {
    let mut bytes = element;
    let mut open = false;
    let mut first = true;
    while c.eat(b'[') {
        if first && c.eat(b']') {
            open = true;
        } else {
            let at = c.pos();
            let n = c.constant_int("array size")?;
            c.expect(b']', "the array size")?;
            bytes =
                u64::try_from(n).ok().and_then(|n| bytes.checked_mul(n)).filter(|n| *n <= MAX_VARIABLE).ok_or_else(
                    || {
                        c.error_at(
                            at,
                            ParseErrorKind::Syntax,
                            format!("array size {n}: expected 0 to {MAX_VARIABLE} bytes in all"),
                        )
                    },
                )?;
        }
        first = false;
    }
    Ok(if open { Size::Open } else { Size::Bytes(bytes) })
}

pub(super) fn alignment(c: &mut Cursor<'_>) -> Result<u32, ParseError> {
    let at = c.pos();
    let n = c.constant_u32(".align")?;
    if n.is_power_of_two() && n <= 4096 {
        return Ok(n);
    }
    Err(c.error_at(at, ParseErrorKind::Syntax, format!("`.align {n}`: expected a power of two up to 4096")))
}

/// Bytes of `= value` or `= {value, ...}`.
fn initialiser(c: &mut Cursor<'_>, name: &str, ty: Type, size: Size) -> Result<Vec<u8>, ParseError> {
    let at = c.pos();
    let limit = match size {
        Size::Bytes(n) => n,
        Size::Open => MAX_INITIALISER,
    };
    let mut bytes = Vec::new();
    let mut depth = 0u32;
    loop {
        if c.eat(b'{') {
            depth += 1;
            if !c.eat(b'}') {
                continue;
            }
            depth -= 1;
        } else {
            if c.peek() == Tok::Ident && c.text() != "WARP_SZ" {
                let message = format!("`{name}`: the address of `{}` as initial value is not supported", c.text());
                return Err(c.error(ParseErrorKind::Unsupported, message));
            }
            let value_at = c.pos();
            let bits = match (c.constant()?, ty) {
                (Const::Int { bits, .. }, Type::F32) => u64::from((bits as i64 as f32).to_bits()),
                (Const::Int { bits, .. }, Type::F64) => (bits as i64 as f64).to_bits(),
                (Const::Int { bits, .. }, _) => bits,
                (Const::F32(bits), Type::F32 | Type::B32) => u64::from(bits),
                (Const::F32(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
                (Const::F64(v), Type::F32) => u64::from((v as f32).to_bits()),
                (Const::F64(v), Type::F64 | Type::B64) => v.to_bits(),
                _ => {
                    let message = format!("`{name}`: floating-point value for .{}", type_name(ty));
                    return Err(c.error_at(value_at, ParseErrorKind::Type, message));
                }
            };
            let width = ty.bytes() as usize;
            if width > 8 {
                let message = format!("`{name}`: initialiser of .{} is not supported", type_name(ty));
                return Err(c.error_at(at, ParseErrorKind::Unsupported, message));
            }
            bytes.extend_from_slice(&bits.to_le_bytes()[..width]);
            if bytes.len() as u64 > limit {
                let message = format!("`{name}`: initialiser is longer than its {limit} bytes");
                return Err(c.error_at(value_at, ParseErrorKind::Syntax, message));
            }
        }
        while depth > 0 && c.eat(b'}') {
            depth -= 1;
        }
        if depth == 0 {
            break;
        }
        c.expect(b',', "the initialiser")?;
    }
    if let Size::Bytes(n) = size {
        if n > MAX_INITIALISER {
            let message = format!("`{name}`: initialised variables of {n} bytes are not supported");
            return Err(c.error_at(at, ParseErrorKind::Unsupported, message));
        }
        bytes.resize(n as usize, 0);
    }
    Ok(bytes)
}
