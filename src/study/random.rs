//! Numbers that look random and are the same for the same seed, on every machine.

/// xoshiro256++, begun by splitmix64. Source: Blackman and Vigna, "Scrambled linear pseudorandom number generators".
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
    /// The other of the two that Box and Muller's way gives.
    spare: Option<f64>,
}

impl Random {
    /// Begun by a seed.
    pub fn new(seed: u64) -> Self {
        let mut at = seed;
        let mut next = || {
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (at ^ at >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        };
        Self { state: [next(), next(), next(), next()], spare: None }
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// In 0..1, of 53 bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Of mean 0 and deviation 1, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2. * (1. - self.uniform()).ln()).sqrt();
        let (sine, cosine) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        self.spare = Some(radius * sine);
        radius * cosine
    }

    /// So many of [`Random::normal`], in float32.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal() as f32).collect()
    }

    /// Another order, each as likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = (self.uniform() * (last + 1) as f64) as usize;
            items.swap(last, other.min(last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same() {
        let mut random = Random::new(0);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, (0..3).scan(Random::new(0), |random, _| Some(random.next())).collect::<Vec<_>>());
        assert_ne!(first[0], Random::new(1).next());
        // The reference implementation's first number of the state 1, 2, 3, 4.
        let mut known = Random { state: [1, 2, 3, 4], spare: None };
        assert_eq!((known.next(), known.next()), (41_943_041, 58_720_359));
    }

    #[test]
    fn distributions_have_their_moments() {
        let mut random = Random::new(7);
        let n = 100_000;
        let uniform: f64 = (0..n).map(|_| random.uniform()).sum::<f64>() / f64::from(n);
        assert!((uniform - 0.5).abs() < 0.01, "{uniform}");
        let normals: Vec<f64> = (0..n).map(|_| random.normal()).collect();
        let mean = normals.iter().sum::<f64>() / f64::from(n);
        let variance = normals.iter().map(|value| value * value).sum::<f64>() / f64::from(n);
        assert!(mean.abs() < 0.02 && (variance - 1.).abs() < 0.03, "{mean} {variance}");
    }

    #[test]
    fn shuffling_keeps_what_there_is() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(3).shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert!(items.into_iter().eq(0..100));
    }
}
