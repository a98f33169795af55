//! Load processes: some of the nodes of a run in a process of their own, since one process has no more files
//! than its limit, and one core.
//!
//! Orders go in as lines of JSON, news come out the same way; the clock is the same for all.
//!
//! 1. A process whose standard input is closed says Goodbye with every node and ends. So it ends with the run,
//!    however that ends.
//! 2. Each has an execution log of its own, whole when it has ended.

use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use gateway_testbed::node::{Behaviour, Execution, ExecutionLog, NodeEvent, Observer, RedialBounds};
use gateway_testbed::pki::Pki;

use super::counts::FleetCounts;
use super::news::{News, Order};
use super::{FleetPlan, NodeStart, carry_out, goodbye_all, record};
use crate::arguments::LoadProcessArguments;

/// The database where certificates are recorded: in the environment, since a password may stand in the URL.
const RECORDED_IN: &str = "GATEWAY_BENCH_DATABASE_URL";
const LAG_EVERY: Duration = Duration::from_millis(20);
const END_WITHIN: Duration = Duration::from_secs(30);

/// A process with nodes, seen from the run. Killed when dropped.
#[derive(Debug)]
pub(super) struct LoadProcess {
    child: Child,
    // Closed when it is to end.
    orders: Mutex<Option<ChildStdin>>,
    reader: Option<JoinHandle<()>>,
}

impl LoadProcess {
    /// Starts it with the nodes `names`, the first of which is number `first` among all.
    pub(super) fn start(
        plan: &FleetPlan,
        pki: &Path,
        number: usize,
        first: usize,
        names: &[String],
        ids: Vec<Arc<str>>,
        counts: &Arc<FleetCounts>,
    ) -> anyhow::Result<Self> {
        let folder = plan.log.path().parent().unwrap_or_else(|| Path::new("."));
        let names_file = folder.join(format!("load-{number}.names"));
        std::fs::write(&names_file, names.join("\n")).context("writing the names of nodes")?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("load-process").arg("--pki").arg(pki).arg("--names").arg(&names_file);
        command.arg("--log").arg(log_of(plan.log.path(), number)).arg("--first").arg(first.to_string());
        command.arg("--per-second").arg((plan.per_second / plan.processes as f64).to_string());
        command.arg("--source-addresses").arg(plan.source_addresses.to_string());
        command.arg("--redial-first").arg(humantime::format_duration(plan.redial.first).to_string());
        command.arg("--redial-max").arg(humantime::format_duration(plan.redial.max).to_string());
        command.arg("--transport").arg(plan.transport.name());
        if let Execution::After(time) = plan.behaviour.execution {
            command.arg("--execution").arg(humantime::format_duration(time).to_string());
        }
        for address in &plan.addresses {
            command.arg("--address").arg(address.to_string());
        }
        if let Some(url) = &plan.recorded_in {
            command.env(RECORDED_IN, url);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a load process")?;
        let orders = Mutex::new(child.stdin.take());
        let output = child.stdout.take().context("the output of a load process")?;
        let counts = Arc::clone(counts);
        let reader = std::thread::Builder::new().name(format!("load-{number}"));
        let reader = reader.spawn(move || read_news(output, first, &ids, &counts))?;
        Ok(Self { child, orders, reader: Some(reader) })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails where it has ended before its time.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!("a load process ended with {status}");
        }
        Ok(())
    }

