//! The feed of cancellations that are asked for: one read.
//!
//! It changes nothing, and says the same again until the commands are terminal; who was told when
//! is the core's to remember.

use gateway_core::frame::CancelCommand;
use gateway_core::ids::{CommandId, GatewayId, SessionEpoch};
use gateway_core::store::WantedCancel;

use super::JobError;
use super::stored::{counter, node_id};
use crate::connection::Link;

pub(super) async fn execute(link: &mut Link, gateway: &GatewayId) -> Result<Vec<WantedCancel>, JobError> {
    let rows = sqlx::query_file!("queries/cancels.sql", gateway.as_str()).fetch_all(link.within()).await?;
    rows.into_iter()
        .map(|row| {
            Ok(WantedCancel {
                node: node_id(&row.node_id)?,
                epoch: SessionEpoch(counter(row.session_epoch)),
                cancel: CancelCommand { id: CommandId(row.id), reason: row.reason },
            })
        })
        .collect()
}
