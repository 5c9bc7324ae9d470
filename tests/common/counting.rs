//! An allocator that counts what a thread holds.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes that this thread holds, and the most that it held.
struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came; the counters are plain cells without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.get().wrapping_add(layout.size());
        HELD.set(held);
        // What another thread gave and this one freed would wrap around.
        if held < usize::MAX / 2 {
            MOST.set(MOST.get().max(held));
        }
        // SAFETY: as this function's caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get().wrapping_sub(layout.size()));
        // SAFETY: as this function's caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that this thread allocates at a time while it runs. One may stand in another.
pub fn most<T>(run: impl FnOnce() -> T) -> usize {
    let (held, before) = (HELD.replace(0), MOST.replace(0));
    drop(run());
    let most = MOST.get();
    HELD.set(held.wrapping_add(HELD.get()));
    MOST.set(before.max(held.wrapping_add(most)));
    most
}