    pub(super) fn order(&self, order: Order) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended is found out by who waits for its nodes.
        if let (Some(orders), Ok(line)) = (orders.as_mut(), serde_json::to_string(&order)) {
            let _ = writeln!(orders, "{line}");
        }
    }

    fn close_orders(&self) {
        drop(self.orders.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Lets its nodes say Goodbye, and waits for its end.
    pub(super) async fn close(mut self) -> anyhow::Result<()> {
        self.close_orders();
        let started = Instant::now();
        while self.child.try_wait()?.is_none() {
            anyhow::ensure!(started.elapsed() < END_WITHIN, "a load process does not end");
            tokio::time::sleep(LAG_EVERY).await;
        }
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        Ok(())
    }
}

impl Drop for LoadProcess {
    fn drop(&mut self) {
        self.close_orders();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The execution log of load process `number`, beside that of the run.
pub(crate) fn log_of(log: &Path, number: usize) -> PathBuf {
    log.with_file_name(format!("nodes-{number}.jsonl"))
}

fn read_news(output: impl io::Read, first: usize, ids: &[Arc<str>], counts: &FleetCounts) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let Ok((node, news)) = serde_json::from_str::<(usize, News)>(&line) else { continue };
        if let Some(id) = ids.get(node.saturating_sub(first)) {
            counts.take(id, news);
        }
    }
}

/// Tells the run what one node sees.
struct Teller {
    node: usize,
    news: mpsc::Sender<(usize, News)>,
}

impl Observer for Teller {
    fn on_event(&self, _node: &Arc<str>, event: NodeEvent) {
        if let Some(news) = News::of(event) {
            let _ = self.news.send((self.node, news));
        }
    }
}

/// What a load process does, until its standard input is closed.
pub(crate) async fn serve(arguments: LoadProcessArguments) -> anyhow::Result<bool> {
    let names = std::fs::read_to_string(&arguments.names)
        .with_context(|| format!("reading {}", arguments.names.display()))?;
    let names: Vec<String> = names.lines().map(str::to_owned).collect();
    crate::host::allow_files(names.len() as u64 + 300)?;
    let pki = Pki::open(&arguments.pki)?;
    let execution = arguments.execution.map_or(Execution::Instantly, Execution::After);
    let plan = FleetPlan {
        addresses: arguments.addresses,
        names,
        per_second: arguments.per_second,
        behaviour: Behaviour { execution, ..Behaviour::default() },
        redial: RedialBounds { first: arguments.redial_first, max: arguments.redial_max },
        from: None,
        transport: arguments.transport,
        log: Arc::new(ExecutionLog::open(&arguments.log)?),
        processes: 1,
        source_addresses: arguments.source_addresses,
        pki_folder: None,
        recorded_in: std::env::var(RECORDED_IN).ok(),
    };
    let (news, to_tell) = mpsc::channel();
    let telling = std::thread::Builder::new().name("news".to_owned()).spawn(move || tell_all(&to_tell))?;
    let mut orders = read_orders()?;
    let mut nodes = Vec::with_capacity(plan.names.len());
    let (mut starts, serials) = NodeStart::all(&plan, &pki, arguments.first)?;
    record(&plan, &starts, &serials).await?;
    let mut lag = tokio::time::interval(LAG_EVERY);
    let (mut latest, mut told_at) = (0, Instant::now());
    let started = Instant::now();
    loop {
        let due = Duration::from_secs_f64(nodes.len() as f64 / plan.per_second);
        let next = (!starts.is_empty()).then(|| due.saturating_sub(started.elapsed()));
        tokio::select! {
            order = orders.recv() => match order {
                Some(order) => carry_out(&nodes, arguments.first, order),
                None => break,
            },
            () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => {
                if let Some(start) = starts.pop_front() {
                    let observer = Teller { node: arguments.first + nodes.len(), news: news.clone() };
                    nodes.push(start.start(&plan, Arc::new(observer)));
                }
            }
            due = lag.tick() => {
                latest = latest.max(u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX));
                if told_at.elapsed() >= Duration::from_secs(1) {
                    let _ = news.send((arguments.first, News::Lag { ns: std::mem::take(&mut latest) }));
                    told_at = Instant::now();
                }
            }
        }
    }
    goodbye_all(nodes).await;
    plan.log.flush()?;
    drop(news);
    tokio::task::spawn_blocking(move || telling.join()).await?.ok();
    Ok(true)
}

// Many news are one write.
fn tell_all(to_tell: &mpsc::Receiver<(usize, News)>) {
    let mut output = BufWriter::new(io::stdout().lock());
    while let Ok(first) = to_tell.recv() {
        for news in std::iter::once(first).chain(to_tell.try_iter()) {
            let written = serde_json::to_writer(&mut output, &news).map_err(io::Error::from);
            if written.and_then(|()| output.write_all(b"\n")).is_err() {
                return;
            }
        }
        if output.flush().is_err() {
            return;
        }
    }
}

fn read_orders() -> anyhow::Result<tokio::sync::mpsc::UnboundedReceiver<Order>> {
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    let thread = std::thread::Builder::new().name("orders".to_owned());
    thread.spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(order) if tell.send(order).is_ok() => {}
                _ => return,
            }
        }
    })?;
    Ok(told)
}
