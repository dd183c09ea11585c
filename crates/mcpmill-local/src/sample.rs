//! Picks the next token from the scores.

/// Tokens this much less likely than the best are never drawn; keeps the sorting short.
const NEGLIGIBLE: f64 = 1e-9;

/// Draws tokens; equal seeds and scores give equal draws on every run.
pub(crate) struct Sampler {
    temperature: f64,
    top_p: f64,
    state: u64,
}

impl Sampler {
    pub(crate) fn new(temperature: f64, top_p: f64, seed: u64) -> Self {
        Sampler { temperature, top_p, state: seed }
    }

    /// `None` if no token has a finite score.
    pub(crate) fn pick(&mut self, logits: &[f32]) -> Option<u32> {
        let finite = || (0u32..).zip(logits.iter().copied()).filter(|(_, logit)| logit.is_finite());
        let (best, top) = finite().reduce(|best, next| if next.1 > best.1 { next } else { best })?;
        if self.temperature <= 0. || self.temperature.is_nan() {
            return Some(best);
        }
        let weigh = |logit: f32| (f64::from(logit - top) / self.temperature).exp();
        let weighed = finite().map(|(token, logit)| (token, weigh(logit)));
        let mut likely: Vec<(u32, f64)> = weighed.filter(|(_, weight)| *weight >= NEGLIGIBLE).collect();
        likely.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        self.draw(nucleus(&likely, self.top_p)).or(Some(best))
    }

    fn draw(&mut self, candidates: &[(u32, f64)]) -> Option<u32> {
        let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
        let mut left = self.uniform() * total;
        for (token, weight) in candidates {
            left -= weight;
            if left < 0. {
                return Some(*token);
            }
        }
        candidates.last().map(|(token, _)| *token)
    }

    /// A number in [0, 1), by SplitMix64.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The likeliest tokens that together reach `top_p`; always at least one. Expects them sorted.
fn nucleus(likely: &[(u32, f64)], top_p: f64) -> &[(u32, f64)] {
    let goal = top_p * likely.iter().map(|(_, weight)| weight).sum::<f64>();
    let mut sum = 0.;
    let reached = likely.iter().position(|(_, weight)| {
        sum += weight;
        sum >= goal
    });
    &likely[..reached.map_or(likely.len(), |last| last + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each token is drawn in ten thousand.
    fn counts(temperature: f64, top_p: f64, logits: &[f32]) -> Vec<usize> {
        let mut sampler = Sampler::new(temperature, top_p, 7);
        let mut counts = vec![0; logits.len()];
        for _ in 0..10_000 {
            counts[sampler.pick(logits).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn zero_temperature_takes_the_best_and_the_first_of_equals() {
        assert_eq!(Sampler::new(0., 1., 1).pick(&[0.5, 2., 2., -1.]), Some(1));
        assert_eq!(Sampler::new(f64::NAN, 1., 1).pick(&[f32::NAN, 2.]), Some(1));
    }

    #[test]
    fn masked_tokens_are_never_drawn() {
        let logits = [f32::NEG_INFINITY, 0., f32::NEG_INFINITY, 0.];
        let counts = counts(1., 1., &logits);
        assert_eq!((counts[0], counts[2]), (0, 0));
        assert_eq!(Sampler::new(1., 1., 1).pick(&[f32::NEG_INFINITY]), None);
    }

    #[test]
    fn frequencies_follow_the_scores() {
        let thirds = counts(1., 1., &[2f32.ln(), 0.]);
        assert!((6500..6850).contains(&thirds[0]), "{thirds:?}");
        let colder = counts(0.5, 1., &[2f32.ln(), 0.]);
        assert!((7850..8150).contains(&colder[0]), "{colder:?}");
    }

    #[test]
    fn top_p_cuts_the_tail() {
        let logits = [8f32.ln(), 1f32.ln(), 1f32.ln()];
        assert_eq!(counts(1., 0.79, &logits)[0], 10_000);
        let wider = counts(1., 0.85, &logits);
        assert!(wider[1] > 0 && wider[2] == 0, "{wider:?}");
    }

    #[test]
    fn equal_seeds_draw_equally() {
        let draw = |seed| {
            let mut sampler = Sampler::new(1., 1., seed);
            (0..40).map(|_| sampler.pick(&[0.; 50]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }
}
