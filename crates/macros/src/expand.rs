//! From an async function to a task.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Error, FnArg, ItemFn, LitStr, ReturnType, Type};

use crate::arguments::{Arguments, check_name};

/// What the function takes, in its order.
enum Parameter<'a> {
    Input(&'a Type),
    Context { by_reference: bool },
}

/// The function, and beside it a type of the same name that is a task.
pub fn expand(arguments: &Arguments, function: &ItemFn) -> syn::Result<TokenStream> {
    let signature = &function.sig;
    if signature.asyncness.is_none() {
        return Err(Error::new(signature.fn_token.span(), "a task is an async function"));
    }
    if !signature.generics.params.is_empty() {
        return Err(Error::new(signature.generics.span(), "a task has one input type: it cannot be generic"));
    }
    let name = &signature.ident;
    let visibility = &function.vis;
    let default_name = LitStr::new(&name.unraw().to_string(), name.span());
    let type_name = arguments.name.as_ref().unwrap_or(&default_name);
    check_name(type_name)?;
    let aliases = &arguments.aliases;
    let version = arguments.version.as_ref().map(|version| quote!(const VERSION: u32 = #version;));
    let upcast = arguments.upcast.as_ref().map(|upcast| {
        quote! {
            fn upcast(
                parameters: ::windlass::__private::Value,
                version: u32,
            ) -> ::windlass::TaskResult<::windlass::__private::Value> {
                #upcast(parameters, version)
            }
        }
    });
    let parameters = parameters(function)?;
    let input = parameters.iter().find_map(|parameter| match parameter {
        Parameter::Input(input) => Some(quote!(#input)),
        Parameter::Context { .. } => None,
    });
    let input = input.unwrap_or_else(|| quote!(()));
    let passed = parameters.iter().map(|parameter| match parameter {
        Parameter::Input(_) => quote!(__input),
        Parameter::Context { by_reference: true } => quote!(&__context),
        Parameter::Context { by_reference: false } => quote!(__context),
    });
    // By its bare name: a task may be declared inside a function, where no path leads.
    let call = quote!(#name(#(#passed),*).await);
    let (output, body) = output(function, &call);
    let options = options(arguments)?;
    let doc = format!("The task of the function [`{name}`](fn@{name}).");
    Ok(quote! {
        // It must be async and own its input whether it needs to or not.
        #[allow(clippy::unused_async, clippy::needless_pass_by_value)]
        #function

        #[doc = #doc]
        #[allow(non_camel_case_types)]
        #[derive(Debug)]
        #visibility enum #name {}

        impl ::windlass::Task for #name {
            const NAME: &'static str = #type_name;
            const ALIASES: &'static [&'static str] = &[#(#aliases),*];
            #version
            type Input = #input;
            type Output = #output;

            #[allow(unused_variables, clippy::unit_arg)]
            async fn run(
                __input: <Self as ::windlass::Task>::Input,
                __context: ::windlass::Context,
            ) -> ::windlass::TaskResult<<Self as ::windlass::Task>::Output> {
                #body
            }

            #upcast
            #options
        }
    })
}

fn parameters(function: &ItemFn) -> syn::Result<Vec<Parameter<'_>>> {
    let mut parameters = Vec::new();
    let (mut inputs, mut contexts) = (0, 0);
    for argument in &function.sig.inputs {
        let FnArg::Typed(argument) = argument else {
            return Err(Error::new(argument.span(), "a task is a free function, not a method"));
        };
        let parameter = match &*argument.ty {
            Type::Reference(reference) if is_named(&reference.elem, "Context") => {
                Parameter::Context { by_reference: true }
            }
            Type::Reference(_) => {
                let message = "the input of a task comes from afar: take it by value";
                return Err(Error::new(argument.ty.span(), message));
            }
            kind if is_named(kind, "Context") => Parameter::Context { by_reference: false },
            kind => Parameter::Input(kind),
        };
        match parameter {
            Parameter::Input(_) => inputs += 1,
            Parameter::Context { .. } => contexts += 1,
        }
        if inputs > 1 || contexts > 1 {
            let message = "a task takes one input and one Context: put several values into a struct";
            return Err(Error::new(argument.span(), message));
        }
        parameters.push(parameter);
    }
    Ok(parameters)
}

fn is_named(kind: &Type, name: &str) -> bool {
    matches!(kind, Type::Path(path) if path.path.segments.last().is_some_and(|segment| segment.ident == name))
}

/// What comes out, and the body that gives it. The type decides, not its name: a `Result` behind an alias is one, too.
fn output(function: &ItemFn, call: &TokenStream) -> (TokenStream, TokenStream) {
    match &function.sig.output {
        ReturnType::Default => (quote!(()), quote!({ #call; ::std::result::Result::Ok(()) })),
        ReturnType::Type(_, kind) => {
            // At the span of the return type, so that the compiler points there.
            let output = quote_spanned!(kind.span()=> <#kind as ::windlass::__private::Outcome>::Value);
            (output, quote!(::windlass::__private::Outcome::into_task_result(#call)))
        }
    }
}

fn options(arguments: &Arguments) -> syn::Result<Option<TokenStream>> {
    let mut setters = Vec::new();
    if let Some(queue) = &arguments.queue {
        setters.push(quote!(.queue(#queue)));
    }
    if let Some(priority) = &arguments.priority {
        let variant = match priority.value().as_str() {
            "critical" => quote!(Critical),
            "high" => quote!(High),
            "medium" => quote!(Medium),
            "low" => quote!(Low),
            "bulk" => quote!(Bulk),
            _ => return Err(Error::new(priority.span(), "it must be critical, high, medium, low or bulk")),
        };
        setters.push(quote!(.priority(::windlass::Priority::#variant)));
    }
    if let Some(retries) = &arguments.max_retries {
        if !(0..=100).contains(&retries.base10_parse::<u32>()?) {
            return Err(Error::new(retries.span(), "it must be from 0 to 100"));
        }
        setters.push(quote!(.max_retries(#retries)));
    }
    if let Some(seconds) = arguments.timeout_seconds {
        setters.push(quote!(.timeout(::std::time::Duration::from_secs_f64(#seconds))));
    }
    if setters.is_empty() {
        return Ok(None);
    }
    Ok(Some(quote! {
        fn options() -> ::windlass::Options {
            ::windlass::Options::default() #(#setters)*
        }
    }))
}
