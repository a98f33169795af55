//! What must always hold in the database: each invariant with its name, its sentence, its query.
//!
//! A query gives the rows that offend, each as a JSON text, at most as many as its only parameter says.
//!
//! 1. Names are stable: scripts and alerts use them.
//! 2. A query reads the schema's tables alone; it knows nothing of a gateway that runs.

/// One thing that must hold.
#[derive(Debug, Clone, Copy)]
pub struct Invariant {
    /// Lower case and dashes; the name of its file in `gateway/queries/verify`.
    pub name: &'static str,
    /// What holds, as a sentence.
    pub sentence: &'static str,
    /// Gives what offends; `$1` is the most rows.
    pub query: &'static str,
}

macro_rules! invariant {
    ($name:literal, $sentence:literal) => {
        Invariant {
            name: $name,
            sentence: $sentence,
            query: include_str!(concat!("../../queries/verify/", $name, ".sql")),
        }
    };
}

/// All of them, in the order in which they are checked.
pub const INVARIANTS: [Invariant; 20] = [
    invariant!(
        "seq-without-gap",
        "No command is lost: above what retention has removed, a node's seqs follow each other without a gap."
    ),
    invariant!(
        "known-node",
        "Every node has the rows that a Hello and an enqueue lock, and every command is a known node's."
    ),
    invariant!(
        "one-end",
        "A command has exactly one end: it has a date of its end if and only if its state is terminal, and every state that an update stored has its date."
    ),
    invariant!(
        "ran-was-sent",
        "What is in flight, has succeeded or has failed was dispatched to its node, or adopted from it."
    ),
    invariant!("fifo", "First attempts of a lane are dispatched in the order of seq."),
    invariant!(
        "due-after-cursor",
        "No due first attempt of a lane was passed over by one with a higher seq."
    ),
    invariant!(
        "in-flight-above-floor",
        "No command is in flight below the mark from which on a Hello looks for its lane's."
    ),
    invariant!(
        "capacity-as-told",
        "By the marks of dispatch, no lane ever had more in flight than its capacity then."
    ),
    invariant!(
        "capacity-by-rows",
        "By the dates of the rows themselves, no lane ever had more in flight at a dispatch than its capacity then."
    ),
    invariant!(
        "lease-epochs-rise",
        "The epoch of a lease only rises, and no takeover is dated before an earlier one."
    ),
    invariant!(
        "session-epochs-rise",
        "The session epoch of a node only rises, and nothing was dispatched or seen under one that never was."
    ),
    invariant!(
        "events-contiguous",
        "Every acked event of a journal is stored once, without a gap, but for what retention removed."
    ),
    invariant!("events-in-journals", "Every event stands in a journal that is known, from its first seq on."),
    invariant!(
        "spec-answers-were-sent",
        "What is stored as a node's answer to a spec is about a generation that the spec has come to."
    ),
    invariant!("failed-report-stored", "Every hook that failed was told an event that is stored."),
    invariant!("hook-failed-once", "No hook failed more often than once for an event."),
    invariant!("inventory-hash", "The hash of every section of an inventory is the SHA-256 of its body."),
    invariant!("dispatch-under-lease", "No dispatch was committed by a gateway whose lease had passed on."),
    invariant!("hello-under-lease", "No Hello was committed by a gateway whose lease had passed on."),
    invariant!("not-after-kept", "No command was sent after its not_after."),
];
