//! Typed access to the fields of a JSON object, with errors that name the field. `null` is the same as absence.

use super::error::ApiError;
use super::json::{Json, Object};
use std::ops::RangeInclusive;

/// A JSON object somewhere in a body.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    map: &'a Object,
    path: &'a str,
}

/// A value for a message: its JSON, cut where it gets long.
pub fn shown(value: &Json) -> String {
    let text = match value {
        // Printing all of a large value to show its beginning would be waste.
        Json::Array(items) => return format!("an array of {}", items.len()),
        Json::Object(_) => return "an object".to_owned(),
        Json::String(text) => text.chars().take(64).collect::<String>(),
        other => return other.to_string(),
    };
    format!("{:?}{}", text, if value.as_str().is_some_and(|all| all.len() > text.len()) { ".." } else { "" })
}

impl<'a> Fields<'a> {
    /// The fields of a value at `path`, which is empty for the body.
    pub fn of(value: &'a Json, path: &'a str) -> Result<Self, ApiError> {
        let name = if path.is_empty() { "body" } else { path };
        let map = value.as_object().ok_or_else(|| ApiError::field(name, "an object", shown(value)))?;
        Ok(Self { map, path })
    }

    /// Path of a field.
    pub fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// A field that is there and not null.
    pub fn get(&self, field: &str) -> Option<&'a Json> {
        self.map.get(field).filter(|value| **value != Json::Null)
    }

    fn read<T>(
        &self,
        field: &str,
        expected: &str,
        read: impl Fn(&'a Json) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| ApiError::field(&self.name(field), expected, shown(value)))
    }

    /// `true` or `false`.
    pub fn bool(&self, field: &str) -> Result<Option<bool>, ApiError> {
        self.read(field, "true or false", Json::as_bool)
    }

    /// A string.
    pub fn str(&self, field: &str) -> Result<Option<&'a str>, ApiError> {
        self.read(field, "a string", Json::as_str)
    }

    /// An array.
    pub fn array(&self, field: &str) -> Result<Option<&'a Vec<Json>>, ApiError> {
        self.read(field, "an array", Json::as_array)
    }

    /// A whole number.
    pub fn u32(&self, field: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, ApiError> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.read(field, &expected, |value| u32::try_from(value.as_u64()?).ok().filter(|n| range.contains(n)))
    }

    /// A number from 0 that an f32 can hold.
    pub fn from_zero(&self, field: &str) -> Result<Option<f32>, ApiError> {
        let number = |value: &Json| Some(value.as_f64()? as f32).filter(|n| *n >= 0.0 && n.is_finite());
        self.read(field, "a number from 0", number)
    }

    /// Refuses a field unless it has a value that changes nothing.
    pub fn only(&self, field: &str, expected: &str, neutral: impl Fn(&Json) -> bool) -> Result<(), ApiError> {
        let expected = format!("{expected} (nothing else is supported)");
        self.read(field, &expected, |value| neutral(value).then_some(())).map(|_| ())
    }
}
