//! Tasks of a kernel, on whatever the processor has.

use std::sync::Mutex;

use crate::base::sync::lock;

/// Work that comes apart into tasks.
pub(in crate::runtime::ort) trait Work: Sync {
    /// Memory of a thread, used for one task after the other.
    type Scratch: Send;

    fn n_tasks(&self) -> usize;

    fn scratch(&self) -> Self::Scratch;

    /// Always inlined, with all that it calls in its loops: it is compiled for several processors.
    fn task<const FMA: bool>(&self, task: usize, scratch: &mut Self::Scratch);
}

/// Calls a function for each number below the first, from threads of its own.
pub(in crate::runtime::ort) trait Parallel {
    fn each(&self, total: usize, function: &(dyn Fn(usize) + Sync)) -> ort::Result<()>;
}

/// One task after the other.
#[cfg(test)]
pub(super) struct Alone;

#[cfg(test)]
impl Parallel for Alone {
    fn each(&self, total: usize, function: &(dyn Fn(usize) + Sync)) -> ort::Result<()> {
        (0..total).for_each(function);
        Ok(())
    }
}

/// Does all tasks of the work. Errors: those of `parallel`.
pub(in crate::runtime::ort) fn run<W: Work>(work: &W, parallel: &impl Parallel) -> ort::Result<()> {
    let (pool, vectors) = (Mutex::new(Vec::new()), has_vectors());
    let task = |task: usize| {
        let kept = lock(&pool).pop();
        let mut scratch = kept.unwrap_or_else(|| work.scratch());
        if vectors {
            // SAFETY: the processor was asked.
            unsafe { with_vectors(work, task, &mut scratch) };
        } else {
            work.task::<{ cfg!(target_arch = "aarch64") }>(task, &mut scratch);
        }
        lock(&pool).push(scratch);
    };
    match work.n_tasks() {
        0 => Ok(()),
        1 => {
            task(0);
            Ok(())
        }
        several => parallel.each(several, &task),
    }
}

#[cfg(target_arch = "x86_64")]
fn has_vectors() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn with_vectors<W: Work>(work: &W, task: usize, scratch: &mut W::Scratch) {
    work.task::<true>(task, scratch);
}

#[cfg(not(target_arch = "x86_64"))]
fn has_vectors() -> bool {
    false
}

/// # Safety
/// None is needed; the twin for x86 has a condition.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn with_vectors<W: Work>(work: &W, task: usize, scratch: &mut W::Scratch) {
    work.task::<false>(task, scratch);
}
