//! Rebuilds when a migration is added: the macro that embeds them can't say so itself.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
    println!("cargo:rerun-if-changed=queries");
    println!("cargo:rerun-if-changed=.sqlx");
}
