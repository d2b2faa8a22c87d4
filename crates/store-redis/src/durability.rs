//! What a crash or a failover of these servers can lose, in plain words.

use std::collections::BTreeMap;

use redis::{Value, from_redis_value_ref};

use crate::error::OpenError;
use crate::inner::Inner;
use crate::memory::line;

/// The oldest version that has what the scripts need.
const OLDEST: u64 = 7;

/// What the servers are set to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durability {
    /// What a crash or a failover can lose, one sentence each; empty if nothing.
    pub losses: Vec<String>,
    /// What could not be found out.
    pub unknown: Vec<String>,
}

impl Durability {
    /// Whether every acknowledged write survives whatever happens to one server.
    pub fn is_durable(&self) -> bool {
        self.losses.is_empty() && self.unknown.is_empty()
    }
}

/// Settings of one server, as far as it tells.
type Config = BTreeMap<String, String>;

fn major(info: &str) -> Option<u64> {
    // Valkey answers with a version of Redis that it is like, for those who look only there.
    let version = line(info, "valkey_version").or_else(|| line(info, "redis_version"))?;
    version.split('.').next()?.parse().ok()
}

impl Durability {
    fn add(&mut self, config: Option<&Config>, info: &str, wait: usize) {
        let replicas: usize = line(info, "connected_slaves").and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        match config.and_then(|config| Some((config.get("appendonly")?, config.get("appendfsync")?))) {
            None => self.tell_unknown("whether writes are on disk before they are acknowledged"),
            Some((append, _)) if append == "no" => {
                self.tell_loss("appendonly is off: a crash of the server loses everything since its last snapshot");
            }
            Some((_, sync)) if sync == "everysec" => {
                self.tell_loss("appendfsync is everysec: a power cut loses up to one second of acknowledged writes");
            }
            Some((_, sync)) if sync == "no" => {
                self.tell_loss(
                    "appendfsync is no: a power cut loses what the system has not written out, half a minute or more",
                );
            }
            Some(_) => {}
        }
        if replicas > 0 && wait == 0 {
            self.tell_loss(
                "replicas follow asynchronously: a failover loses writes that they do not have yet \
                 (wait_replicas=1 in the address makes that unlikely)",
            );
        } else if replicas > 0 {
            // Another replica than the one that was waited for may become the master, and whoever asks again for what was
            // not acknowledged is told that it is there.
            self.tell_loss(
                "replicas follow asynchronously: a failover can still lose writes, though each was waited for",
            );
        }
        if let Some(least) = config.and_then(|config| config.get("min-replicas-to-write"))
            && replicas > 0
            && least == "0"
        {
            self.tell_loss(
                "min-replicas-to-write is 0: a master that is cut off goes on acknowledging writes that a failover loses",
            );
        }
    }

    fn tell_loss(&mut self, sentence: &str) {
        if !self.losses.iter().any(|told| told == sentence) {
            self.losses.push(sentence.to_owned());
        }
    }

    fn tell_unknown(&mut self, what: &str) {
        if !self.unknown.iter().any(|told| told == what) {
            self.unknown.push(what.to_owned());
        }
    }
}

impl Inner {
    /// Looks at how the servers are set up.
    pub(crate) async fn durability(&self) -> Result<Durability, OpenError> {
        let unreachable = |failure: crate::error::Failure| OpenError::Unreachable(failure.reason);
        for info in self.info("server").await.map_err(unreachable)? {
            match major(&info) {
                Some(major) if major < OLDEST => {
                    return Err(OpenError::Unsafe(format!(
                        "the server has version {major}; at least {OLDEST} is needed"
                    )));
                }
                Some(_) | None => {}
            }
        }
        let infos = self.info("replication").await.map_err(unreachable)?;
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg("appendonly").arg("appendfsync").arg("maxmemory").arg("maxmemory-policy");
        get.arg("min-replicas-to-write");
        // Servers that somebody else runs may not tell.
        let configs = match self.reads.everywhere(&get).await {
            Ok(answers) => answers.iter().map(|answer: &Value| from_redis_value_ref::<Config>(answer).ok()).collect(),
            Err(_) => vec![None; infos.len()],
        };
        let mut durability = Durability::default();
        for (info, config) in infos.iter().zip(&configs) {
            durability.add(config.as_ref(), info, self.wait_replicas);
            let value = |name: &str| config.as_ref().and_then(|config| config.get(name)).map(String::as_str);
            let is_limited = value("maxmemory").is_some_and(|bytes| bytes != "0");
            match value("maxmemory-policy") {
                Some("noeviction") => {}
                Some(policy) if is_limited => {
                    return Err(OpenError::Unsafe(format!(
                        "maxmemory-policy is {policy}: the server would throw tasks away; set it to noeviction"
                    )));
                }
                Some(_) => {}
                None => durability.tell_unknown("whether the server throws keys away when memory is full"),
            }
        }
        if self.options.require_durable && !durability.is_durable() {
            let unknown = durability.unknown.iter().map(|what| format!("it cannot be found out {what}"));
            let reasons: Vec<String> = durability.losses.iter().cloned().chain(unknown).collect();
            return Err(OpenError::Unsafe(reasons.join("; ")));
        }
        Ok(durability)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Config {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn weak_settings_are_told() {
        let always = config(&[("appendonly", "yes"), ("appendfsync", "always"), ("min-replicas-to-write", "0")]);
        let mut durability = Durability::default();
        durability.add(Some(&always), "connected_slaves:0\r\n", 0);
        assert!(durability.is_durable());
        durability.add(Some(&always), "connected_slaves:1\r\n", 0);
        assert_eq!(durability.losses.len(), 2);
        let mut durability = Durability::default();
        durability.add(Some(&always), "connected_slaves:1\r\n", 1);
        assert!(!durability.is_durable(), "another one may become the master");
        let mut durability = Durability::default();
        let weak = config(&[("appendonly", "yes"), ("appendfsync", "everysec")]);
        durability.add(Some(&weak), "connected_slaves:0\r\n", 0);
        assert!(durability.losses[0].contains("one second"));
        durability.add(None, "", 0);
        assert_eq!(durability.unknown.len(), 1);
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(major("redis_version:7.0.15\r\n"), Some(7));
        assert_eq!(major("redis_version:7.2.4\r\nvalkey_version:9.0.0\r\n"), Some(9));
    }
}
