//! The sentence of a gRPC status in the header `grpc-message`: bytes that no header holds are percent-encoded.
//!
//! 1. What is encoded is printable ASCII, whatever the sentence.
//! 2. Whatever came is decoded: a `%` that no two hex digits follow stands for itself.

/// The value of the header.
pub fn encoded(sentence: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = String::with_capacity(sentence.len());
    for byte in sentence.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push(char::from(HEX[usize::from(byte >> 4)]));
            encoded.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    encoded
}

/// The sentence in the header's value; what is not UTF-8 is replaced.
pub fn decoded(value: &str) -> String {
    let bytes = value.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = (byte == b'%')
            .then(|| value.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        at += if hex.is_some() { 3 } else { 1 };
        decoded.push(hex.unwrap_or(byte));
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_sentence_comes_back_as_it_was() {
        for sentence in ["", "plain", "100 %", "50%25", "ünïcode\nand a line", "\u{0}\u{7f}"] {
            let value = encoded(sentence);
            assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{value:?}");
            assert_eq!(decoded(&value), sentence);
        }
    }

    #[test]
    fn what_nobody_has_encoded_is_taken_as_it_is() {
        assert_eq!(decoded("100%25 full%zz %"), "100% full%zz %");
        assert_eq!(decoded("é%C3"), "é\u{fffd}");
    }
}
