//! `lockkit init`: sets up a store that must be told once that it is new.

use lockkit::backend::BackendUrl;

use crate::{
    args::{InitArguments, StoreArguments},
    exit::{Failure, USAGE, say},
    store::Store,
};

/// Sets the store up; where that was done before, nothing happens.
pub(crate) async fn init(arguments: InitArguments) -> Result<u8, Failure> {
    let InitArguments { url, password_file } = arguments;
    let store = Store::from(&StoreArguments { backend: url, password_file })?;
    set_up(BackendUrl::parse(store.url())?).await?;
    say("the store is set up");
    Ok(0)
}

async fn set_up(url: BackendUrl) -> Result<(), Failure> {
    match url.scheme() {
        #[cfg(feature = "redis")]
        lockkit::redis::SCHEME_REDLOCK | lockkit::redis::SCHEME_REDLOCK_TLS => {
            Ok(lockkit::redis::init(&lockkit::redis::RedlockConfig::from_url(without_client(url)?)?).await?)
        }
        scheme => Err(Failure::new(USAGE, format!("{scheme}: needs no set-up, or is not in this build"))),
    }
}

/// The URL without the options that are about a client, so that one and the same serves for all commands.
#[cfg(feature = "redis")]
fn without_client(mut url: BackendUrl) -> Result<BackendUrl, Failure> {
    url.take_duration("ttl")?;
    url.take("label");
    Ok(url)
}
