//! f64 as a number, or in JSON as "inf", "-inf" or "nan" where it is not finite: for `#[serde(with)]`.

use serde::{Deserialize, Deserializer, Serializer, de};

#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Number(f64),
    Name(String),
}

pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.is_finite() || !serializer.is_human_readable() {
        return serializer.serialize_f64(*value);
    }
    serializer.serialize_str(match value {
        value if value.is_nan() => "nan",
        value if *value > 0. => "inf",
        _ => "-inf",
    })
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    if !deserializer.is_human_readable() {
        return f64::deserialize(deserializer);
    }
    match Text::deserialize(deserializer)? {
        Text::Number(value) => Ok(value),
        Text::Name(name) => match name.as_str() {
            "nan" => Ok(f64::NAN),
            "inf" => Ok(f64::INFINITY),
            "-inf" => Ok(f64::NEG_INFINITY),
            _ => Err(de::Error::custom(format_args!("{name:?}: expected a number, \"inf\", \"-inf\" or \"nan\""))),
        },
    }
}
