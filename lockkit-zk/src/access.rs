//! Access control lists of the nodes that clients create.

use lockkit_core::{Error, ErrorKind, Result};
use zookeeper_client::{Acl, AuthId, Permission};

/// The permissions on nodes that clients create: an access control list, in the syntax of ZooKeeper's shell.
///
/// Clients that share locks need all permissions on each other's directories, and read permission on the nodes that
/// they wait for. Each needs `r` and `w` on its own nodes.
///
/// ```
/// use lockkit_zk::Access;
///
/// let access = Access::parse("auth::cdrwa,world:anyone:r")?;
/// assert!(Access::parse("world:anyone").is_err());
/// # Ok::<(), lockkit_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access(Vec<Acl>);

impl Access {
    /// Returns an ACL by which everybody may do everything.
    pub fn open() -> Self {
        Self(vec![Acl::new(Permission::ALL, AuthId::anyone())])
    }

    /// Returns an ACL by which the user who creates a node may do everything with it, others nothing.
    pub fn creator() -> Self {
        Self(vec![Acl::new(Permission::ALL, AuthId::authed())])
    }

    /// Parses a list of `SCHEME:ID:PERMISSIONS`, separated by commas; permissions are letters of `cdrwa`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig` for malformed text.
    pub fn parse(text: &str) -> Result<Self> {
        text.split(',').map(parse_one).collect::<Option<_>>().map(Self).ok_or_else(|| {
            Error::new(ErrorKind::InvalidConfig, "configure zookeeper").with_message(
                "malformed ACL; write a list of SCHEME:ID:PERMISSIONS, with permissions of \"cdrwa\"",
            )
        })
    }

    pub(crate) fn as_acls(&self) -> zookeeper_client::Acls<'_> {
        zookeeper_client::Acls::new(&self.0)
    }
}

fn parse_one(text: &str) -> Option<Acl> {
    // An id may contain colons: that of a digest does.
    let (scheme, rest) = text.trim().split_once(':')?;
    let (id, letters) = rest.rsplit_once(':')?;
    let permission =
        letters.chars().try_fold(Permission::NONE, |sum, letter| Some(sum | permission(letter)?))?;
    (!scheme.is_empty() && permission != Permission::NONE)
        .then(|| Acl::new(permission, AuthId::new(scheme, id)))
}

fn permission(letter: char) -> Option<Permission> {
    Some(match letter {
        'c' => Permission::CREATE,
        'd' => Permission::DELETE,
        'r' => Permission::READ,
        'w' => Permission::WRITE,
        'a' => Permission::ADMIN,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acl_has_the_syntax_of_the_zookeeper_shell() {
        assert_eq!(Access::parse("world:anyone:cdrwa").unwrap(), Access::open());
        assert_eq!(Access::parse("auth::cdrwa").unwrap(), Access::creator());
        let Access(list) = Access::parse("digest:me:aGFzaA==:rw, ip:127.0.0.1:r").unwrap();
        assert_eq!((list[0].scheme(), list[0].id()), ("digest", "me:aGFzaA=="));
        assert_eq!(list[1].permission(), Permission::READ);
    }

    #[test]
    fn each_letter_gives_its_own_permission() {
        for (letter, permission) in [
            ('c', Permission::CREATE),
            ('d', Permission::DELETE),
            ('r', Permission::READ),
            ('w', Permission::WRITE),
            ('a', Permission::ADMIN),
        ] {
            let Access(list) = Access::parse(&format!("world:anyone:{letter}")).unwrap();
            assert_eq!(list[0].permission(), permission, "{letter}");
        }
    }

    #[test]
    fn malformed_acl_is_refused() {
        for bad in
            ["", "world", "world:anyone", "world:anyone:", "world:anyone:x", ":anyone:r", "world:anyone:r,"]
        {
            assert_eq!(Access::parse(bad).unwrap_err().kind(), ErrorKind::InvalidConfig, "{bad:?}");
        }
    }
}
