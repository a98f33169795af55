//! The part of a node that renews its certificate, beside its session.
//!
//! 1. A renewal that fails is tried again while the certificate lives; what was forbidden is not.
//! 2. A node that has a renewed certificate moves its session to it, as it does after a `Drain`: the next
//!    session is welcomed before the old one is left, so none is lost when the old certificate expires.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::WeakUnboundedSender;

use super::super::Control;
use super::super::call::Target;
use super::super::end::EndKind;
use super::super::enrolment::Enrolment;
use super::super::observer::{NodeEvent, Observer};

const PERMISSION_DENIED: u32 = 7;

/// Renews whenever it is time.
pub(in crate::node) async fn renew_for_ever(
    name: Arc<str>,
    enrolment: Arc<Enrolment>,
    target: Target,
    observer: Arc<dyn Observer>,
    orders: WeakUnboundedSender<Control>,
) -> Infallible {
    loop {
        enrolment.renewal_due().await;
        match enrolment.renew(&target).await {
            Ok(credential) => {
                observer.on_event(&name, NodeEvent::Renewed { serial: credential.serial.clone() });
                if let Some(orders) = orders.upgrade() {
                    // A node that stopped has no session to move.
                    let _ = orders.send(Control::Renewed);
                }
            }
            Err(end) => {
                let is_final = end.kind == EndKind::Status(PERMISSION_DENIED);
                let again = enrolment.renew_again_after(&end);
                observer.on_event(&name, NodeEvent::RenewalFailed { end });
                tokio::time::sleep(if is_final { FOREVER } else { again }).await;
            }
        }
    }
}

/// Longer than any certificate of a testbed lives.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
