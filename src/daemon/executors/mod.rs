//! Executors: started, asked, lent to clients, buried when they die.

mod link;
mod pool;
mod post_mortem;
mod process;
mod quarantine;

pub use pool::{IdleTimes, OnDeath, Pool};
pub use post_mortem::PostMortem;
pub use process::{Executor, Launch};
