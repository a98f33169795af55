//! A scraper beside a run: it reads the gateway's metrics at a pace in every other stretch of the run, so that what
//! scraping costs is told by one gateway under one load.
//!
//! 1. Stretches are of one length, and the first is without; one that the end cuts short does not count.
//! 2. What a scrape costs the scraper is the load's, not the gateway's.

use std::time::{Duration, Instant};

use anyhow::Context;
use gateway_testbed::process::usage;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::report::ScrapeShare;
use crate::sampler::cpu_percent;
use crate::world::{MetricsSource, World};

/// Stretches of a run, if they are no shorter than that.
const STRETCHES: u32 = 10;
const SHORTEST: Duration = Duration::from_secs(2);

/// A running scraper.
#[derive(Debug)]
pub(crate) struct Scraper {
    task: JoinHandle<anyhow::Result<ScrapeShare>>,
    stop: oneshot::Sender<()>,
}

impl Scraper {
    /// Scrapes the gateway every `every`, for `duration`.
    pub(crate) fn start(world: &World, every: Duration, duration: Duration) -> anyhow::Result<Self> {
        let source = world.metrics_source()?;
        let pid = world.gateway_pid().context("--scrape needs the gateway's process")?;
        let stretch = (duration / STRETCHES).max(SHORTEST).max(every * 2);
        let (stop, stopped) = oneshot::channel();
        let share = ScrapeShare { every_s: every.as_secs_f64(), ..ScrapeShare::default() };
        let run = Run { source, pid, every, stretch, share };
        Ok(Self { task: tokio::spawn(run.run(stopped)), stop })
    }

    pub(crate) async fn stop(self) -> anyhow::Result<ScrapeShare> {
        drop(self.stop);
        self.task.await.context("the scraper's task")?
    }
}

struct Run {
    source: MetricsSource,
    pid: u32,
    every: Duration,
    stretch: Duration,
    share: ScrapeShare,
}

impl Run {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) -> anyhow::Result<ScrapeShare> {
        let mut scrapes = false;
        loop {
            let (before, began) = (usage(self.pid)?, Instant::now());
            tokio::select! {
                // Dropped at the end of the run.
                _ = &mut stopped => return Ok(self.share),
                outcome = self.stretch(scrapes) => outcome?,
            }
            let cpu = cpu_percent(before, usage(self.pid)?, began.elapsed());
            let (with, without) = (&mut self.share.cpu_percent_with, &mut self.share.cpu_percent_without);
            if scrapes {
                with.push(cpu)
            } else {
                without.push(cpu)
            }
            scrapes = !scrapes;
        }
    }

    async fn stretch(&mut self, scrapes: bool) -> anyhow::Result<()> {
        let until = tokio::time::Instant::now() + self.stretch;
        if !scrapes {
            tokio::time::sleep_until(until).await;
            return Ok(());
        }
        let first = tokio::time::Instant::now() + self.every / 2;
        let mut pace = tokio::time::interval_at(first, self.every);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return Ok(()),
                _ = pace.tick() => {}
            }
            let began = Instant::now();
            let bytes = self.source.scrape().await?;
            self.share.ms.push(began.elapsed().as_secs_f64() * 1e3);
            self.share.bytes = bytes;
        }
    }
}
