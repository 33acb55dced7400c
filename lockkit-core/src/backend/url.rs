//! The URL of a backend, in one form for all schemes.

use std::{collections::BTreeMap, fmt, num::NonZeroU16, time::Duration};

use iri_string::{format::ToDedicatedString as _, types::UriStr};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::{Error, ErrorKind, Result};

/// Characters that a URI must not have, but that people write into paths and options. They are taken as if they were
/// percent-encoded; brackets stand for an IPv6 address only.
const TAIL: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// The same in a login.
const LOGIN: &AsciiSet = &TAIL.add(b'@');

/// A parsed backend URL: `scheme://[user[:password]@]host[:port][,host[:port]...]/path?option=value`.
///
/// User, password and path are percent-decoded. [`take`](Self::take) removes the options one by one;
/// [`finish`](Self::finish) refuses the rest, so that a misspelt option is an error and not a silent default. Neither
/// `Debug` nor any error shows the password or the value of an option.
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
    /// Name or address; an IPv6 address has brackets.
    pub name: String,
    /// The port, if the URL has one.
    pub port: Option<u16>,
}

impl Host {
    /// Parses `HOST` or `HOST:PORT`, and returns `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        // Parts of a URL, or several servers.
        if text.contains(['/', '@', '?', '#', ',', ' ']) {
            return None;
        }
        let address_end = text.rfind(']').map_or(0, |bracket| bracket + 1);
        let (name, port) = match text[address_end..].split_once(':') {
            Some((rest, port)) => {
                (&text[..address_end + rest.len()], Some(port.parse::<NonZeroU16>().ok()?.get()))
            }
            None => (text, None),
        };
        Some(Self { name: not_empty(name)?.to_owned(), port })
    }

    /// Returns `HOST:PORT`, with this port if it has none.
    pub fn with_port(&self, default: u16) -> String {
        format!("{}:{}", self.name, self.port.unwrap_or(default))
    }
}

/// `HOST` or `HOST:PORT`.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl BackendUrl {
    /// Parses a URL.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for an invalid URL, which is not repeated in the error (it may contain a password), and for an
    /// option that is given twice.
    pub fn parse(text: &str) -> Result<Self> {
        // A file or a variable may end with a newline.
        let text = text.trim_matches(|letter: char| letter <= ' ').replace(['\t', '\n', '\r'], "");
        let singles = split_hosts(&text);
        let singles = singles.iter().map(|single| single_host(single)).collect::<Result<Vec<&UriStr>>>()?;
        let Some(first) = singles.first() else { return Err(invalid("not a URL")) };
        if first.fragment().is_some() {
            return Err(invalid("a `#` in a password or path must be written %23"));
        }
        let login = first.authority_components().and_then(|authority| authority.userinfo());
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            Some((user, password)) => (not_empty(user), not_empty(password)),
            None => (None, None),
        };
        let mut hosts = Vec::new();
        for authority in singles.iter().filter_map(|single| single.authority_components()) {
            let Some(name) = not_empty(authority.host()) else {
                // An unset variable must not make a cluster smaller. Only `file:///locks` has no host at all.
                if singles.len() > 1 || authority.port().is_some() || authority.userinfo().is_some() {
                    return Err(invalid("a host is missing"));
                }
                continue;
            };
            let port = authority.port().and_then(not_empty).map(str::parse).transpose();
            let port = port.map_err(|_| invalid("a port is a number below 65536"))?;
            hosts.push(Host { name: name.to_owned(), port });
        }
        Ok(Self {
            scheme: first.scheme_str().to_ascii_lowercase(),
            user: user.map(decoded).transpose()?,
            password: password.map(decoded).transpose()?,
            hosts,
            // Without `.` and `..`: they would be part of a prefix.
            path: decoded(first.normalize().to_dedicated_string().path_str())?,
            options: options(first.query_str().unwrap_or_default())?,
        })
    }

    /// Returns the scheme, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the user name.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Returns the password, which is a secret.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Returns the servers in the order of the URL.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Returns the path with its leading slash, or an empty text.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Removes an option and returns its value.
    pub fn take(&mut self, option: &str) -> Option<String> {
        self.options.remove(option)
    }

    /// Removes an option whose value is a duration such as `10s`, `1500ms` or `2m 30s`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` if the value is not a duration.
    pub fn take_duration(&mut self, option: &str) -> Result<Option<Duration>> {
        self.take(option)
            .map(|value| {
                humantime::parse_duration(&value).map_err(|cause| {
                    invalid(format!("option {option:?} is not a duration")).with_source(cause)
                })
            })
            .transpose()
    }

    /// Removes an option whose value is one of a few words, and returns the meaning of the word.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`, listing the words, if the value is another one.
    pub fn take_word<T: Copy>(&mut self, option: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some(value) = self.take(option) else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == value) {
            Some((_, meaning)) => Ok(Some(*meaning)),
            None => {
                let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                Err(invalid(format!("option {option:?} must be one of {}", known.join(", "))))
            }
        }
    }

    /// Checks that no option is left.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`, naming the first option that is left.
    pub fn finish(self) -> Result<()> {
        match self.options.keys().next() {
            None => Ok(()),
            Some(unknown) => Err(invalid(format!("{}: has no option {unknown:?}", self.scheme))),
        }
    }
}

impl fmt::Debug for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Lists all fields, so that a new field needs a decision here whether it is a secret.
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

