//! The order of a graph of prerequisites.

use std::collections::{BTreeMap, BTreeSet};

/// Nodes that need each other, so that none can come first; each needs the next, the last the
/// first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cycle<K>(pub(crate) Vec<K>);

/// Every node after all that it needs; among those that are free, the least first. Needs that are
/// no nodes themselves are met from the start.
pub(crate) fn topological<K: Ord + Clone>(
    needs: &BTreeMap<K, BTreeSet<K>>,
) -> Result<Vec<K>, Cycle<K>> {
    let open = |wanted: &BTreeSet<K>| wanted.iter().filter(|k| needs.contains_key(*k)).count();
    let mut left: BTreeMap<&K, usize> = needs.iter().map(|(k, n)| (k, open(n))).collect();
    let mut users: BTreeMap<&K, Vec<&K>> = BTreeMap::new();
    for (node, wanted) in needs {
        for need in wanted {
            users.entry(need).or_default().push(node);
        }
    }
    let mut free: BTreeSet<&K> = left.iter().filter(|&(_, &n)| n == 0).map(|(k, _)| *k).collect();
    let mut order = Vec::with_capacity(needs.len());
    while let Some(node) = free.pop_first() {
        order.push(node.clone());
        left.remove(node);
        for user in users.get(node).into_iter().flatten() {
            if let Some(count) = left.get_mut(user) {
                *count -= 1;
                if *count == 0 {
                    free.insert(user);
                }
            }
        }
    }
    if left.is_empty() { Ok(order) } else { Err(cycle(needs, &left)) }
}

/// Follows needs among the nodes that are left until one comes again: each has one that is left.
fn cycle<K: Ord + Clone>(needs: &BTreeMap<K, BTreeSet<K>>, left: &BTreeMap<&K, usize>) -> Cycle<K> {
    let mut path: Vec<&K> = Vec::new();
    let mut next = left.keys().next().copied();
    while let Some(node) = next {
        if let Some(begin) = path.iter().position(|known| *known == node) {
            return Cycle(path.into_iter().skip(begin).cloned().collect());
        }
        path.push(node);
        next = needs.get(node).and_then(|n| n.iter().find(|need| left.contains_key(need)));
    }
    Cycle(path.into_iter().cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(char, &str)]) -> BTreeMap<char, BTreeSet<char>> {
        edges.iter().map(|(node, needs)| (*node, needs.chars().collect())).collect()
    }

    #[test]
    fn what_is_needed_comes_first() {
        let order = topological(&graph(&[('a', "c"), ('b', ""), ('c', "bx")]));
        assert_eq!(order, Ok(vec!['b', 'c', 'a']));
    }

    #[test]
    fn a_cycle_is_named_without_its_users() {
        let order = topological(&graph(&[('a', "b"), ('b', "c"), ('c', "b")]));
        assert_eq!(order, Err(Cycle(vec!['b', 'c'])));
        assert_eq!(topological(&graph(&[('a', "a")])), Err(Cycle(vec!['a'])));
    }
}
