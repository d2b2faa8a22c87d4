//! What stands in the brackets of `#[task(…)]`.

use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Ident, LitFloat, LitInt, LitStr, Path, Token, parenthesized};

/// The arguments of the attribute.
#[derive(Default)]
pub struct Arguments {
    /// The task type.
    pub name: Option<LitStr>,
    /// Earlier types.
    pub aliases: Vec<LitStr>,
    /// The version of the input.
    pub version: Option<LitInt>,
    /// Turns earlier versions into the present one.
    pub upcast: Option<Path>,
    /// The queue.
    pub queue: Option<LitStr>,
    /// The priority by name.
    pub priority: Option<LitStr>,
    /// Retries.
    pub max_retries: Option<LitInt>,
    /// How long an attempt may take.
    pub timeout_seconds: Option<f64>,
}

const KNOWN: &str = "name, aliases(…), version, upcast, queue, priority, max_retries and timeout_seconds are known";

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut arguments = Self::default();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            if key == "aliases" {
                let names;
                parenthesized!(names in input);
                arguments.aliases.extend(Punctuated::<LitStr, Token![,]>::parse_terminated(&names)?);
            } else {
                input.parse::<Token![=]>()?;
                arguments.set(&key, input)?;
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        for name in &arguments.aliases {
            check_name(name)?;
        }
        if arguments.upcast.is_some() && arguments.version.is_none() {
            return Err(input.error("upcast needs a version: earlier ones are turned into it"));
        }
        Ok(arguments)
    }
}

impl Arguments {
    fn set(&mut self, key: &Ident, input: ParseStream<'_>) -> syn::Result<()> {
        match key.to_string().as_str() {
            "name" => self.name = Some(input.parse()?),
            "version" => self.version = Some(input.parse()?),
            "upcast" => self.upcast = Some(input.parse()?),
            "queue" => self.queue = Some(input.parse()?),
            "priority" => self.priority = Some(input.parse()?),
            "max_retries" => self.max_retries = Some(input.parse()?),
            "timeout_seconds" => {
                let seconds = if input.peek(LitFloat) {
                    input.parse::<LitFloat>()?.base10_parse()?
                } else {
                    input.parse::<LitInt>()?.base10_parse()?
                };
                self.timeout_seconds = Some(seconds);
            }
            _ => return Err(syn::Error::new(key.span(), format!("unknown argument; {KNOWN}"))),
        }
        Ok(())
    }
}

/// The same rule as the server's, where the mistake is made.
pub fn check_name(name: &LitStr) -> syn::Result<()> {
    let text = name.value();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-');
    if text.len() > 128 || !text.starts_with(|c: char| c.is_ascii_alphanumeric()) || !text.chars().all(is_plain) {
        let rule = "a task type is 1 to 128 letters, digits, '.', '_', ':' or '-', and begins with a letter or digit";
        return Err(syn::Error::new(name.span(), rule));
    }
    Ok(())
}