/// Splits `scheme://user@h1:1,h2:2/path`, the usual form of a cluster but no standard URL, into one URL per host.
fn split_hosts(text: &str) -> Vec<String> {
    let Some((scheme, rest)) = text.split_once("://") else { return vec![escaped(text, TAIL)] };
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(authority_end);
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (escaped(login, LOGIN) + "@", hosts),
        None => (String::new(), authority),
    };
    let tail = escaped(tail, TAIL);
    hosts.split(',').map(|host| format!("{scheme}://{login}{}{tail}", escaped(host, CONTROLS))).collect()
}

fn escaped(text: &str, characters: &'static AsciiSet) -> String {
    utf8_percent_encode(text, characters).to_string()
}

fn single_host(text: &str) -> Result<&UriStr> {
    UriStr::new(text).map_err(|_| invalid("not a URL (a `%` in a password or path must be written %25)"))
}

fn not_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Reads the options of a query, in the encoding of HTML forms.
fn options(query: &str) -> Result<BTreeMap<String, String>> {
    let mut options = BTreeMap::new();
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let key = decoded(&key.replace('+', " "))?;
        let value = decoded(&value.replace('+', " "))?;
        if options.insert(key.clone(), value).is_some() {
            return Err(invalid(format!("option {key:?} is given twice")));
        }
    }
    Ok(options)
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
    fn cluster_url_is_parsed() {
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
    fn urls_without_a_host_are_parsed() {
        assert_eq!(BackendUrl::parse("memory:").unwrap().scheme(), "memory");
        let file = BackendUrl::parse("file:///var/lib/my%20locks").unwrap();
        assert_eq!((file.path(), file.hosts().len()), ("/var/lib/my locks", 0));
    }

    #[test]
    fn server_is_host_and_port() {
        for (text, default) in
            [("h", "h:9"), ("h:1", "h:1"), ("[::1]", "[::1]:9"), ("[fe80::1%lo]:65535", "[fe80::1%lo]:65535")]
        {
            let host = Host::parse(text).unwrap();
            assert_eq!((host.to_string(), host.with_port(9)), (text.to_owned(), default.to_owned()));
        }
        let malformed = [
            "",
            ":1",
            "h:",
            "h:port",
            "h:0",
            "h:65536",
            "::1",
            "[::1]:",
            "me:secret@h:1",
            "h/x",
            "h?x",
            "h#x",
            "h x",
            "h1,h2",
        ];
        for text in malformed {
            assert_eq!(Host::parse(text), None, "{text}");
        }
    }

    #[test]
    fn login_and_path_may_have_characters_that_a_uri_must_not() {
        let (password, path) = (r#"a:b@c,d^e|f`g{h}i[j]k\l<m>n"o p"#, "/x^y|z");
        let url = BackendUrl::parse(&format!("redis://me:{password}@h1:1,h2{path}")).unwrap();
        assert_eq!((url.user(), url.password(), url.path()), (Some("me"), Some(password), path));
        let hosts: Vec<&str> = url.hosts().iter().map(|host| &*host.name).collect();
        assert_eq!(hosts, ["h1", "h2"]);
    }

    #[test]
    fn scheme_may_be_in_capitals_and_empty_parts_count_as_none() {
        let url = BackendUrl::parse("ETCD://:@h:/").unwrap();
        assert_eq!((url.scheme(), url.user(), url.password()), ("etcd", None, None));
        assert_eq!(url.hosts(), [Host { name: "h".into(), port: None }]);
    }

    #[test]
    fn white_space_around_a_url_and_dots_in_its_path_are_dropped() {
        let mut url = BackendUrl::parse(" etcd://h:/a/../b/./c?label=one+two\r\n").unwrap();
        assert_eq!(url.hosts(), [Host { name: "h".into(), port: None }]);
        assert_eq!(url.take("label").as_deref(), Some("one two"));
        assert_eq!(url.path(), "/b/c");
    }

    /// As if a variable was not set.
    #[test]
    fn missing_host_is_an_error_unless_the_url_names_no_server() {
        for bad in [
            "etcd://:2379/",
            "etcd://h1,:2379/",
            "etcd://h1,,h2/",
            "etcd://h1,/",
            "etcd://me@/",
            "etcd://me:secret@h1,,h2/",
        ] {
            let error = BackendUrl::parse(bad).unwrap_err().to_string();
            assert!(error.contains("a host is missing"), "{bad}: {error}");
        }
    }

    #[test]
    fn errors_name_the_mistake_and_no_secret() {
        let secret = "hunter2";
        let unknown = BackendUrl::parse(&format!("etcd://me:{secret}@h/?tttl=1s")).unwrap();
        assert!(!format!("{unknown:?}").contains(secret));
        assert!(unknown.finish().unwrap_err().to_string().contains("\"tttl\""));
        for bad in [
            "",
            "etcd",
            "etcd://h:port/",
            "etcd://h:65536/",
            "etcd://h/%4",
            "etcd://h/%ff",
            "etcd://h/?a=1&a=2",
            "etcd://h/#x",
        ] {
            let error = BackendUrl::parse(&bad.replace("//h", &format!("//me:{secret}@h"))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
            assert!(!format!("{error} {error:?}").contains(secret), "{bad}");
        }
        let mut url = BackendUrl::parse("etcd://h/?ttl=soon&names=odd").unwrap();
        assert!(url.take_duration("ttl").is_err());
        assert!(url.take_word("names", &[("encoded", 1)]).unwrap_err().to_string().contains("encoded"));
    }
}
