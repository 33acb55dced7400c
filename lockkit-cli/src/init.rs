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
    say(set_up(BackendUrl::parse(store.url())?).await?);
    Ok(0)
}

/// What has come of it, in words.
async fn set_up(url: BackendUrl) -> Result<&'static str, Failure> {
    match url.scheme() {
        #[cfg(feature = "redis")]
        lockkit::redis::SCHEME_REDLOCK | lockkit::redis::SCHEME_REDLOCK_TLS => {
            use lockkit::redis::{RedlockConfig, SetUp, init};
            match init(&RedlockConfig::from_url(without_client(url)?)?).await? {
                SetUp::Done => Ok("the store is set up"),
                _ => Ok("the store was set up before; nothing has changed"),
            }
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
