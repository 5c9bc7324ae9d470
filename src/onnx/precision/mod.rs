//! bfloat16 for a runtime without bfloat16 arithmetic.

mod elements;
mod mention;
#[cfg(test)]
mod tests;
mod widen;

pub use mention::mentions;
pub use widen::widen;
