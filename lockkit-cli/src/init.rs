//! `lockkit init`: sets up a store that needs this once.

use lockkit::backend::BackendUrl;

use crate::{
    args::{InitArguments, StoreArguments},
    exit::{Failure, USAGE, say},
    store::Store,
};

/// Sets the store up; a store that is already set up does not change.
pub(crate) async fn init(arguments: InitArguments) -> Result<u8, Failure> {
    let InitArguments { url, password_file } = arguments;
    let store = Store::from(&StoreArguments { backend: url, password_file, ..StoreArguments::default() })?;
    say(set_up(&store).await?);
    Ok(0)
}

/// Sets the store up; returns the message for the user.
async fn set_up(store: &Store) -> Result<&'static str, Failure> {
    let url = BackendUrl::parse(store.url())?;
    match url.scheme() {
        #[cfg(feature = "redis")]
        lockkit::redis::SCHEME_REDLOCK | lockkit::redis::SCHEME_REDLOCK_TLS => {
            use lockkit::redis::{RedlockConfig, SetUp, init};
            match init(&RedlockConfig::from_url(without_client(url)?)?).await? {
                SetUp::Done => Ok("the store is set up"),
                _ => Ok("the store is already set up; nothing has changed"),
            }
        }
        scheme => {
            // Fails for a kind of store that does not exist, or is not in this build.
            let _ = lockkit::builder(store.url())?;
            Err(Failure::new(USAGE, format!("{scheme}: needs no set-up: its locks can be used at once")))
        }
    }
}

/// Removes the options of clients, so that the same URL works for all commands.
#[cfg(feature = "redis")]
fn without_client(mut url: BackendUrl) -> Result<BackendUrl, Failure> {
    lockkit::ClientOptions::take_from(&mut url)?;
    Ok(url)
}
