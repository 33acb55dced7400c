//! What only Redlock has: minorities and majorities, slow nodes, nodes that have lost their data.

use lockkit_conformance::Case;

pub const CASES: [Case; 0] = [];
