//! Heartbeats: one read checks the folder and the files of all holds.

use std::sync::Arc;

use lockkit_core::{
    Result,
    backend::{Grant, Renewal, Renewals},
};

use super::FileSession;
use crate::{backend::HEARTBEAT, open_file::FileLocation};

impl FileSession {
    /// Checks these holds. The lifetime of a hold ends only with this process, so there is nothing to renew.
    pub(crate) async fn heartbeat(&self, held: &[Grant]) -> Renewals {
        let armed_at = self.clock.now();
        let renewal = |is_current| if is_current { Renewal::Renewed { armed_at } } else { Renewal::Gone };
        match self.check_files(held).await {
            _ if self.closed.is_cancelled() => Renewals::new(
                Renewal::Gone,
                held.iter().map(|grant| (grant.claim(), Renewal::Gone)).collect(),
            ),
            Ok((folder, holds)) => Renewals::new(
                renewal(folder),
                held.iter()
                    .zip(holds)
                    .map(|(grant, is_current)| {
                        (grant.claim(), is_current.map_or_else(Renewal::Unknown, renewal))
                    })
                    .collect(),
            ),
            Err(error) => Renewals::new(
                Renewal::Unknown(error.clone()),
                held.iter().map(|grant| (grant.claim(), Renewal::Unknown(error.clone()))).collect(),
            ),
        }
    }

    /// Checks whether the folder exists, and whether the file of each hold still has its name.
    async fn check_files(&self, held: &[Grant]) -> Result<(bool, Vec<Result<bool>>)> {
        let locations: Vec<Option<Arc<FileLocation>>> = {
            let holds = self.holds();
            let location =
                |grant: &Grant| holds.get(&grant.claim()).map(|hold| Arc::clone(hold.lock().location()));
            held.iter().map(location).collect()
        };
        let folder = Arc::clone(&self.folder);
        let check = move || {
            let is_current = locations
                .iter()
                .map(|location| location.as_ref().map_or(Ok(false), |location| location.is_current()));
            Ok((folder.exists()?, is_current.collect()))
        };
        self.disk.read("renew", HEARTBEAT, check).await
    }
}
