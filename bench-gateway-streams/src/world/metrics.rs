//! What a gateway says of itself at its control port, read as an operator's scraper reads it.
//!
//! It knows no name of a metric; who asks for one that is not there gets none. Two readings make a rate.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const READ_WITHIN: Duration = Duration::from_secs(10);

/// One reading: each sample by its name and labels, as they are written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Reads them.
    pub(super) async fn read(control: SocketAddr) -> anyhow::Result<Self> {
        let text = tokio::time::timeout(READ_WITHIN, get(control)).await;
        let text = text.context("the gateway's metrics took too long")?;
        Ok(Self::parse(&text.context("reading the gateway's metrics")?))
    }

    fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        });
        Self(samples.collect())
    }

    /// Samples of `name`, by the value of their one label `label`.
    pub(crate) fn by_label(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let begin = format!("{name}{{");
        let samples = self.0.iter().filter_map(|(key, value)| {
            let labels = key.strip_prefix(&begin)?.strip_suffix('}')?;
            let of = labels.split(',').find_map(|pair| pair.strip_prefix(label)?.strip_prefix("=\""))?;
            Some((of.trim_end_matches('"').to_owned(), *value))
        });
        samples.collect()
    }
}

/// Where metrics are scraped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MetricsSource(SocketAddr);

impl MetricsSource {
    pub(super) const fn of(control: SocketAddr) -> Self {
        Self(control)
    }

    /// Scrapes, and gives how long the answer is.
    pub(crate) async fn scrape(&self) -> anyhow::Result<usize> {
        let text = tokio::time::timeout(READ_WITHIN, get(self.0)).await;
        let text = text.context("the gateway's metrics took too long")?;
        Ok(text.context("reading the gateway's metrics")?.len())
    }
}

async fn get(control: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(control).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {control}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_found_by_its_label() {
        let text = "HTTP/1.1 200 OK\r\n\r\n# TYPE gateway_jobs counter\n\
                    gateway_jobs_total{queue=\"updates\"} 7\ngateway_jobs_total{queue=\"events\"} 0\n# EOF\n";
        let jobs = Metrics::parse(text).by_label("gateway_jobs_total", "queue");
        assert_eq!((jobs.get("updates"), jobs.len()), (Some(&7.0), 2));
        assert!(Metrics::parse(text).by_label("gateway_jobs", "queue").is_empty());
    }
}
