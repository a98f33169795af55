//! placeholder
use crate::{GatewayError, config::Config};
pub fn run(_c: Config) -> Result<(), GatewayError> {
    Ok(())
}
pub fn missing_files(_c: &Config) -> Vec<String> {
    vec![]
}
