//! Which server is measured. Loopback only: the benchmark sends as fast as it can, and that belongs to one's own machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The address in a URL such as `http://127.0.0.1:7070`, as a URL again.
pub fn parse(url: &str) -> Result<String, String> {
    let rest = url.strip_prefix("http://").ok_or("must begin with http://")?;
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    let address = match authority.strip_prefix("localhost:") {
        Some(port) => port.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        None => authority.parse().ok(),
    };
    let address = address.ok_or("must be an address and a port, as in http://127.0.0.1:7070")?;
    if !address.ip().is_loopback() {
        return Err("is not on this machine (loopback), and load that is not expected could harm others".to_owned());
    }
    Ok(format!("http://{address}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_only() {
        for url in ["http://127.0.0.1:7070", "http://127.9.9.9:1/", "http://[::1]:7070", "http://localhost:7070/"] {
            assert!(parse(url).is_ok(), "{url}");
        }
        for url in ["http://10.0.0.1:7070", "http://[2001:db8::1]:80", "http://0.0.0.0:7070"] {
            assert!(parse(url).is_err_and(|reason| reason.contains("not on this machine")), "{url}");
        }
        let refused = [
            "http://example.org:80",
            "https://127.0.0.1:7070",
            "127.0.0.1:7070",
            "http://127.0.0.1",
            "http://127.0.0.1:7070/x",
            "http://127.0.0.1:7070@example.org:80",
            "http://localhost:0x10",
            "http://localhost.example.org:80",
            "sqlite:jobs",
        ];
        for url in refused {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
