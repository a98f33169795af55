//! The database's URL: where it comes from, and that its password is never seen.
//!
//! 1. A URL in the TOML holds no password; a URL from a file may.
//! 2. `Debug` and `Display` show no password.

use std::fmt;
use std::path::Path;

use gateway_control::small_file;

/// Taken where neither a URL nor a file is given: the local server, as the user of the process.
pub(super) const LOCAL_DATABASE: &str = "postgres:///gateway?host=/run/postgresql";

/// A `postgres://` URL, perhaps with a password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// Takes a URL that the driver can read. The error is a sentence without the URL.
    pub fn new(url: &str) -> Result<Self, String> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err("is no PostgreSQL URL: it must begin with postgres:// or postgresql://".to_owned());
        }
        gateway_db_writer::check_url(url).map_err(|why| {
            format!(
                "is no URL that can be used: {why}; write postgres://USER@HOST:PORT/DATABASE, or for a unix socket \
                 postgres:///DATABASE?host=/FOLDER&user=USER, with %-escapes for signs within"
            )
        })?;
        Ok(Self(url.to_owned()))
    }

    /// The first line of a file.
    pub fn from_file(file: &Path) -> Result<Self, String> {
        let refused = |why: &dyn fmt::Display| format!("the file {} {why}", file.display());
        let bytes = small_file::read(file).map_err(|error| refused(&error))?;
        let text = String::from_utf8(bytes).map_err(|_| refused(&"is no text"))?;
        let url = text.lines().next().unwrap_or_default().trim();
        Self::new(url).map_err(|sentence| format!("the first line of {} {sentence}", file.display()))
    }

    /// The URL with its password, for the driver alone.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether a password stands in it.
    pub fn holds_password(&self) -> bool {
        self.shown() != self.0
    }

    fn shown(&self) -> String {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        // As the driver reads it: all before the last @ is user and password.
        let (user, place) = rest.rsplit_once('@').map_or((None, rest), |(user, place)| (Some(user), place));
        let mut shown = format!("{scheme}://");
        if let Some(user) = user {
            let (name, password) =
                user.split_once(':').map_or((user, None), |(name, word)| (name, Some(word)));
            shown.push_str(name);
            if password.is_some_and(|password| !password.is_empty()) {
                shown.push_str(":***");
            } else if password.is_some() {
                shown.push(':');
            }
            shown.push('@');
        }
        shown.push_str(place);
        if let Some(query) = query {
            let parts: Vec<String> = query
                .split('&')
                .map(|part| match part.split_once('=') {
                    Some((key, _)) if key.eq_ignore_ascii_case("password") => format!("{key}=***"),
                    _ => part.to_owned(),
                })
                .collect();
            shown.push('?');
            shown.push_str(&parts.join("&"));
        }
        shown
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({:?})", self.shown())
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("postgres://u:secret@h:5432/d", "postgres://u:***@h:5432/d"),
            ("postgres://u:se@cret@h/d?sslmode=disable", "postgres://u:***@h/d?sslmode=disable"),
            ("postgresql://h/d?user=u&password=secret", "postgresql://h/d?user=u&password=***"),
        ] {
            let url = DatabaseUrl::new(url).expect("a URL");
            assert_eq!(url.to_string(), shown);
            assert!(url.holds_password());
            assert!(!format!("{url:?}").contains("cret"));
        }
    }

    #[test]
    fn urls_without_a_password_are_shown_as_they_are() {
        for url in [LOCAL_DATABASE, "postgres://u@h:5432/d", "postgres://u:@h/d"] {
            let url = DatabaseUrl::new(url).expect("a URL");
            assert!(!url.holds_password(), "{url}");
            assert_eq!(url.to_string(), url.reveal());
        }
        assert!(DatabaseUrl::new("mysql://h/d").is_err());
        let error =
            DatabaseUrl::new("postgres://u:hunter2@/d?host=/run").expect_err("the driver can't read it");
        assert!(error.contains("postgres:///DATABASE?host="), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}
