//! A case under way: what was found, where it shows, and what was covered.

use std::collections::{BTreeMap, BTreeSet};

use super::{Category, Finding, FindingCode, FindingEvent, Note, Room};
use crate::evidence::{Comparison, Difference, Holds, PhaseView, View};
use crate::words::{Rank, SlotKind, Topology};

/// Where a finding shows: ordinal of the arm, ordinal of the phase in it.
pub type Site = (usize, usize);

/// The most events that a finding carries.
const EVENTS: usize = 3;

/// The event of a step that did not end well.
pub(super) const ENDED: &str = "ended";

/// What a room looked at.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Whether any evidence of this kind was recorded.
    pub covered: bool,
    /// Comparisons of observed facts.
    pub checks: u64,
    /// Reasons not to pass, each a path that was not exercised or a claim without observation.
    pub undecided: BTreeSet<String>,
    /// What was proven, in one line.
    pub proven: String,
    /// The topology it was judged at, where it is not the run's.
    pub topology: Option<Topology>,
}

impl Coverage {
    /// Adds to what was proven.
    pub fn also_proven(&mut self, text: &str) {
        if !self.proven.is_empty() {
            self.proven += "; ";
        }
        self.proven += text;
    }
}

/// A case under way.
#[derive(Debug)]
pub struct Case<'v, 'r> {
    /// The evidence.
    pub view: &'v View<'r>,
    /// Differing bytes.
    pub comparison: &'v Comparison<'r>,
    /// Slots and parts that no output depends on.
    pub unseen: BTreeSet<String>,
    /// Notes.
    pub notes: BTreeSet<Note>,
    /// What each room looked at.
    pub coverage: BTreeMap<Room, Coverage>,
    findings: Vec<Finding>,
    sites: Vec<BTreeSet<Site>>,
    by_object: BTreeMap<(FindingCode, String), usize>,
    blamed: BTreeMap<String, BTreeMap<(Topology, u32), usize>>,
}

impl<'v, 'r> Case<'v, 'r> {
    /// An open case.
    #[must_use]
    pub fn new(view: &'v View<'r>, comparison: &'v Comparison<'r>) -> Self {
        Self {
            view,
            comparison,
            unseen: BTreeSet::new(),
            notes: BTreeSet::new(),
            coverage: BTreeMap::new(),
            findings: Vec::new(),
            sites: Vec::new(),
            by_object: BTreeMap::new(),
            blamed: BTreeMap::new(),
        }
    }

    /// The room's coverage, to be filled in.
    pub fn cover(&mut self, room: Room) -> &mut Coverage {
        self.coverage.entry(room).or_default()
    }

    /// Counts equal slots of these kinds in a room that compares content. Equality with an earlier
    /// phase of the same arm alone is not equality with a cold load.
    pub fn cover_content(&mut self, room: Room, kinds: &[SlotKind], what: &str) -> u64 {
        let comparison = self.comparison;
        let equal = comparison.equal_of(kinds);
        let coverage = self.cover(room);
        coverage.checks += equal;
        if comparison.equal_to_cold(kinds) == 0 {
            coverage.undecided.insert(format!("no {what} was compared with a cold load's"));
        } else if !comparison.renewed() {
            coverage.undecided.insert("no update was seen to change a parameter".to_owned());
        }
        let gaps = comparison.gaps.iter();
        let here = gaps.filter(|(kind, _)| kind.is_none_or(|kind| kinds.contains(&kind)));
        coverage.undecided.extend(here.map(|(_, text)| text.clone()));
        equal
    }

    /// Whether the checker of a category is switched off: it finds nothing and explains nothing.
    #[must_use]
    pub fn is_off(&self, category: Category) -> bool {
        let Category::Room(room) = category else { return false };
        self.view.header.settings.modes.get(room.name()).is_some_and(|mode| mode == "off")
    }

