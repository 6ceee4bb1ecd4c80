//! The one list of finding codes. Each code belongs to one category and has a page in
//! `docs/codes/`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The seven rooms, in the order of their categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Room {
    /// 1, storage identity.
    Storage,
    /// 2, runtime value refresh.
    Derived,
    /// 3, loader lifecycle.
    Lifecycle,
    /// 4, reload state preservation.
    State,
    /// 5, routing and sharding.
    Routing,
    /// 6, names and keys.
    Names,
    /// 7, cache coherence.
    Caches,
}

impl Room {
    /// All, in order.
    pub const ALL: [Self; 7] = [
        Self::Storage,
        Self::Derived,
        Self::Lifecycle,
        Self::State,
        Self::Routing,
        Self::Names,
        Self::Caches,
    ];

    /// The category's number, 1 to 7.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8 + 1
    }

    /// The room of a category's number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|room| room.number() == number)
    }

    /// The folder name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Storage => "storage",
            Self::Derived => "derived",
            Self::Lifecycle => "lifecycle",
            Self::State => "state",
            Self::Routing => "routing",
            Self::Names => "names",
            Self::Caches => "caches",
        }
    }

    /// The category's title in reports.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Storage => "storage identity",
            Self::Derived => "runtime value refresh",
            Self::Lifecycle => "loader lifecycle",
            Self::State => "reload state preservation",
            Self::Routing => "routing and sharding",
            Self::Names => "names and keys",
            Self::Caches => "cache coherence",
        }
    }
}

/// What a finding counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// One of the seven.
    Room(Room),
    /// The transition, identity and label faults too.
    Transition,
    /// The wire.
    Wire,
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Room(room) => write!(f, "{}", room.number()),
            Self::Transition => f.write_str("transition"),
            Self::Wire => f.write_str("wire"),
        }
    }
}

impl Serialize for Category {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Room(room) => serializer.serialize_u8(room.number()),
            Self::Transition => serializer.serialize_str("transition"),
            Self::Wire => serializer.serialize_str("wire"),
        }
    }
}

macro_rules! codes {
    ($($variant:ident, $text:literal, $category:expr, $requirement:literal, $doc:literal;)*) => {
        /// A finding's code, from one closed list.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum FindingCode { $(#[doc = $doc] $variant,)* }

        impl FindingCode {
            /// Every code, in the order of categories.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The code as reports spell it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// What it counts against.
            #[must_use]
            pub const fn category(self) -> Category {
                match self { $(Self::$variant => $category,)* }
            }

            /// The requirement that it violates.
            #[must_use]
            pub const fn requirement(self) -> &'static str {
                match self { $(Self::$variant => $requirement,)* }
            }

            /// What it means, in one sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $doc,)* }
            }
        }
    };
}

const STORAGE: Category = Category::Room(Room::Storage);
const DERIVED: Category = Category::Room(Room::Derived);
const LIFECYCLE: Category = Category::Room(Room::Lifecycle);
const STATE: Category = Category::Room(Room::State);
const ROUTING: Category = Category::Room(Room::Routing);
const NAMES: Category = Category::Room(Room::Names);
const CACHES: Category = Category::Room(Room::Caches);

