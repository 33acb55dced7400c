//! The fenced resource behind the lock.

use super::Write;

/// Checks the writes of a fenced resource: a write is applied if and only if no higher token was applied before.
pub fn fenced_writes(writes: &[Write]) -> Vec<String> {
    let (mut faults, mut highest) = (Vec::new(), 0);
    for (number, write) in writes.iter().enumerate() {
        match write.applied {
            true if write.token < highest => {
                faults.push(format!("write {number} with token {} was applied after {highest}", write.token));
            }
            false if write.token >= highest => {
                faults.push(format!("write {number} with token {} was refused at {highest}", write.token));
            }
            _ => {}
        }
        if write.applied {
            highest = highest.max(write.token);
        }
    }
    faults
}
