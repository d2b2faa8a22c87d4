//! Which server is measured. Loopback only: the loader sends as fast as it can, and that belongs to one's own machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::error::HarnessError;

/// The address inside a URL such as `http://127.0.0.1:7070`.
pub fn parse_server(url: &str) -> Result<SocketAddr, HarnessError> {
    let refuse = |why: &str| HarnessError::Argument(format!("--server {url}: {why}"));
    let rest = url.strip_prefix("http://").ok_or_else(|| refuse("must begin with http://"))?;
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let address = match authority.strip_prefix("localhost:") {
        Some(port) => port.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        None => authority.parse().ok(),
    };
    let address = address.ok_or_else(|| refuse("must be an address and a port, as in http://127.0.0.1:7070"))?;
    if !address.ip().is_loopback() {
        return Err(refuse("is not a loopback address; the loader only measures servers on this machine"));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_only() {
        for url in ["http://127.0.0.1:7070", "http://127.9.9.9:1/", "http://[::1]:7070", "http://localhost:7070/"] {
            assert!(parse_server(url).is_ok(), "{url}");
        }
        let refused = [
            "http://10.0.0.1:7070",
            "http://[2001:db8::1]:80",
            "http://example.org:80",
            "https://127.0.0.1:7070",
            "127.0.0.1:7070",
            "http://127.0.0.1",
            "http://127.0.0.1:7070/x",
            "http://localhost:0x10",
            "http://localhost.example.org:80",
        ];
        for url in refused {
            assert!(parse_server(url).is_err(), "{url}");
        }
    }
}
