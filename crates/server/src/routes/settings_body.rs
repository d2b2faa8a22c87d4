//! Bodies of settings: changes that name later features are told so, not that they made a typo.

use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::engine::Engine;
use crate::json_body::{JsonBody, explain_value};
use crate::problem::Problem;

/// A change of settings whose `LATER` fields this version does not have yet.
pub struct SettingsBody<T>(pub T);

/// Fields that a later version will know.
pub trait Later {
    /// Their names, each with the value that says what happens anyway: that one is taken, any other refused.
    const LATER: &'static [(&'static str, &'static str)];
}

impl Later for windlass_core::settings::QueueChange {
    const LATER: &'static [(&'static str, &'static str)] = &[("events", "\"full\"")];
}

impl Later for windlass_core::settings::TypeChange {
    const LATER: &'static [(&'static str, &'static str)] =
        &[("schema", "{}"), ("target", "null"), ("error_rules", "[]")];
}

impl<T: DeserializeOwned + Later> FromRequest<Arc<Engine>> for SettingsBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, engine: &Arc<Engine>) -> Result<Self, Problem> {
        let JsonBody(mut fields) = JsonBody::<Map<String, Value>>::from_request(request, engine).await?;
        for (name, harmless) in T::LATER {
            let given = fields.remove(*name).filter(|value| !value.is_null());
            if given.is_some_and(|value| serde_json::from_str::<Value>(harmless).ok() != Some(value)) {
                return Err(Problem::invalid_field(*name, "is not supported by this version yet"));
            }
        }
        explain_value(Value::Object(fields)).map(Self)
    }
}
