//! JSON that keeps the order of its keys and is written as the model's training texts have it: a prompt shows the schemas of
//! tools and the arguments of past calls, and another order or spacing is another prompt.

use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use std::fmt;

/// A JSON value. Of equal keys the last counts, at the place of the first.
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number that fits 64 bits or an f64.
    Number(Number),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object, keys as they came.
    Object(Object),
}

/// Fields in the order in which they came.
pub type Object = IndexMap<String, Json>;

impl Json {
    /// The string that it is.
    pub fn as_str(&self) -> Option<&str> {
        if let Json::String(text) = self { Some(text) } else { None }
    }

    /// The truth value that it is.
    pub fn as_bool(&self) -> Option<bool> {
        if let Json::Bool(value) = self { Some(*value) } else { None }
    }

    /// The number that it is.
    pub fn as_number(&self) -> Option<&Number> {
        if let Json::Number(number) = self { Some(number) } else { None }
    }

    /// The whole number from 0 that it is.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_number()?.as_u64()
    }

    /// The number that it is.
    pub fn as_f64(&self) -> Option<f64> {
        self.as_number()?.as_f64()
    }

    /// The array that it is.
    pub fn as_array(&self) -> Option<&Vec<Json>> {
        if let Json::Array(items) = self { Some(items) } else { None }
    }

    /// The object that it is.
    pub fn as_object(&self) -> Option<&Object> {
        if let Json::Object(fields) = self { Some(fields) } else { None }
    }

    /// A field, if it is an object that has it.
    pub fn field(&self, name: &str) -> Option<&Json> {
        self.as_object()?.get(name)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element()? {
            all.push(item);
        }
        Ok(Json::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Json, A::Error> {
        let mut all = Object::new();
        while let Some((key, value)) = fields.next_entry()? {
            all.insert(key, value);
        }
        Ok(Json::Object(all))
    }
}

/// `", "` between items and `": "` behind keys; nothing but what JSON demands is escaped.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(value) => write!(f, "{value}"),
            Json::Number(number) => write!(f, "{number}"),
            Json::String(text) => write!(f, "\"{}\"", escaped(text)),
            Json::Array(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Json::Object(fields) => {
                f.write_str("{")?;
                for (at, (key, value)) in fields.iter().enumerate() {
                    write!(f, "{}\"{}\": {value}", if at == 0 { "" } else { ", " }, escaped(key))?;
                }
                f.write_str("}")
            }
        }
    }
}

/// A text as it stands between the quotes of a JSON string. Texts one after the other may be escaped one by one.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            '\u{8}' => out += "\\b",
            '\u{c}' => out += "\\f",
            c if c < ' ' => out += &format!("\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn read(text: &str) -> Json {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn as_training_texts_have_it() {
        let text =
            r#"{"z":[1,-2,0.00001,1e-7,1.0],"a":{"é🙂":"\u00e9\n\u0001\/\\\""},"e":[],"o":{},"n":null,"t":true}"#;
        let spaced = "{\"z\": [1, -2, 0.00001, 1e-7, 1.0], \"a\": {\"é🙂\": \"é\\n\\u0001/\\\\\\\"\"}, \"e\": [], \"o\": {}, \"n\": null, \"t\": true}";
        assert_eq!(read(text).to_string(), spaced);
        assert_eq!(read(r#"{"a": 1, "b": 2, "a": 3}"#).to_string(), r#"{"a": 3, "b": 2}"#);
    }

    proptest! {
        /// What is written is what was read, and every character that JSON wants escaped is.
        #[test]
        fn written_and_read_again(text in "(\\PC|[\u{0}-\u{1f}\"\\\\]){0,12}", n in any::<i32>()) {
            // Exact as a decimal: the reader rounds long ones differently.
            let number = f64::from(n) / 4.0;
            let value: Value = serde_json::json!({ text.clone(): [text, number] });
            let spaced = read(&value.to_string()).to_string();
            prop_assert_eq!(serde_json::from_str::<Value>(&spaced).unwrap(), value);
        }
    }
}
