//! Which texts are compared, and how what is alike becomes clusters.

use rayon::prelude::*;

use super::{
    Settings,
    weigh::{Text, Weighed},
};

/// Texts with equal values up to which each is compared with each.
const ALL_PAIRS: usize = 64;

/// Rare words of a text that, alone or two by two, bring it together with others where there are more.
const RARE: usize = 6;

/// Texts that share such words up to which each is compared with each; beyond, with as many neighbours as [`WINDOW`].
const BUCKET: usize = 16;
const WINDOW: usize = 4;

/// Parts in which a large group is searched, so that its keys need little memory.
const SLICES: u64 = 16;

/// Members of a cluster that stand for it when two clusters are compared.
const SPOKESMEN: usize = 8;

/// Two texts that are alike, by place.
struct Pair {
    alike: f32,
    one: u32,
    two: u32,
}

/// The place of the first text of every text's cluster.
pub(super) fn link(weighed: &Weighed, settings: &Settings) -> Vec<u32> {
    let texts = &weighed.texts;
    let mut order: Vec<u32> = (0..texts.len() as u32).collect();
    order.par_sort_unstable_by(|&a, &b| sort_key(texts, a).cmp(&sort_key(texts, b)));
    let groups: Vec<&[u32]> = order.chunk_by(|&a, &b| texts[a as usize].key == texts[b as usize].key).collect();
    let linker = Linker { texts, weights: &weighed.weights, settings };
    let found: Vec<(u32, u32)> = groups.par_iter().flat_map_iter(|group| linker.group(group)).collect();
    let mut first: Vec<u32> = (0..texts.len() as u32).collect();
    for (text, of) in found {
        first[text as usize] = of;
    }
    first
}

type SortKey<'a> = (u64, &'a [u32], &'a [u32], &'a [(u32, u32)], u32);

fn sort_key(texts: &[Text], at: u32) -> SortKey<'_> {
    let text = &texts[at as usize];
    (text.key, &text.words, &text.must, &text.roles, at)
}

struct Linker<'a> {
    texts: &'a [Text],
    weights: &'a [f32],
    settings: &'a Settings,
}