    /// Raises a finding, or adds its ranks and site to the one of the same code and object.
    /// `slots` are those whose differing bytes it explains, on its ranks.
    pub fn raise(&mut self, finding: Finding, site: Site, slots: &[&str]) {
        if self.is_off(finding.category) {
            return;
        }
        let topology = self.topology(site.0);
        let ranks = finding.ranks.clone();
        let key = (finding.code, finding.object.clone());
        let index = match self.by_object.get(&key) {
            Some(&index) => {
                self.extend(index, site, &ranks);
                index
            }
            None => {
                self.findings.push(finding);
                self.sites.push(BTreeSet::new());
                self.by_object.insert(key, self.findings.len() - 1);
                self.findings.len() - 1
            }
        };
        self.sites[index].insert(site);
        for slot in slots {
            let own = self.blamed.entry((*slot).to_owned()).or_default();
            for rank in &ranks {
                own.entry((topology, *rank)).or_insert(index);
            }
        }
    }

    /// Adds ranks to a finding. Those of another topology than its first are other ranks.
    fn extend(&mut self, index: usize, site: Site, ranks: &[u32]) {
        let first = self.sites[index].first().map(|site| self.topology(site.0));
        if first.is_some_and(|first| first != self.topology(site.0)) {
            return;
        }
        let known = &mut self.findings[index];
        known.ranks.extend(ranks);
        known.ranks.sort_unstable();
        known.ranks.dedup();
    }

    fn topology(&self, arm: usize) -> Topology {
        self.view.arms.get(arm).map_or(Topology::SINGLE, |arm| arm.header.topology)
    }

    /// The finding that explains a slot on a rank of an arm: the one that is blamed for it on that
    /// rank of that topology, or, where none is on any of its ranks, the same cause at another one.
    fn cause(&self, slot: &str, arm: usize, rank: u32) -> Option<usize> {
        let topology = self.topology(arm);
        let exact = self.blamed.get(slot)?.get(&(topology, rank)).copied();
        exact.or_else(|| {
            let here = self.at_topology(slot, topology).is_some();
            self.at_another(slot, topology).filter(|_| !here)
        })
    }

    fn at_topology(&self, slot: &str, topology: Topology) -> Option<usize> {
        let own = self.blamed.get(slot)?.range((topology, 0)..=(topology, u32::MAX));
        own.map(|(_, index)| *index).next()
    }

    /// The finding that is blamed for a slot at another topology, where the slot's bytes are wrong
    /// here in a way in which they are wrong there too. Another layout of ranks has its own faults.
    fn at_another(&self, slot: &str, topology: Topology) -> Option<usize> {
        let holds = |at: Topology| -> BTreeSet<Holds> {
            let own = self.comparison.differences.iter().filter(|d| d.slot.slot.0 == slot);
            own.filter(|d| self.view.arm(d.arm).is_some_and(|arm| arm.header.topology == at))
                .map(|difference| difference.holds)
                .collect()
        };
        let here = holds(topology);
        let mut blamed = self.blamed.get(slot)?.iter();
        let alike = blamed.find(|((other, _), _)| !here.is_disjoint(&holds(*other)));
        alike.map(|(_, index)| *index)
    }

    /// Joins a symptom on one rank to the finding that explains this slot there, if there is one.
    /// Leaves every room's coverage as it is: see [`Case::explain`].
    pub fn join(&mut self, slot: &str, rank: u32, site: Site, symptom: FindingEvent) -> bool {
        let Some(index) = self.cause(slot, site.0, rank) else { return false };
        self.extend(index, site, &[rank]);
        self.attach(index, site, symptom);
        true
    }

    /// Joins a symptom that is of no one rank to a finding that explains this slot on any rank, if
    /// there is one. Leaves every room's coverage as it is.
    pub fn join_slot(&mut self, slot: &str, site: Site, symptom: FindingEvent) -> bool {
        let Some(index) = self.anywhere(slot, site.0) else { return false };
        self.attach(index, site, symptom);
        true
    }

    /// Joins a room's difference to the finding that explains it, if there is one. Where that is
    /// another room's, this one did not prove what it looks at: the only one of the four that makes
    /// a room undecided.
    pub fn explain(
        &mut self,
        room: Room,
        slot: &str,
        rank: u32,
        site: Site,
        symptom: FindingEvent,
    ) -> bool {
        let Some(finding) = self.blamed_finding(slot, site.0, rank) else { return false };
        if finding.category != Category::Room(room) {
            let text = format!("`{slot}` differs: see {} of `{}`", finding.code, finding.object);
            self.cover(room).undecided.insert(text);
        }
        self.join(slot, rank, site, symptom)
    }

