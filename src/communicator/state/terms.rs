//! What must be equal on all ranks for them to work together, in words that name the settings.

use super::geometry::Geometry;
use crate::bootstrap::Term;
use crate::bootstrap::agreement::{Signature, Value, signature};
use crate::settings::Settings;

/// Settings that must be equal on all ranks, for the control plane to compare.
pub(crate) fn agreed_settings(geometry: &Geometry, settings: &Settings) -> Vec<Term> {
    let terms = geometry_signature(geometry).into_iter();
    let terms = terms.map(|(name, value)| (name.into_owned(), value.to_string()));
    let order = ("RINGDOVE_VERBS_ORDER".into(), settings.verbs_order.to_string());
    // Which of them there are is known once nodes are.
    let store_blocks = if geometry.stores { settings.store_blocks } else { 0 };
    let store_blocks = ("RINGDOVE_STORE_BLOCKS".into(), store_blocks.to_string());
    let ring_order = ("RINGDOVE_RING_ORDER".into(), settings.ring_order.to_string());
    terms.chain([order, store_blocks, ring_order]).collect()
}

/// What of a geometry ranks compare, with the names of the settings that it comes from.
pub(super) fn geometry_signature(geometry: &Geometry) -> Signature {
    let stores = match (geometry.stores, geometry.stores_always) {
        (false, _) => "never",
        (true, false) => "auto",
        (true, true) => "always",
    };
    let granted = match geometry.granted_bytes {
        Some(bytes) => Value::Number(bytes),
        None => Value::word("none"),
    };
    // What files hold, wherever they lie.
    let digest = |digest: Option<u64>| match digest {
        Some(digest) => Value::Word(format!("{digest:016x}").into()),
        None => Value::word("none"),
    };
    signature([
        ("the number of ranks", Value::Number(geometry.rank_count.into())),
        ("RINGDOVE_ENGINE", Value::Word(geometry.engine.name().into())),
        ("RINGDOVE_BLOCKS", Value::Number(geometry.blocks.into())),
        ("RINGDOVE_SLOT_BYTES", Value::Number(geometry.slot_bytes.into())),
        ("RINGDOVE_SLOTS", Value::Number(geometry.slot_count.into())),
        (
            "bytes of a pair's slot (RINGDOVE_STAGING_BYTES)",
            Value::Number(geometry.pair_slot_bytes.into()),
        ),
        ("RINGDOVE_LOW_LATENCY_BYTES", Value::Number(geometry.low_latency_bytes.into())),
        ("RINGDOVE_STORES", Value::word(stores)),
        ("RINGDOVE_ALGORITHM", Value::Word(geometry.algorithm.to_string().into())),
        ("lanes of stores (RINGDOVE_STORE_BLOCKS)", Value::Number(geometry.store_blocks.into())),
        ("RINGDOVE_USER_LANES", Value::Number(geometry.user_lanes.into())),
        ("RINGDOVE_GRANTED_BYTES", granted),
        ("RINGDOVE_REPRODUCIBLE", Value::Word(geometry.reproducible.to_string().into())),
        ("RINGDOVE_PLAN_FILES", digest(geometry.plan_files)),
        ("RINGDOVE_PROFILE", digest(geometry.profile)),
    ])
    .into()
}
