//! A backend URL, taken apart: one form for all schemes.

use std::{collections::BTreeMap, fmt, time::Duration};

use percent_encoding::percent_decode_str;
use url::Url;

use crate::{Error, ErrorKind, Result};

/// A backend URL, taken apart: `scheme://[user[:password]@]host[:port][,host[:port]...]/path?option=value`.
///
/// User, password and path are percent-decoded. The options are taken out one by one with [`take`](Self::take);
/// [`finish`](Self::finish) refuses those that nobody took, so that a misspelt option is an error and not a silent
/// default. Neither `Debug` nor any error shows the password or the value of an option.
#[derive(Clone)]
pub struct BackendUrl {
    scheme: String,
    user: Option<String>,
    password: Option<String>,
    hosts: Vec<Host>,
    path: String,
    options: BTreeMap<String, String>,
}

/// One server of a [`BackendUrl`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Host {
    /// Name or address; an IPv6 address stands in brackets.
    pub name: String,
    /// The port, where the URL names one.
    pub port: Option<u16>,
}

impl BackendUrl {
    /// Takes a URL apart.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for what is no URL, without repeating it (it may hold a password), and for an option that is
    /// given twice.
    pub fn parse(text: &str) -> Result<Self> {
        let singles = split_hosts(text)
            .iter()
            .map(|single| Url::parse(single).map_err(|cause| invalid("not a URL").with_source(cause)))
            .collect::<Result<Vec<Url>>>()?;
        let Some(first) = singles.first() else { return Err(invalid("not a URL")) };
        let mut options = BTreeMap::new();
        for (key, value) in first.query_pairs() {
            if options.insert(key.clone().into_owned(), value.into_owned()).is_some() {
                return Err(invalid(format!("option {key:?} is given twice")));
            }
        }
        if first.fragment().is_some() {
            return Err(invalid("a `#` in a password or path is written %23"));
        }
        Ok(Self {
            scheme: first.scheme().to_owned(),
            user: (!first.username().is_empty()).then(|| decoded(first.username())).transpose()?,
            password: first.password().map(decoded).transpose()?,
            hosts: singles
                .iter()
                .filter_map(|url| Some(Host { name: url.host_str()?.to_owned(), port: url.port() }))
                .filter(|host| !host.name.is_empty())
                .collect(),
            path: decoded(first.path())?,
            options,
        })
    }

    /// The scheme, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The user name.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password: a secret.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// The servers, in the order in which they are named.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The path with its leading slash, or the empty text.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Takes the value of an option out.
    pub fn take(&mut self, option: &str) -> Option<String> {
        self.options.remove(option)
    }

    /// Takes an option out that is a duration such as `10s`, `1500ms` or `2m 30s`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` when the value is no duration.
    pub fn take_duration(&mut self, option: &str) -> Result<Option<Duration>> {
        self.take(option)
            .map(|value| {
                humantime::parse_duration(&value).map_err(|cause| {
                    invalid(format!("option {option:?} is not a duration")).with_source(cause)
                })
            })
            .transpose()
    }

    /// Takes an option out that is one of a few words.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`, listing the words, when the value is none of them.
    pub fn take_word<T: Copy>(&mut self, option: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some(value) = self.take(option) else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == value) {
            Some((_, meaning)) => Ok(Some(*meaning)),
            None => {
                let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                Err(invalid(format!("option {option:?} is one of {}", known.join(", "))))
            }
        }
    }

    /// Ends the taking.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`, naming the first option that nobody took.
    pub fn finish(self) -> Result<()> {
        match self.options.keys().next() {
            None => Ok(()),
            Some(unknown) => Err(invalid(format!("{}: has no option {unknown:?}", self.scheme))),
        }
    }
}

impl fmt::Debug for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Taken apart in full, so that a new field must decide here whether it is a secret.
        let Self { scheme, user, password, hosts, path, options } = self;
        f.debug_struct("BackendUrl")
            .field("scheme", scheme)
            .field("user", user)
            .field("password", &password.as_ref().map(|_| "***"))
            .field("hosts", hosts)
            .field("path", path)
            .field("options", &options.keys())
            .finish()
    }
}

/// One URL per host of `scheme://user@h1:1,h2:2/path`, which is the usual form of a cluster but no standard URL.
fn split_hosts(text: &str) -> Vec<String> {
    let Some((scheme, rest)) = text.split_once("://") else { return vec![text.to_owned()] };
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(authority_end);
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), authority),
    };
    hosts.split(',').map(|host| format!("{scheme}://{login}{host}{tail}")).collect()
}

fn decoded(text: &str) -> Result<String> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(invalid("percent-encoded text that is not UTF-8")),
    }
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidConfig, "parse backend URL").with_message(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_url_comes_apart() {
        let mut url =
            BackendUrl::parse("etcd://me:s%40cret@h1:2379,h2,[::1]:9/app%20x?ttl=10s&names=raw").unwrap();
        assert_eq!((url.scheme(), url.user(), url.password()), ("etcd", Some("me"), Some("s@cret")));
        let hosts: Vec<(&str, Option<u16>)> =
            url.hosts().iter().map(|host| (&*host.name, host.port)).collect();
        assert_eq!(hosts, [("h1", Some(2379)), ("h2", None), ("[::1]", Some(9))]);
        assert_eq!(url.path(), "/app x");
        assert_eq!(url.take_duration("ttl").unwrap(), Some(Duration::from_secs(10)));
        assert_eq!(url.take_word("names", &[("encoded", 1), ("raw", 2)]).unwrap(), Some(2));
        url.finish().unwrap();
    }

    #[test]
    fn urls_without_a_host_come_apart() {
        assert_eq!(BackendUrl::parse("memory:").unwrap().scheme(), "memory");
        let file = BackendUrl::parse("file:///var/lib/my%20locks").unwrap();
        assert_eq!((file.path(), file.hosts().len()), ("/var/lib/my locks", 0));
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        let secret = "hunter2";
        let unknown = BackendUrl::parse(&format!("etcd://me:{secret}@h/?tttl=1s")).unwrap();
        assert!(!format!("{unknown:?}").contains(secret));
        assert!(unknown.finish().unwrap_err().to_string().contains("\"tttl\""));
        for bad in ["", "etcd", "etcd://h:port/", "etcd://h/?a=1&a=2", "etcd://h/#x"] {
            let error = BackendUrl::parse(&bad.replace("//h", &format!("//me:{secret}@h"))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
            assert!(!format!("{error} {error:?}").contains(secret), "{bad}");
        }
        let mut url = BackendUrl::parse("etcd://h/?ttl=soon&names=odd").unwrap();
        assert!(url.take_duration("ttl").is_err());
        assert!(url.take_word("names", &[("encoded", 1)]).unwrap_err().to_string().contains("encoded"));
    }
}
