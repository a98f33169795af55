//! Values as people write them: durations, sizes, lists of cpus.
//!
//! Each reads one TOML value and says what it expected when it got something else; each prints so
//! that it reads back as the same value.
//!
//! 1. A bare number is never a duration nor a size: its unit would be a guess.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Highest cpu number that a list may name, as the kernel's own masks allow.
const MAX_CPU: usize = 1023;

/// A duration such as `"10s"` or `"1m 30s"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A size in bytes such as `"512KiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

/// Cpus by number, such as `"2-7"`, `"1,3,5-7"` or `[2, 3]`. In the order given, duplicates and all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

/// SQL functions by name, such as `"acme.on_door"` or `["acme.on_door", "acme.page"]`, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FunctionNames(pub Vec<String>);

impl Span {
    /// Of whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(usize, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match UNITS.iter().find(|(unit, _)| self.0 > 0 && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, cpu) in self.0.iter().enumerate() {
            write!(f, "{}{cpu}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let duration = humantime::parse_duration(text).map_err(|_| {
            format!("expected a duration such as \"10s\", \"250ms\" or \"1m 30s\", not {text:?}")
        })?;
        Ok(Self(duration))
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected a size such as \"512KiB\", \"1MiB\" or \"64B\", not {text:?}");
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("{}: its unit is missing", expected()));
        }
        let size = bytesize::ByteSize::from_str(text).map_err(|_| expected())?;
        usize::try_from(size.as_u64()).map(Self).map_err(|_| expected())
    }
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected cpus such as \"2-7\" or \"1,3,5-7\", not {text:?}");
        let number = |text: &str| match text.trim().parse::<usize>() {
            Ok(cpu) if cpu <= MAX_CPU => Ok(cpu),
            Ok(cpu) => Err(format!("there is no cpu {cpu}: the highest possible number is {MAX_CPU}")),
            Err(_) => Err(expected()),
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let Some((first, last)) = part.split_once('-') else {
                cpus.push(number(part)?);
                continue;
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(format!("{part:?} runs backwards: write \"{last}-{first}\""));
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

/// Reads a string by `FromStr`, and refuses numbers with a hint at what `expected` looks like.
struct Text<T> {
    expected: &'static str,
    parsed: std::marker::PhantomData<T>,
}

impl<T> Text<T> {
    const fn expecting(expected: &'static str) -> Self {
        Self { expected, parsed: std::marker::PhantomData }
    }
}

impl<T: FromStr<Err = String>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        Err(E::custom(format!("expected {}, in quotes and with its unit, not {number}", self.expected)))
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<T, E> {
        Err(E::custom(format!("expected {}, in quotes and with its unit, not {number}", self.expected)))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text::expecting("a duration such as \"10s\""))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text::expecting("a size such as \"1MiB\""))
    }
}

impl<'de> Deserialize<'de> for FunctionNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Names)
    }
}

struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = FunctionNames;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a SQL function or a list of them, such as \"acme.on_door\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<FunctionNames, E> {
        Ok(FunctionNames(vec![text.to_owned()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<FunctionNames, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = sequence.next_element::<String>()? {
            names.push(name);
        }
        Ok(FunctionNames(names))
    }
}

struct Cpus;

impl<'de> Visitor<'de> for Cpus {
    type Value = CpuList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cpus such as \"2-7\" or [2, 3]")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CpuList, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<CpuList, A::Error> {
        let mut cpus = Vec::new();
        while let Some(cpu) = sequence.next_element::<usize>()? {
            if cpu > MAX_CPU {
                let sentence = format!("there is no cpu {cpu}: the highest possible number is {MAX_CPU}");
                return Err(A::Error::custom(sentence));
            }
            cpus.push(cpu);
        }
        Ok(CpuList(cpus))
    }
}

impl<'de> Deserialize<'de> for CpuList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Cpus)
    }
}

macro_rules! serialize_as_text {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

serialize_as_text!(Span, Size, CpuList);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_reads_back_the_same() {
        for text in ["10s", "250ms", "1m 30s", "0s"] {
            let span: Span = text.parse().expect("a duration");
            assert_eq!(span.to_string(), text);
        }
        for text in ["1MiB", "512KiB", "16GiB", "1000B", "0B"] {
            let size: Size = text.parse().expect("a size");
            assert_eq!(size.to_string(), text);
        }
        assert_eq!("1KB".parse::<Size>(), Ok(Size(1000)));
    }

    #[test]
    fn a_size_or_duration_without_a_unit_is_refused() {
        assert!("100".parse::<Size>().is_err_and(|error| error.contains("unit is missing")));
        assert!("10".parse::<Span>().is_err_and(|error| error.contains("such as \"10s\"")));
        assert!("10 parsecs".parse::<Size>().is_err());
    }

    #[test]
    fn cpu_lists_are_read_as_the_kernel_writes_them() {
        assert_eq!("2-4".parse::<CpuList>(), Ok(CpuList(vec![2, 3, 4])));
        assert_eq!("1, 3,5-6".parse::<CpuList>(), Ok(CpuList(vec![1, 3, 5, 6])));
        assert!("4-2".parse::<CpuList>().is_err_and(|error| error.contains("\"2-4\"")));
        assert!("".parse::<CpuList>().is_err());
        assert!("0-99999999".parse::<CpuList>().is_err_and(|error| error.contains("1023")));
        assert!("x".parse::<CpuList>().is_err());
    }
}
