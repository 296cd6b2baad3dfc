//! Members of a body with the types the imitated server checks.

use serde_json::{Map, Value};

use super::{EngineConfig, Problem, Validation};

pub(super) struct Fields<'a> {
    pub(super) config: &'a EngineConfig,
    pub(super) map: &'a Map<String, Value>,
}

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    pub(super) fn integer(&self, name: &str) -> Result<Option<i64>, Problem> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        // Strings that spell a number and whole floats pass, as they do on the real server.
        let number = value
            .as_i64()
            .or_else(|| {
                value
                    .as_f64()
                    .filter(|f| f.fract() == 0.0)
                    .map(|f| f as i64)
            })
            .or_else(|| value.as_str().and_then(|s| s.parse().ok()));
        let what = if value.is_string() {
            ", unable to parse string as an integer"
        } else {
            ""
        };
        let message = format!("Input should be a valid integer{what}");
        number
            .map(Some)
            .ok_or_else(|| self.mismatch(name, "int_parsing", &message, value))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, Problem> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let message = "Input should be a valid number";
        value
            .as_f64()
            .map(Some)
            .ok_or_else(|| self.mismatch(name, "float_parsing", message, value))
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        let Some(value) = self.get(name) else {
            return Ok(false);
        };
        let message = "Input should be a valid boolean";
        value
            .as_bool()
            .ok_or_else(|| self.mismatch(name, "bool_parsing", message, value))
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(Value::as_str).map(str::to_owned)
    }

    /// A string or a list of strings.
    pub(super) fn strings(&self, name: &str) -> Vec<String> {
        let all = match self.get(name) {
            Some(Value::Array(values)) => values.iter().filter_map(Value::as_str).collect(),
            Some(Value::String(text)) => vec![text.as_str()],
            _ => Vec::new(),
        };
        all.into_iter()
            .filter(|s| !s.is_empty())
            .map(str::to_owned)
            .collect()
    }

    fn mismatch(&self, name: &str, kind: &str, message: &str, value: &Value) -> Problem {
        let input = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        let loc = format!("body.{name}");
        let validation = Validation {
            kind,
            loc: &loc,
            message,
            input: &input,
            context: None,
        };
        Problem::validation(self.config.vocabulary, &validation)
    }
}
