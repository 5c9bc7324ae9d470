//! Executors: started, asked, lent to clients, buried when they die.

mod pool;
mod post_mortem;
mod process;
mod quarantine;
mod requests;

pub use pool::{OnDeath, Pool};
pub use post_mortem::PostMortem;
pub use process::{Executor, Launch};