    /// Joins a symptom to those findings at this site that may explain it, if there are any. Leaves
    /// every room's coverage as it is.
    pub fn join_site(
        &mut self,
        site: Site,
        symptom: &FindingEvent,
        may_explain: impl Fn(&Finding) -> bool,
    ) -> bool {
        let here: Vec<usize> = (0..self.findings.len())
            .filter(|&index| self.sites[index].contains(&site))
            .filter(|&index| may_explain(&self.findings[index]))
            .collect();
        for &index in &here {
            self.attach(index, site, symptom.clone());
        }
        !here.is_empty()
    }

    /// Adds a symptom to a finding: as one of its few events, and the end of a step, which nobody
    /// may miss, also to what the engine has. Leaves every room's coverage as it is.
    fn attach(&mut self, index: usize, site: Site, symptom: FindingEvent) {
        self.sites[index].insert(site);
        let finding = &mut self.findings[index];
        if symptom.what == ENDED && !finding.actual.contains(&symptom.text) {
            finding.actual = format!("{}; {}", finding.actual, symptom.text);
        }
        let events = &mut finding.events;
        if events.len() < EVENTS && !events.iter().any(|event| event.what == symptom.what) {
            events.push(symptom);
        }
    }

    fn anywhere(&self, slot: &str, arm: usize) -> Option<usize> {
        let topology = self.topology(arm);
        self.at_topology(slot, topology).or_else(|| self.at_another(slot, topology))
    }

    /// The finding that explains this slot on this rank of this arm, if there is one.
    #[must_use]
    pub fn blamed_finding(&self, slot: &str, arm: usize, rank: u32) -> Option<&Finding> {
        self.cause(slot, arm, rank).and_then(|index| self.findings.get(index))
    }

    /// A finding that explains this slot on any rank of this arm, if there is one.
    #[must_use]
    pub fn blamed_anywhere(&self, slot: &str, arm: usize) -> Option<&Finding> {
        self.anywhere(slot, arm).and_then(|index| self.findings.get(index))
    }

    /// Whether a finding of this code names this object.
    #[must_use]
    pub fn has(&self, code: FindingCode, object: &str) -> bool {
        self.by_object.contains_key(&(code, object.to_owned()))
    }

    /// Whether a finding of this code shows at this site.
    #[must_use]
    pub fn has_at(&self, code: FindingCode, site: Site) -> bool {
        let mut findings = self.findings.iter().zip(&self.sites);
        findings.any(|(finding, sites)| finding.code == code && sites.contains(&site))
    }

    /// The global index of a rank in an arm.
    #[must_use]
    pub fn rank_index(&self, arm: usize, rank: Rank) -> u32 {
        self.view.arms.get(arm).map_or(0, |arm| arm.header.topology.index(rank))
    }

    /// The ordinal of an arm.
    #[must_use]
    pub fn arm_index(&self, arm: &str) -> usize {
        self.view.arms.iter().position(|view| view.header.arm == arm).unwrap_or(usize::MAX)
    }

    /// Adds a reason not to pass a room.
    pub fn leave_undecided(&mut self, room: Room, reason: String) {
        self.cover(room).undecided.insert(reason);
    }

    /// The phase in which something differs.
    #[must_use]
    pub fn phase_of(&self, difference: &Difference<'_>) -> Option<&'v PhaseView<'r>> {
        let arm = self.view.arms.get(self.arm_index(difference.arm));
        arm.and_then(|arm| arm.phases.get(difference.phase_index))
    }

    /// The findings, by category, code and object.
    #[must_use]
    pub fn into_findings(self) -> Vec<Finding> {
        let mut findings = self.findings;
        findings
            .sort_by(|a, b| (a.category, a.code, &a.object).cmp(&(b.category, b.code, &b.object)));
        findings
    }

    /// The findings so far.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

/// A symptom, for [`Case::join`].
#[must_use]
pub fn symptom(what: &str, step: &str, seq: u64, text: impl Into<String>) -> FindingEvent {
    FindingEvent { what: what.to_owned(), step: step.to_owned(), seq, text: text.into() }
}