impl Linker<'_> {
    /// Clusters the texts of one key: each with the first of its cluster, by place in the collection.
    fn group(&self, group: &[u32]) -> Vec<(u32, u32)> {
        if group.len() < 2 {
            return vec![];
        }
        let same = |a: &u32, b: &u32| {
            let (a, b) = (&self.texts[*a as usize], &self.texts[*b as usize]);
            a.words == b.words && a.must == b.must && a.roles == b.roles
        };
        let runs: Vec<&[u32]> = group.chunk_by(same).collect();
        let heads: Vec<u32> = runs.iter().map(|run| run[0]).collect();
        let mut pairs = if heads.len() <= ALL_PAIRS { self.all_pairs(&heads) } else { self.some_pairs(&heads) };
        pairs.sort_unstable_by(|a, b| b.alike.total_cmp(&a.alike).then((a.one, a.two).cmp(&(b.one, b.two))));
        let mut sets = Sets::new(heads.len());
        for pair in &pairs {
            self.join(&mut sets, &heads, pair);
        }
        let mut first = vec![u32::MAX; heads.len()];
        for (i, run) in runs.iter().enumerate() {
            let of = &mut first[sets.find(i as u32) as usize];
            *of = (*of).min(run.iter().copied().min().unwrap_or(*of));
        }
        let mut found = Vec::with_capacity(group.len());
        for (i, run) in runs.iter().enumerate() {
            let of = first[sets.find(i as u32) as usize];
            found.extend(run.iter().map(|text| (*text, of)));
        }
        found
    }

    fn all_pairs(&self, heads: &[u32]) -> Vec<Pair> {
        let count = heads.len() as u32;
        (0..count)
            .flat_map(|two| (0..two).map(move |one| (one, two)))
            .filter_map(|(one, two)| self.pair(heads, one, two))
            .collect()
    }

    /// Pairs that share rare words; those of a word that too many share only with their neighbours.
    fn some_pairs(&self, heads: &[u32]) -> Vec<Pair> {
        let mut pairs: Vec<Pair> = vec![];
        for slice in 0..SLICES {
            let mine = |(i, text): (usize, &u32)| {
                let keys = self.keys(*text).into_iter().filter(|key| key % SLICES == slice);
                keys.map(|key| (key, i as u32)).collect::<Vec<_>>()
            };
            let mut keys: Vec<(u64, u32)> = heads.par_iter().enumerate().flat_map_iter(mine).collect();
            keys.par_sort_unstable();
            let buckets: Vec<&[(u64, u32)]> = keys.chunk_by(|a, b| a.0 == b.0).filter(|bucket| bucket.len() > 1).collect();
            let found = |bucket: &&[(u64, u32)]| {
                let width = if bucket.len() <= BUCKET { BUCKET } else { WINDOW };
                let near = |two: usize| (two.saturating_sub(width)..two).map(move |one| (one, two));
                let pair = |(one, two): (usize, usize)| self.pair(heads, bucket[one].1, bucket[two].1);
                (1..bucket.len()).flat_map(near).filter_map(pair).collect::<Vec<_>>()
            };
            pairs.par_extend(buckets.par_iter().flat_map_iter(found));
            pairs.par_sort_unstable_by_key(|pair| (pair.one, pair.two));
            pairs.dedup_by_key(|pair| (pair.one, pair.two));
        }
        pairs
    }

    /// Hashes of the rare words of a text and of their pairs.
    fn keys(&self, text: u32) -> Vec<u64> {
        let words = &self.texts[text as usize].words;
        let rare = &words[..words.len().min(RARE)];
        let mut keys = Vec::with_capacity(RARE * (RARE + 1) / 2);
        for (i, &a) in rare.iter().enumerate() {
            for &b in &rare[i..] {
                let both = (u64::from(a) << 32 | u64::from(b)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                keys.push(both ^ (both >> 29));
            }
        }
        keys
    }

    fn pair(&self, heads: &[u32], one: u32, two: u32) -> Option<Pair> {
        let alike = self.alike(heads[one as usize], heads[two as usize]);
        let needed = self.needed(heads[one as usize], heads[two as usize]);
        (f64::from(alike) >= needed).then_some(Pair { alike, one, two })
    }

    /// How alike two texts must be.
    fn needed(&self, one: u32, two: u32) -> f64 {
        let valued = self.texts[one as usize].valued && self.texts[two as usize].valued;
        if valued { self.settings.threshold } else { self.settings.plain_threshold }
    }

    /// Weighted Jaccard index of the words of two texts with the same key; 0 when their values or roles conflict.
    fn alike(&self, one: u32, two: u32) -> f32 {
        let (a, b) = (&self.texts[one as usize], &self.texts[two as usize]);
        let (less, more) = if a.total < b.total { (a.total, b.total) } else { (b.total, a.total) };
        let floor = self.settings.floor * self.needed(one, two);
        if f64::from(less) < f64::from(more) * floor {
            return 0.0;
        }
        let shared: f32 = common(&a.words, &b.words).map(|word| self.weights[word as usize]).sum();
        let alike = shared / (less + more - shared).max(f32::MIN_POSITIVE);
        if f64::from(alike) < floor || !within(&a.must, &b.all) || !within(&b.must, &a.all) || swapped(&a.roles, &b.roles) {
            return 0.0;
        }
        alike
    }

    /// Makes one cluster of two if their members are alike on average and none are unlike.
    fn join(&self, sets: &mut Sets, heads: &[u32], pair: &Pair) {
        let (one, two) = (sets.find(pair.one), sets.find(pair.two));
        if one == two {
            return;
        }
        let (mut sum, mut needed) = (0.0, 0.0);
        for &a in sets.spokesmen(one) {
            for &b in sets.spokesmen(two) {
                let (a, b) = (heads[a as usize], heads[b as usize]);
                let alike = f64::from(self.alike(a, b));
                if alike <= 0.0 {
                    return;
                }
                sum += alike;
                needed += self.needed(a, b);
            }
        }
        if sum >= needed {
            sets.unite(one, two);
        }
    }
}

/// What two sorted lists have in common.
fn common(a: &[u32], b: &[u32]) -> impl Iterator<Item = u32> {
    let (mut i, mut j) = (0, 0);
    std::iter::from_fn(move || {
        while i < a.len() && j < b.len() {
            let (x, y) = (a[i], b[j]);
            i += usize::from(x <= y);
            j += usize::from(y <= x);
            if x == y {
                return Some(x);
            }
        }
        None
    })
}

fn within(part: &[u32], whole: &[u32]) -> bool {
    part.iter().all(|hash| whole.binary_search(hash).is_ok())
}

/// Whether two texts put the same values after the same words, but after others of them: from A to B, and from B to A.
fn swapped(a: &[(u32, u32)], b: &[(u32, u32)]) -> bool {
    a.len() == b.len() && a != b && a.iter().zip(b).all(|(x, y)| x.0 == y.0)
}

/// Clusters under construction: a root for each, and a few members that stand for it.
struct Sets {
    roots: Vec<u32>,
    spokesmen: Vec<Vec<u32>>,
}

impl Sets {
    fn new(count: usize) -> Self {
        Sets { roots: (0..count as u32).collect(), spokesmen: (0..count as u32).map(|i| vec![i]).collect() }
    }

    fn find(&mut self, mut of: u32) -> u32 {
        while self.roots[of as usize] != of {
            let up = self.roots[self.roots[of as usize] as usize];
            self.roots[of as usize] = up;
            of = up;
        }
        of
    }

    fn spokesmen(&self, root: u32) -> &[u32] {
        &self.spokesmen[root as usize]
    }

    /// Joins two roots; the members that come first stand for both.
    fn unite(&mut self, one: u32, two: u32) {
        let (root, other) = (one.min(two), one.max(two));
        self.roots[other as usize] = root;
        let mut all = std::mem::take(&mut self.spokesmen[other as usize]);
        let own = &mut self.spokesmen[root as usize];
        own.append(&mut all);
        own.sort_unstable();
        own.truncate(SPOKESMEN);
    }
}
