//! The description of the API is about the API that is served.

mod common;

use common::{Client, start};
use serde_json::Value;

#[tokio::test]
async fn every_described_operation_is_served() {
    let server = start().await;
    let mut client = Client::new(&server).await;
    let document = client.get("/openapi.json").await.ok(200);
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")), "{}", document["openapi"]);
    let mut operations = 0;
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("operations").keys() {
            let filled = path.replace("{id}", "nonsense").replace("{name}", "q").replace("{type}", "t");
            let filled = filled.replace("{scope}", "type").replace("{verb}", "auto");
            let answer = client.call(&method.to_uppercase(), &filled, b"").await;
            let code = answer.body["code"].as_str().unwrap_or_default();
            assert!(!matches!(code, "not_found" | "method_not_allowed"), "{method} {path}: {}", answer.text);
            assert!(answer.status < 500, "{method} {path}: {}", answer.text);
            operations += 1;
        }
    }
    assert!(operations >= 50, "{operations}");
}

#[tokio::test]
async fn every_reference_leads_somewhere() {
    let document = serde_json::to_value(windlass_server::openapi()).expect("JSON");
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(!references.is_empty());
    for reference in references {
        let pointer = reference.strip_prefix('#').expect("a local reference");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn operations_have_names_of_their_own() {
    let document = serde_json::to_value(windlass_server::openapi()).expect("JSON");
    let items = document["paths"].as_object().expect("paths").values();
    let mut names: Vec<_> = items
        .flat_map(|item| item.as_object().expect("operations").values())
        .map(|operation| operation["operationId"].as_str().expect("a name").to_owned())
        .collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

fn collect<'a>(value: &'a Value, references: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            references.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|value| collect(value, references));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, references)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
