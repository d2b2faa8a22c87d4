//! Numbers as the API writes them: whole ones without a fraction, `600` and not `600.0`.

use serde::{Serialize, Serializer};
use serde_json::{Number, Value};

/// Integers up to here are exact in a float.
const EXACT: f64 = 9_007_199_254_740_992.0;

fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < EXACT).then_some(number as i64)
}

/// Writes a number.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
pub fn plain<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match whole(*number) {
        Some(whole) => serializer.serialize_i64(whole),
        None => serializer.serialize_f64(*number),
    }
}

/// Writes a number or null.
#[allow(clippy::ref_option, reason = "the form that serde calls")]
pub fn plain_or_null<S: Serializer>(number: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => plain(number, serializer),
        None => serializer.serialize_none(),
    }
}

/// Writes a document of the core with plain numbers.
pub fn plain_within<T: Serialize, S: Serializer>(document: &T, serializer: S) -> Result<S::Ok, S::Error> {
    let mut value = serde_json::to_value(document).map_err(serde::ser::Error::custom)?;
    make_plain(&mut value);
    value.serialize(serializer)
}

/// Makes all numbers of a document plain.
pub fn make_plain(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(whole) = number.as_f64().and_then(whole) {
                *number = Number::from(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_plain),
        Value::Object(fields) => fields.values_mut().for_each(make_plain),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_no_fraction() {
        #[derive(Serialize)]
        struct Document {
            #[serde(serialize_with = "plain_within")]
            numbers: Value,
            #[serde(serialize_with = "plain_or_null")]
            none: Option<f64>,
            #[serde(serialize_with = "plain_or_null")]
            some: Option<f64>,
        }
        let numbers = serde_json::json!([600.0, {"a": -2.0}, 0.5, 1e300, "2.0", 7]);
        let document = Document { numbers, none: None, some: Some(2.0) };
        let text = serde_json::to_string(&document).expect("JSON");
        assert_eq!(text, r#"{"numbers":[600,{"a":-2},0.5,1e+300,"2.0",7],"none":null,"some":2}"#);
    }
}
