//! Addresses: where Windlass is.

use crate::error::{Error, Result};
use crate::http::Http;
use crate::transport::Transport;

/// Opens what the address names: one or several servers, or a store in this process.
pub(crate) async fn open(address: &str, api_key: Option<&str>) -> Result<Transport> {
    if address.starts_with("sqlite:") {
        return open_store(address).await;
    }
    let addresses: Vec<String> = address.split(',').map(|part| server(part.trim())).collect::<Result<_>>()?;
    Ok(Transport::Http(Http::new(addresses, api_key)?))
}

/// An address without whatever stands before an `@`: it may be a password.
pub(crate) fn masked(address: &str) -> String {
    let mask = |part: &str| match (part.find("://"), part.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => format!("{}://***{}", &part[..scheme], &part[at..]),
        _ => part.to_owned(),
    };
    address.split(',').map(mask).collect::<Vec<_>>().join(",")
}

fn server(address: &str) -> Result<String> {
    let refused = |reason: &str| Err(Error::Address { address: masked(address), reason: reason.to_owned() });
    match address.split_once("://") {
        Some(("http", rest)) => match rest.trim_end_matches('/') {
            "" => refused("it names no host; an address looks like http://127.0.0.1:7070"),
            rest if rest.contains(['/', '?', '#']) => refused("it must end after the port"),
            rest if rest.contains('@') => refused("give the API key apart from the address"),
            rest => Ok(format!("http://{rest}")),
        },
        Some(("https", _)) => refused("this build has no TLS; put a proxy in front of the client, or use http://"),
        _ => refused("it must be http://HOST:PORT, several of these with commas, or sqlite:FOLDER"),
    }
}

#[cfg(feature = "embedded")]
async fn open_store(address: &str) -> Result<Transport> {
    crate::embedded::Embedded::open(address).await.map(Transport::Embedded)
}

#[cfg(not(feature = "embedded"))]
#[allow(clippy::unused_async, reason = "as the other one")]
async fn open_store(address: &str) -> Result<Transport> {
    let reason = "an embedded store needs the feature `embedded` of the windlass crate".to_owned();
    Err(Error::Address { address: address.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_plainly() {
        assert_eq!(server("http://127.0.0.1:7070/").expect("fine"), "http://127.0.0.1:7070");
        for (bad, why) in [
            ("127.0.0.1:7070", "must be http://"),
            ("http://", "names no host"),
            ("http://a:1/api", "after the port"),
            ("http://user:pw@a:1", "API key"),
            ("https://a", "TLS"),
            ("", "must be http://"),
        ] {
            let error = server(bad).expect_err(bad).to_string();
            assert!(error.contains(why) && !error.contains("pw@"), "{error}");
        }
    }

    #[tokio::test]
    async fn several_servers_are_separated_by_commas() {
        let transport = open("http://a:1, http://b:2", None).await.expect("fine");
        assert_eq!(transport.addresses(), ["http://a:1", "http://b:2"]);
    }
}
