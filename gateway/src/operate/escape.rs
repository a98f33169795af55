//! The way out of a tunnel that hangs: `~.` at the start of a line, as ssh has it.
//!
//! It looks at what is typed on a terminal, before it is sent. Whoever sends and whoever ends is elsewhere.
//!
//! 1. `~.` leaves, and `~~` is one `~`, at the start of a line alone; every other byte goes on as it was typed.

/// What was typed so far.
#[derive(Debug)]
pub(super) struct Escape {
    is_at_start: bool,
    holds: bool,
}

impl Escape {
    /// At the start of a line.
    pub(super) const fn new() -> Self {
        Self { is_at_start: true, holds: false }
    }

    /// What is to be sent of this; `None` when whoever types leaves.
    pub(super) fn pass(&mut self, typed: &[u8]) -> Option<Vec<u8>> {
        let mut passed = Vec::with_capacity(typed.len() + 1);
        for byte in typed {
            if std::mem::take(&mut self.holds) {
                match byte {
                    b'.' => return None,
                    b'~' => {}
                    _ => passed.push(b'~'),
                }
            } else if self.is_at_start && *byte == b'~' {
                self.holds = true;
                continue;
            }
            passed.push(*byte);
            self.is_at_start = matches!(byte, b'\r' | b'\n');
        }
        Some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However it is cut into pieces.
    fn passed(typed: &str) -> Option<String> {
        let mut byte_by_byte = Escape::new();
        let pieces: Option<Vec<Vec<u8>>> = typed.bytes().map(|byte| byte_by_byte.pass(&[byte])).collect();
        let whole = Escape::new().pass(typed.as_bytes());
        assert_eq!(pieces.map(|pieces| pieces.concat()), whole);
        whole.map(|whole| String::from_utf8(whole).expect("text"))
    }

    #[test]
    fn a_tilde_and_a_dot_at_the_start_of_a_line_leave_and_nowhere_else() {
        for leaves in ["~.", "ls\r~.", "ls\n~.more", "~a\r~.", "~~\r~."] {
            assert_eq!(passed(leaves), None, "{leaves:?}");
        }
        for (typed, sent) in
            [("ls ~.\r", "ls ~.\r"), ("a~.", "a~."), ("~~.", "~."), ("~x\r", "~x\r"), ("~\r~~\r", "~\r~\r")]
        {
            assert_eq!(passed(typed).as_deref(), Some(sent), "{typed:?}");
        }
    }
}
