//! Families as OpenMetrics text, which Prometheus scrapes.
//!
//! 1. Every name begins with `gateway_`; a counter ends with `_total`, a measure with its base unit.
//! 2. A scrape reads what the threads have counted; it makes nobody count, wait or lock.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabel, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry;

use crate::process;
use crate::status::{Family, Label, Points, Status, Unit};

/// The media type of what `text` returns.
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of the gateway and its process, now.
pub(crate) fn text(status: &Arc<dyn Status>) -> String {
    let mut registry = registry::Registry::with_prefix("gateway");
    registry.register_collector(Box::new(Scrape(Arc::clone(status))));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)
        .expect("writing to a string does not fail");
    text
}

struct Scrape(Arc<dyn Status>);

impl std::fmt::Debug for Scrape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        for family in self.0.families().iter().chain(&process::families()) {
            encode_family(&mut encoder, family)?;
        }
        Ok(())
    }
}

fn encode_family(encoder: &mut DescriptorEncoder<'_>, family: &Family) -> std::fmt::Result {
    let unit = family.unit.map(|unit| match unit {
        Unit::Seconds => registry::Unit::Seconds,
        Unit::Bytes => registry::Unit::Bytes,
    });
    let kind = match family.points {
        Points::Counters(_) => MetricType::Counter,
        Points::Gauges(_) => MetricType::Gauge,
        Points::Histograms(_) => MetricType::Histogram,
    };
    let mut metric = encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
    match &family.points {
        Points::Counters(points) => {
            for (labels, value) in points {
                labelled(&mut metric, labels, |point| {
                    point.encode_counter::<NoLabelSet, _, f64>(value, None)
                })?;
            }
        }
        Points::Gauges(points) => {
            for (labels, value) in points {
                labelled(&mut metric, labels, |point| point.encode_gauge(value))?;
            }
        }
        Points::Histograms(points) => {
            for (labels, distribution) in points {
                labelled(&mut metric, labels, |point| {
                    let (sum, count) = (distribution.sum, distribution.count);
                    point.encode_histogram::<NoLabelSet>(sum, count, &distribution.buckets, None)
                })?;
            }
        }
    }
    Ok(())
}

fn labelled(
    metric: &mut MetricEncoder<'_>,
    labels: &[Label],
    encode: impl FnOnce(&mut MetricEncoder<'_>) -> std::fmt::Result,
) -> std::fmt::Result {
    if labels.is_empty() {
        return encode(metric);
    }
    let labels = Labels(labels);
    encode(&mut metric.encode_family(&labels)?)
}

#[derive(Debug)]
struct Labels<'a>(&'a [Label]);

impl prometheus_client::encoding::EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        for label in self.0 {
            match label {
                Label::Shard(shard) => ("shard", u32::from(shard.0)).encode(encoder.encode_label())?,
                Label::Queue(queue) => ("queue", queue.label()).encode(encoder.encode_label())?,
                Label::Word(name, value) => (*name, *value).encode(encoder.encode_label())?,
            }
        }
        Ok(())
    }
}
