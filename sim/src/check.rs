//! How a world says that something does not hold: with the name of the check, and the facts.
//!
//! Owns the form of that message alone. A name is short and stays the same, so that what finds a fault can
//! be counted; the facts are for whoever repeats the seed.

/// Ends the history unless `holds`. The check's name goes first, in brackets.
#[track_caller]
pub(crate) fn must(check: &'static str, holds: bool, facts: impl FnOnce() -> String) {
    if !holds {
        broken(check, &facts());
    }
}

/// Ends the history.
#[track_caller]
pub(crate) fn broken(check: &'static str, facts: &str) -> ! {
    panic!("[{check}] {facts}")
}

/// The name of the check that a panic's message begins with.
pub(crate) fn name_of(message: &str) -> Option<&str> {
    message.strip_prefix('[')?.split_once(']').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_check_says_its_name_and_its_facts() {
        let caught = std::panic::catch_unwind(|| must("a check", false, || "1 is not 2".to_owned()));
        let message = caught.expect_err("it does not hold").downcast::<String>().expect("a text");
        assert_eq!(*message, "[a check] 1 is not 2");
        assert_eq!(name_of(&message), Some("a check"));
        assert_eq!(name_of("index out of bounds"), None);
        must("a check", true, || unreachable!("facts are gathered only where it does not hold"));
    }
}
