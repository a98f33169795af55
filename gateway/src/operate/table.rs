//! Rows as a table for people: columns as wide as what stands in them, within a bound.
//!
//! It decides no order and drops no row.
//!
//! 1. A cell is one line of harmless text; what is longer than its column may be is cut with `…`.

use serde_json::Value;

use super::terminal::harmless_within;

/// A column: its heading, the field of the row, and how wide it may get.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    heading: &'static str,
    field: &'static str,
    widest: usize,
}

/// A column of the rows' field `field`.
pub(super) const fn column(heading: &'static str, field: &'static str, widest: usize) -> Column {
    Column { heading, field, widest }
}

/// The table with its heading, a line a row.
pub(super) fn table(columns: &[Column], rows: &[Value]) -> String {
    let cells: Vec<Vec<String>> = rows.iter().map(|row| cells(columns, row)).collect();
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let widest = cells.iter().filter_map(|row| row.get(index)).map(|cell| cell.chars().count()).max();
            widest.unwrap_or(0).max(column.heading.len())
        })
        .collect();
    let heading: Vec<String> = columns.iter().map(|column| column.heading.to_owned()).collect();
    let lines = std::iter::once(&heading).chain(&cells).map(|row| line(row, &widths));
    lines.collect()
}

/// One row without a heading, its cells side by side: for what goes on and on.
pub(super) fn loose_line(columns: &[Column], row: &Value) -> String {
    cells(columns, row).join("  ") + "\n"
}

fn cells(columns: &[Column], row: &Value) -> Vec<String> {
    columns.iter().map(|column| harmless_within(&plain(row, column.field), column.widest)).collect()
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        line.push_str(&format!("{cell:<width$}  "));
    }
    line.truncate(line.trim_end().len());
    line.push('\n');
    line
}

/// What a person reads for a field.
fn plain(row: &Value, field: &str) -> String {
    match row.get(field) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::Bool(value)) => if *value { "yes" } else { "no" }.to_owned(),
        Some(Value::String(text)) if field.ends_with("_at") => seconds(text),
        Some(Value::String(text)) if text.is_empty() => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(lanes)) => {
            let lanes = lanes.iter().map(|entry| match (entry.get("lane"), entry.get("capacity")) {
                (Some(Value::String(lane)), Some(capacity)) => format!("{lane}:{capacity}"),
                _ => entry.to_string(),
            });
            lanes.collect::<Vec<_>>().join(" ")
        }
        Some(other) => other.to_string(),
    }
}

/// A date of the database, in UTC and to the second.
fn seconds(date: &str) -> String {
    match date.get(..19) {
        Some(whole) if date.ends_with("+00:00") => whole.replace('T', " ") + "Z",
        _ => date.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_hostile_name_keeps_its_row_on_one_line() {
        let columns =
            [column("NODE", "node_id", 12), column("SEEN", "last_seen_at", 30), column("LANES", "lanes", 30)];
        let rows = [
            json!({ "node_id": "n1", "last_seen_at": "2026-11-29T19:30:50.123456+00:00", "lanes": [{"lane": "a", "capacity": 2}] }),
            json!({ "node_id": "evil\nn2  connected", "last_seen_at": null, "lanes": [] }),
        ];
        assert_eq!(
            table(&columns, &rows),
            "NODE          SEEN                  LANES\n\
             n1            2026-11-29 19:30:50Z  a:2\n\
             evil\\nn2  c…  -\n"
        );
    }
}
