//! Addresses of stores as they may be shown: without passwords.

/// What a query parameter is called that has a secret as its value, in part.
const SECRET_WORDS: [&str; 5] = ["password", "passwd", "pwd", "secret", "token"];
/// What stands for a secret.
const MASK: &str = "***";
/// Shorter secrets are not looked for in texts: they would be found everywhere, and guessed anyway.
const SHORTEST_SOUGHT: usize = 3;

/// An address without its secrets: the password before an `@`, and parameters such as `password=…`.
///
/// Passwords may have characters in them that should have been escaped, so in doubt too much is masked.
pub fn masked(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return address.to_owned() };
    let rest = match password_in(rest) {
        Some((user, host)) => format!("{user}:{MASK}@{}", masked_query(host)),
        None => masked_query(rest),
    };
    format!("{scheme}://{rest}")
}

/// What somebody else says about an address, without the secrets of the address.
pub fn scrubbed(text: &str, address: &str) -> String {
    let mut scrubbed = text.replace(address, &masked(address));
    for secret in secrets(address) {
        scrubbed = scrubbed.replace(&secret, MASK);
    }
    scrubbed
}

/// What is before the password and what follows it, if there is one.
fn password_in(rest: &str) -> Option<(&str, &str)> {
    let (credentials, host) = rest.rsplit_once('@')?;
    let (user, _) = credentials.split_once(':')?;
    Some((user, host))
}

fn masked_query(rest: &str) -> String {
    let Some((place, query)) = rest.split_once('?') else { return rest.to_owned() };
    let mask = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={MASK}"),
        _ => pair.to_owned(),
    };
    format!("{place}?{}", query.split('&').map(mask).collect::<Vec<_>>().join("&"))
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// The secrets of an address, as they are in it.
fn secrets(address: &str) -> Vec<String> {
    let Some((_, rest)) = address.split_once("://") else { return Vec::new() };
    let password = rest.rsplit_once('@').and_then(|(credentials, _)| credentials.split_once(':'));
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let parameters = query.split('&').filter_map(|pair| pair.split_once('=')).filter(|(name, _)| is_secret(name));
    let all = password.into_iter().chain(parameters).map(|(_, secret)| secret.to_owned());
    all.filter(|secret| secret.len() >= SHORTEST_SOUGHT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_masked_in_every_kind_of_address() {
        for scheme in ["postgres", "postgresql", "redis", "rediss", "redis+sentinel", "redis+cluster"] {
            for (rest, shown) in [
                ("app:hunter2@db/x", "app:***@db/x"),
                (":hunter2@db:1", ":***@db:1"),
                ("app:hunter2@a:1,b:2/main", "app:***@a:1,b:2/main"),
                ("app:hun@ter/2?@db/x", "app:***@db/x"),
                ("app@db/x", "app@db/x"),
                ("db:5432/x", "db:5432/x"),
                ("db/x?user=app&password=hunter2", "db/x?user=app&password=***"),
                ("db?sslPassword=hunter2&sslmode=require", "db?sslPassword=***&sslmode=require"),
                ("app:hunter2@db?sentinel_password=hunter3", "app:***@db?sentinel_password=***"),
            ] {
                assert_eq!(masked(&format!("{scheme}://{rest}")), format!("{scheme}://{shown}"));
            }
        }
        assert_eq!(masked("sqlite:a@b.db"), "sqlite:a@b.db");
    }

    #[test]
    fn what_others_say_is_scrubbed() {
        let address = "postgres://app:hunter2@db/x?sslpassword=hunter3";
        let told = scrubbed(&format!("cannot parse {address}: 'hunter2' and hunter3 are odd"), address);
        assert!(!told.contains("hunter") && told.contains("postgres://app:***@db/x"), "{told}");
        assert_eq!(scrubbed("no such host", "redis://db"), "no such host");
    }
}
