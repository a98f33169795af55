//! Rebuilds when a migration is added: the macro that embeds them can't say so itself.
//!
//! The same holds for queries and for `.sqlx`, which the checked queries are compiled against. It generates
//! nothing and never talks to a database.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
    println!("cargo:rerun-if-changed=queries");
    println!("cargo:rerun-if-changed=.sqlx");
}
