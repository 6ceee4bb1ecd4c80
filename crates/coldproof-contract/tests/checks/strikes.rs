//! Single faults, a list for each room: what is done to a run, and what must be found.

use coldproof_contract::evidence::{ApplicationFact, Fact, FreeFact, OriginsFact, PostLoadStage};
use coldproof_contract::verdict::FindingCode as Code;
use coldproof_contract::words::{
    Address, Dtype, Fragment, Generation, Rank, Span, StepName, StorageId,
};

use crate::support::model::{
    self, EMBED, GATE, GATE_UP, HEAD, NORM, NORM_F32, ROPE, UP, WORKSPACE,
};
use crate::support::{Found, Run, one};

/// Where a fault strikes; each number is taken modulo what there is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) update: usize,
    pub(crate) slot: usize,
    pub(crate) rank: u32,
    pub(crate) amount: usize,
}

/// A fault: its name, and what it does; returned is the one finding that it must give.
#[derive(Clone, Copy)]
pub(crate) struct Strike(pub(crate) &'static str, pub(crate) fn(&mut Run, Place) -> Found);

impl std::fmt::Debug for Strike {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// Updates whose end is compared with another load of the same checkpoint: arm, phase, what was
/// served before.
const UPDATES: [(&str, &str, &str); 7] = [
    ("warm", "A>B", "A"),
    ("warm", "B>A", "B"),
    ("warm", "P>B", "P"),
    ("names", "A>B", "A"),
    ("names-1", "A>B-alt", "A"),
    ("caches", "A>B", "A"),
    ("composite", "A>B", "A"),
];

impl Place {
    fn update(self) -> (&'static str, &'static str, &'static str) {
        UPDATES[self.update % UPDATES.len()]
    }

    fn of<T: Copy>(self, all: &[T]) -> T {
        all[self.slot % all.len()]
    }

    /// A rank of the arms that have the run's own topology.
    fn rank(self, run: &Run) -> Rank {
        Rank::tensor(self.rank % run.header.engine.topology.tp)
    }
}

/// What has no storage cannot be read back.
fn unread(run: &mut Run, place: Place, slot: &str) {
    let ((arm, phase, _), rank) = (place.update(), place.rank(run));
    run.since(arm, phase)
        .drop(|at, fact| matches!(fact, Fact::ReadBack(read) if at == rank && read.slot.0 == slot));
}

/// On one rank, the slot is registered in another storage from the update on.
fn rebind(run: &mut Run, place: Place, slot: &str) -> Rank {
    let ((arm, phase, _), rank) = (place.update(), place.rank(run));
    run.since(arm, phase).slot(slot, |at, slot| {
        if let Some(print) = slot.fingerprint.as_mut().filter(|_| at == rank) {
            (print.storage, print.address) = (StorageId(90), Address(0x1_4000));
        }
    });
    rank
}

fn found(code: Code, object: &str, rank: Rank) -> Found {
    one(code, object, &[rank.tp])
}

pub(crate) const STORAGE: &[Strike] = &[
    Strike("freed", |run, place| {
        let (arm, phase, _) = place.update();
        let slot = place.of(&[EMBED, GATE_UP, NORM, NORM_F32, ROPE, WORKSPACE]);
        let rank = place.rank(run);
        let (storage, address) = (model::storage(slot), model::address(slot));
        let facts = vec![Fact::Free(FreeFact { storage, address })];
        run.phase(arm, phase).add(StepName::Update, rank, facts);
        found(Code::AddressStale, slot, rank)
    }),
    Strike("rebound", |run, place| {
        let slot = place.of(&[GATE_UP, NORM, NORM_F32, ROPE, WORKSPACE]);
        found(Code::SlotRebound, slot, rebind(run, place, slot))
    }),
    Strike("expired", |run, place| {
        let (arm, phase, _) = place.update();
        let slot = place.of(&[GATE_UP, NORM, NORM_F32, ROPE, WORKSPACE]);
        let rank = place.rank(run);
        run.since(arm, phase).slot(slot, |at, slot| {
            if at == rank {
                slot.fingerprint = None;
            }
        });
        unread(run, place, slot);
        found(Code::SlotExpired, slot, rank)
    }),
    Strike("missing", |run, place| {
        let (arm, phase, _) = place.update();
        let name = place.of(&[GATE_UP, NORM, NORM_F32, ROPE, WORKSPACE]);
        let rank = place.rank(run);
        run.since(arm, phase)
            .drop(|at, fact| matches!(fact, Fact::Slot(slot) if at == rank && slot.slot.0 == name));
        unread(run, place, name);
        found(Code::SlotMissing, name, rank)
    }),
    Strike("respecified", |run, place| {
        let (arm, phase, _) = place.update();
        let slot = place.of(&[GATE_UP, NORM, NORM_F32, ROPE, WORKSPACE]);
        let rank = place.rank(run);
        run.since(arm, phase).slot(slot, |at, slot| {
            let Some(print) = slot.fingerprint.as_mut().filter(|_| at == rank) else { return };
            match place.amount % 5 {
                0 => print.dtype = Dtype::F16,
                1 => print.device = "elsewhere".to_owned(),
                2 => print.offset += 1,
                3 => print.storage_bytes += 1,
                _ => print.stride.iter_mut().for_each(|stride| *stride += 1),
            }
        });
        found(Code::SlotRespecified, slot, rank)
    }),
];

/// On one rank, the slot holds what it held before the update, garbage, or nothing readable.
fn wrong_bytes(run: &mut Run, place: Place, slot: &str) -> Rank {
    let (arm, phase, before) = place.update();
    let (rank, topology) = (place.rank(run), run.header.engine.topology);
    run.phase(arm, phase).read(slot, |at, read| {
        if at != rank {
            return;
        }
        match place.amount % 3 {
            0 => read.content = Some(model::content("garbage")),
            1 => read.content = None,
            _ => {
                let old = model::read_backs(topology, rank, before).into_iter();
                *read = old.clone().find(|old| old.slot == read.slot).unwrap();
            }
        }
    });
    rank
}

pub(crate) const DERIVED: &[Strike] = &[Strike("not refreshed", |run, place| {
    found(Code::DerivedStale, NORM_F32, wrong_bytes(run, place, NORM_F32))
})];

/// Changes the account of one source in one update on one rank. What `change` returns comes last.
fn account(
    run: &mut Run,
    place: Place,
    change: impl Fn(&mut Vec<ApplicationFact>) -> Option<ApplicationFact>,
) -> (String, Rank) {
    let (arm, phase, _) = place.update();
    let rank = place.rank(run);
    let mut of: Vec<ApplicationFact> = Vec::new();
    run.phase(arm, phase).map(|at, fact| {
        if let Fact::Application(application) = &fact
            && at == rank
        {
            of.push(application.clone());
        }
        Some(fact)
    });
    let source = of[place.slot % of.len()].source.clone();
    of.retain(|application| application.source == source);
    let last = change(&mut of);
    run.phase(arm, phase).drop(
        |at, fact| matches!(fact, Fact::Application(fact) if at == rank && fact.source == source),
    );
    let facts = of.into_iter().chain(last).map(Fact::Application).collect();
    run.phase(arm, phase).add(StepName::Update, rank, facts);
    (source, rank)
}

/// A chunk that has elements: one without may come as often as it will.
fn chunk(of: &[ApplicationFact]) -> Option<&ApplicationFact> {
    of.iter().find(|application| application.slot_fragment.volume() > 0)
}

pub(crate) const LIFECYCLE: &[Strike] = &[
    Strike("applied twice", |run, place| {
        let (source, rank) = account(run, place, |of| chunk(of).cloned());
        found(Code::ApplicationDuplicate, &source, rank)
    }),
    Strike("applied twice in part", |run, place| {
        let (arm, phase, _) = place.update();
        // The norm is the one source that is cut nowhere: two rows on every rank.
        let rank = place.rank(run);
        let mut whole = None;
        run.phase(arm, phase).drop(|at, fact| match fact {
            Fact::Application(fact) if at == rank && fact.source == NORM => {
                whole.get_or_insert_with(|| fact.clone());
                true
            }
            _ => false,
        });
        let mut whole = whole.unwrap();
        whole.source_fragment = Fragment(vec![Span::new(0, 2)]);
        whole.slot_fragment = whole.source_fragment.clone();
        let mut part = whole.clone();
        let row = place.amount as u64 % 2;
        part.source_fragment = Fragment(vec![Span::new(row, row + 1)]);
        part.slot_fragment = part.source_fragment.clone();
        let facts = [whole, part].map(Fact::Application).into();
        run.phase(arm, phase).add(StepName::Update, rank, facts);
        found(Code::ApplicationOverlap, NORM, rank)
    }),
    Strike("never applied", |run, place| {
        let (source, rank) = account(run, place, |of| {
            of.clear();
            None
        });
        found(Code::ApplicationMissing, &source, rank)
    }),
    Strike("applied from fewer elements", |run, place| {
        let (source, rank) = account(run, place, |of| {
            let mut short = chunk(of)?.clone();
            let Span { start, .. } = short.source_fragment.0[0];
            short.source_fragment = short.source_fragment.with(0, Span::new(start, start));
            Some(short)
        });
        found(Code::ApplicationUndersized, &source, rank)
    }),
    Strike("never finalised", |run, place| {
        let (arm, phase, _) = place.update();
        let rank = place.rank(run);
        run.phase(arm, phase).drop(|at, fact| match fact {
            Fact::PostLoad(fact) => {
                at == rank && fact.layer == "norm" && fact.stage != PostLoadStage::Expected
            }
            _ => false,
        });
        found(Code::FinalisedNever, "norm", rank)
    }),
    Strike("bytes never written", |run, place| {
        let (arm, phase, before) = place.update();
        let (rank, topology) = (place.rank(run), run.header.engine.topology);
        let source = place.of(&[GATE, UP]);
        run.phase(arm, phase).read(GATE_UP, |at, read| {
            if at != rank {
                return;
            }
            let old = model::read_backs(topology, rank, before).into_iter();
            let old = old.clone().find(|old| old.slot == read.slot).unwrap();
            read.content = Some(model::content("in part"));
            for (now, old) in read.pieces.iter_mut().zip(old.pieces) {
                if now.source == source {
                    *now = old;
                }
            }
        });
        // Under other names alone, it is the name that was not resolved.
        let (code, source) = match (arm, source) {
            ("names-1", GATE) => (Code::SourceUnrouted, "mlp.w1.weight"),
            ("names-1", _) => (Code::SourceUnrouted, "mlp.w3.weight"),
            _ => (Code::ApplicationMissing, source),
        };
        found(code, source, rank)
    }),
];

pub(crate) const STATE: &[Strike] = &[
    Strike("buffer lost", |run, place| {
        // What it held before is what it must hold.
        let place = Place { amount: place.amount % 2, ..place };
        found(Code::StateLost, ROPE, wrong_bytes(run, place, ROPE))
    }),
    Strike("alias gone", |run, place| {
        let (arm, phase, _) = place.update();
        let rank = place.rank(run);
        run.since(arm, phase).drop(|at, fact| match fact {
            Fact::Slot(slot) => at == rank && slot.slot.0 == HEAD,
            Fact::ReadBack(read) => at == rank && read.slot.0 == HEAD,
            _ => false,
        });
        found(Code::StateLost, HEAD, rank)
    }),
    Strike("alias in a storage of its own", |run, place| {
        found(Code::AliasSplit, HEAD, rebind(run, place, HEAD))
    }),
    Strike("alias with bytes of its own", |run, place| {
        found(Code::AliasSplit, HEAD, wrong_bytes(run, Place { amount: 2, ..place }, HEAD))
    }),
    Strike("configured anew", |run, place| {
        let (arm, phase, _) = place.update();
        let rank = place.rank(run);
        run.since(arm, phase).map(|at, mut fact| {
            if let Fact::State(state) = &mut fact
                && at == rank
            {
                state.value = format!("not {}", state.value);
            }
            Some(fact)
        });
        found(Code::ConfigDrift, "engine.block_size", rank)
    }),
];

/// Changes what the sentinels decode to in the slot of both gate and up, on one rank.
fn origins(run: &mut Run, place: Place, change: impl Fn(&mut OriginsFact)) -> Rank {
    let rank = Rank::tensor(place.rank % 2);
    run.phase("routing", "A>S0").map(|at, mut fact| {
        if let Fact::Origins(origins) = &mut fact
            && origins.slot.0 == GATE_UP
            && at == rank
        {
            change(origins);
        }
        Some(fact)
    });
    rank
}

pub(crate) const ROUTING: &[Strike] = &[
    Strike("shard of the other rank", |run, place| {
        let rank = origins(run, place, |fact| {
            let run = &mut fact.runs[place.slot % 2];
            run.element = 4 - run.element;
        });
        found(Code::ShardMisplaced, GATE_UP, rank)
    }),
    Strike("half of the other source", |run, place| {
        let rank = origins(run, place, |fact| fact.runs[1].source = fact.runs[0].source);
        found(Code::ShardMisplaced, GATE_UP, rank)
    }),
    Strike("halves exchanged on every rank", |run, place| {
        for rank in 0..2 {
            origins(run, Place { rank, ..place }, |fact| {
                let (gate, up) = (fact.runs[0].slot, fact.runs[1].slot);
                (fact.runs[0].slot, fact.runs[1].slot) = (up, gate);
            });
        }
        one(Code::LoaderStale, GATE_UP, &[0, 1])
    }),
    Strike("padding written", |run, place| {
        let rank = Rank::tensor(place.rank % 2);
        run.phase("routing", "S0>B").read(EMBED, |at, read| {
            if at == rank {
                read.padding_written = 1 + place.amount as u64;
            }
        });
        found(Code::PaddingWritten, EMBED, rank)
    }),
    Strike("nothing of a source", |run, place| {
        let half = place.slot % 2;
        let rank = origins(run, place, |fact| fact.runs[half].source = None);
        found(Code::ApplicationMissing, [GATE, UP][half], rank)
    }),
];

pub(crate) const NAMES: &[Strike] = &[
    Strike("not delivered", |run, place| {
        let (arm, phase, _) = place.update();
        let mut gone = String::new();
        run.phase(arm, phase).map(|_, mut fact| {
            if let Fact::Manifest(manifest) = &mut fact {
                gone = manifest.delivered.remove(place.slot % manifest.delivered.len());
            }
            Some(fact)
        });
        one(Code::SourceMissing, &gone, &[0])
    }),
    Strike("nobody expects it", |run, place| {
        let (arm, phase, _) = place.update();
        let name = format!("extra.{}.weight", place.amount);
        run.phase(arm, phase).map(|_, mut fact| {
            if let Fact::Manifest(manifest) = &mut fact {
                manifest.delivered.insert(place.slot % manifest.delivered.len(), name.clone());
            }
            Some(fact)
        });
        one(Code::SourceUnexpected, &name, &[0])
    }),
    Strike("no rank takes it", |run, place| {
        let (tp, source) = (run.header.engine.topology.tp, place.of(&[EMBED, GATE, UP, NORM]));
        run.phase("names", "A>B").map(|_, mut fact| {
            if let Fact::Receipt(receipt) = &mut fact {
                receipt.unrouted.push(source.to_owned());
            }
            Some(fact)
        });
        one(Code::SourceUnrouted, source, &(0..tp).collect::<Vec<_>>())
    }),
];

pub(crate) const CACHES: &[Strike] = &[
    Strike("rows not computed again", |run, place| {
        let fewer = 1 + place.amount as u64 % 70;
        let mut first = true;
        run.phase("caches", "A>B").map(|_, mut fact| {
            if let Fact::Launch(launch) = &mut fact
                && std::mem::take(&mut first)
            {
                launch.rows = 71 - fewer;
            }
            Some(fact)
        });
        one(Code::CacheStale, "prefix-kv", &[0])
    }),
    Strike("entries of the old generation", |run, place| {
        let rank = place.rank(run);
        run.phase("caches", "A>B").map(|at, mut fact| {
            if let Fact::Cache(cache) = &mut fact
                && at == rank
            {
                let old = cache.generation.0.saturating_sub(1);
                (cache.generation, cache.entries) = (Generation(old), 1 + place.amount as u64);
            }
            Some(fact)
        });
        found(Code::CacheStale, "prefix-kv", rank)
    }),
];
