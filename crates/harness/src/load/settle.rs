//! Reads the state of the server at quiet moments: every task, and the counters beside it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use crate::checker::{Counts, FinalTask};
use crate::clock::Clock;
use crate::error::HarnessError;
use crate::http::Client;

/// Statuses of tasks that have not ended.
const LIVE: [&str; 4] = ["blocked", "scheduled", "queued", "executing"];
/// How often the drain is looked at.
const DRAIN_LOOK_EVERY: Duration = Duration::from_millis(100);

/// Reads through the API; every call has to succeed.
#[derive(Debug)]
pub struct Reader {
    http: Client,
    patience: Duration,
}

impl Reader {
    /// A reader of one server.
    pub fn new(address: SocketAddr) -> Self {
        Self { http: Client::new(address, Duration::from_secs(30)), patience: Duration::ZERO }
    }

    /// A reader of one server whose store was away a moment ago: it asks again while the server says that it still is.
    pub fn patient(address: SocketAddr, patience: Duration) -> Self {
        Self { patience, ..Self::new(address) }
    }

    async fn get(&mut self, path: &str) -> Result<Vec<u8>, HarnessError> {
        let clock = Clock::start();
        loop {
            match self.http.call("GET", path, b"").await {
                Ok((200, body)) => return Ok(body),
                Ok((503, _)) if clock.elapsed() < self.patience => tokio::time::sleep(DRAIN_LOOK_EVERY).await,
                Ok((status, body)) => {
                    let text = String::from_utf8_lossy(&body).into_owned();
                    return Err(HarnessError::call(format!("GET {path}"), format!("{status} {text}")));
                }
                Err(error) => return Err(HarnessError::call(format!("GET {path}"), error.to_string())),
            }
        }
    }

    async fn get_json(&mut self, path: &str) -> Result<Value, HarnessError> {
        let body = self.get(path).await?;
        serde_json::from_slice(&body).map_err(|error| HarnessError::call(format!("GET {path}"), error.to_string()))
    }

    /// Every task there is.
    pub async fn all_tasks(&mut self) -> Result<Vec<FinalTask>, HarnessError> {
        let mut tasks = Vec::new();
        let mut path = "/api/v1/tasks?limit=1000&include=result".to_owned();
        loop {
            let page = self.get_json(&path).await?;
            let items = page.get("items").and_then(Value::as_array);
            let items = items.ok_or_else(|| HarnessError::call(format!("GET {path}"), "the page has no items"))?;
            for item in items {
                let task = final_task(item);
                tasks.push(task.ok_or_else(|| HarnessError::call(format!("GET {path}"), format!("no task: {item}")))?);
            }
            let Some(cursor) = page.get("next_cursor").and_then(Value::as_str) else { return Ok(tasks) };
            path = format!("/api/v1/tasks?limit=1000&include=result&cursor={cursor}");
        }
    }

    /// Tasks that wait or run, from the statistics.
    pub async fn stats(&mut self) -> Result<(u64, u64), HarnessError> {
        let stats = self.get_json("/api/v1/queue/stats").await?;
        let bands = stats.get("queues").and_then(Value::as_object);
        let bands = bands.ok_or_else(|| HarnessError::call("GET /api/v1/queue/stats", "there is no `queues`"))?;
        let sum = |field: &str| bands.values().filter_map(|band| band.get(field)?.as_u64()).sum();
        Ok((sum("depth"), sum("executing")))
    }

    /// Asks for the same numbers in three ways.
    pub async fn counts(&mut self, moment: &str, settled: bool) -> Result<Counts, HarnessError> {
        let mut listed = BTreeMap::new();
        for task in self.all_tasks().await? {
            *listed.entry(task.status).or_default() += 1;
        }
        let text = String::from_utf8_lossy(&self.get("/metrics").await?).into_owned();
        let metrics = tasks_by_status(&text);
        if metrics.is_empty() {
            return Err(HarnessError::call("GET /metrics", "there is no windlass_tasks{status=…}"));
        }
        let (stats_depth, stats_executing) = self.stats().await?;
        Ok(Counts { moment: moment.to_owned(), settled, listed, metrics, stats_depth, stats_executing })
    }

    /// Waits until every task has ended; answers whether that came within the time.
    pub async fn wait_drained(&mut self, within: Duration) -> Result<bool, HarnessError> {
        let clock = Clock::start();
        let mut empty_looks = 0;
        while clock.elapsed() < within {
            let mut empty = true;
            for status in LIVE {
                let page = self.get_json(&format!("/api/v1/tasks?status={status}&limit=1")).await?;
                empty &= page.get("items").and_then(Value::as_array).is_some_and(Vec::is_empty)
                    && page.get("next_cursor").is_none_or(Value::is_null);
            }
            // A task can hide from one look by changing its status during it.
            empty_looks = if empty { empty_looks + 1 } else { 0 };
            if empty_looks == 2 {
                return Ok(true);
            }
            tokio::time::sleep(DRAIN_LOOK_EVERY).await;
        }
        Ok(false)
    }
}

fn final_task(item: &Value) -> Option<FinalTask> {
    let text = |field: &str| item.get(field).and_then(Value::as_str).map(str::to_owned);
    let number = |field: &str| item.get(field).and_then(Value::as_u64);
    let nonce = item.get("result").and_then(|result| result.get("nonce")).and_then(Value::as_str);
    Some(FinalTask {
        task_id: text("task_id")?,
        key: text("idempotency_key"),
        status: text("status")?,
        attempt: number("attempt")?,
        retry_count: number("retry_count")?,
        crash_count: number("crash_count")?,
        nonce: nonce.map(str::to_owned),
    })
}

/// The gauge `windlass_tasks` by its label `status`.
fn tasks_by_status(metrics: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix("windlass_tasks{") else { continue };
        let Some((labels, value)) = rest.split_once('}') else { continue };
        let status = labels.split(',').find_map(|label| label.trim().strip_prefix("status=\"")?.strip_suffix('"'));
        let value = value.split_whitespace().next().and_then(|value| value.parse::<f64>().ok());
        if let (Some(status), Some(value)) = (status, value) {
            *counts.entry(status.to_owned()).or_default() += value as u64;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn metrics_are_read_by_status() {
        let text = "# TYPE windlass_tasks gauge\nwindlass_tasks{status=\"queued\"} 3\n\
                    windlass_tasks{status=\"completed\"} 12.0 1700000000\nwindlass_tasks_enqueued_total{type=\"x\"} 9\n";
        assert_eq!(tasks_by_status(text), [("queued".to_owned(), 3), ("completed".to_owned(), 12)].into());
        assert!(tasks_by_status("").is_empty());
    }

    #[test]
    fn tasks_are_read_with_and_without_a_result() {
        let mut item = json!({"task_id": "t", "idempotency_key": "k", "status": "completed", "attempt": 1,
            "retry_count": 0, "crash_count": 0, "result": {"nonce": "n"}});
        assert_eq!(final_task(&item).unwrap().nonce.as_deref(), Some("n"));
        item["result"] = Value::Null;
        assert_eq!(final_task(&item).unwrap().nonce, None);
        item["attempt"] = json!("one");
        assert_eq!(final_task(&item), None);
    }
}
