//! The option that leaves models of others their user's rights.

use super::exit::Failure;

const VARIABLE: &str = "RUST_ORT_CONFINE";

#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct WallsArgument {
    /// Leave processes that run models all rights to files, network and other programs, as a library of custom operators may
    /// need them that has other libraries elsewhere; the same as RUST_ORT_CONFINE=off
    #[arg(long)]
    no_confine: bool,
}

impl WallsArgument {
    /// Whether walls are wanted. Errors: the variable says neither on nor off.
    pub(crate) fn wanted(&self) -> Result<bool, Failure> {
        let said = std::env::var(VARIABLE).unwrap_or_default();
        match said.as_str() {
            "" | "on" => Ok(!self.no_confine),
            "off" => Ok(false),
            _ => Err(format!("{VARIABLE}: expected on or off, got {said:?}").into()),
        }
    }
}