codes! {
    SlotMissing, "slot-missing", STORAGE, "R5",
        "A slot that was registered before capture is no longer registered.";
    SlotExpired, "slot-expired", STORAGE, "R5",
        "The storage that a slot had at capture was freed.";
    SlotRebound, "slot-rebound", STORAGE, "R5",
        "A slot now has another storage than the one that a captured graph retains.";
    SlotRespecified, "slot-respecified", STORAGE, "R5",
        "A slot's storage size, shape, stride, offset, dtype or device is not what was captured.";
    AddressStale, "address-stale", STORAGE, "R71",
        "A captured graph retains an address whose block was freed, unmapped, or lost its owner \
         since the capture.";
    GraphChanged, "graph-changed", STORAGE, "R62",
        "A captured graph has other nodes than at its capture, and the engine did not say so.";
    DerivedStale, "derived-stale", DERIVED, "R15",
        "A value computed from weights was not refreshed from the new ones.";
    ApplicationDuplicate, "application-duplicate", LIFECYCLE, "R20",
        "A fragment of a source was applied twice in one transaction.";
    ApplicationOverlap, "application-overlap", LIFECYCLE, "R19",
        "Two different applications wrote the same elements of a slot.";
    ApplicationMissing, "application-missing", LIFECYCLE, "R20",
        "A source was delivered, and elements of it never reached their slot.";
    ApplicationUndersized, "application-undersized", LIFECYCLE, "R22",
        "A write covers fewer elements than its fragment names.";
    FinalisedEarly, "finalised-early", LIFECYCLE, "R23",
        "A layer was finalised before everything it needs had arrived.";
    FinalisedNever, "finalised-never", LIFECYCLE, "R23",
        "A layer that needs post-load was never finalised.";
    LoaderStale, "loader-stale", LIFECYCLE, "R23",
        "A loader wrote for a layout that the slot no longer has.";
    StateLost, "state-lost", STATE, "R28",
        "State that the forward reads neither survived the update nor was rebuilt.";
    AliasSplit, "alias-split", STATE, "R28",
        "Two names of one storage have two storages now.";
    ConfigDrift, "config-drift", STATE, "R29",
        "The configuration that was rebuilt is not the one that a cold load has.";
    ShardMisplaced, "shard-misplaced", ROUTING, "R32",
        "A rank holds elements that belong to another rank.";
    ReplicaDiffers, "replica-differs", ROUTING, "R32",
        "Ranks that hold copies of the same elements hold different bytes.";
    PaddingWritten, "padding-written", ROUTING, "R22",
        "Padding does not hold its declared fill.";
    SourceMissing, "source-missing", NAMES, "R34",
        "A required source was never delivered, or no source fills a parameter.";
    SourceUnexpected, "source-unexpected", NAMES, "R34",
        "A source was delivered that nothing expects.";
    SourceUnrouted, "source-unrouted", NAMES, "R34",
        "A source was delivered under a name that the engine resolved to no slot.";
    NameAmbiguous, "name-ambiguous", NAMES, "R34",
        "A name resolves to more than one slot, or two names to one.";
    CacheStale, "cache-stale", CACHES, "R39",
        "A cache served entries of an old generation after the update.";
    AdapterReused, "adapter-reused", CACHES, "R40",
        "An adapter with new content was taken for the old one of the same name.";
    Order, "order", Category::Transition, "R45",
        "A step was taken, or accepted, out of order.";
    Timeout, "timeout", Category::Transition, "R49",
        "A step did not end before its deadline.";
    StepRefused, "step-refused", Category::Transition, "R49",
        "The engine refused or failed a step that a correct engine takes.";
    MixedGeneration, "mixed-generation", Category::Transition, "R44",
        "Ranks or slots serve different generations.";
    EngineDied, "engine-died", Category::Transition, "R49",
        "The engine died.";
    LabelWithoutEffect, "label-without-effect", Category::Transition, "R41",
        "A generation was announced whose bytes are not there.";
    OutputUnexplained, "output-unexplained", Category::Transition, "R49",
        "Outputs differ from a cold load's and no differing slot explains it.";
    TornRead, "torn-read", Category::Wire, "R57",
        "A tensor holds bytes of two generations.";
    StaleBuffer, "stale-buffer", Category::Wire, "R57",
        "A staging buffer was refilled before its readers had copied it.";
    MissingEdge, "missing-edge", Category::Wire, "R57",
        "A read was not ordered after the write it depends on.";
}

impl fmt::Display for FindingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_spelled_as_it_is_serialised() {
        for &code in FindingCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.name());
        }
    }

    #[test]
    fn rooms_are_numbered_one_to_seven() {
        assert_eq!(Room::ALL.map(Room::number), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Room::from_number(5), Some(Room::Routing));
        assert_eq!(Room::from_number(8), None);
    }
}
