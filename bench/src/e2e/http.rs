//! The same clients against a server, over connections of their own that stay open.

use super::transfer::Transfer;
use super::{E2eArgs, E2eError, E2eReport, GraphFigures, Run, Seen, figures, num_requests, prompts};
use crate::moved::Moved;
use crate::serving::{ScheduleKind, Setup, progress_bar};
use engine::checkpoint::Checkpoint;
use engine::ids::TokenId;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Every run of the command.
pub(super) fn all(args: &E2eArgs, url: &str, checkpoint: &Checkpoint, quiet: bool) -> Result<E2eReport, E2eError> {
    let config = checkpoint.config();
    let one = |args: &E2eArgs, concurrency, quiet| -> Result<Run, E2eError> {
        let prompts: Vec<_> = prompts(args, config, checkpoint.dir())?.take(num_requests(args, concurrency)).collect();
        let address = address(url)?;
        run(args, &address, &prompts, concurrency, quiet)
            .map_err(|error| E2eError::Server { url: url.to_owned(), message: error.to_string() })
    };
    let moved = || {
        Moved::by(&args.prefill_servers)
            .map_err(|error| E2eError::Server { url: url.to_owned(), message: format!("prefill servers: {error}") })
    };
    let before = moved()?;
    let mut runs = Vec::new();
    for &concurrency in &args.concurrency {
        if args.warm_up {
            one(&E2eArgs { seed: !args.seed, ..args.clone() }, concurrency, true)?;
        }
        runs.push(one(args, concurrency, quiet)?);
    }
    let setup = Setup {
        model: checkpoint.dir().display().to_string(),
        device: "server".into(),
        tp: args.model.tp,
        activations: String::new(),
        kv: args.model.kv.unwrap_or(crate::serving::Kv::V4Fp8),
        index_k: args.model.index_k.unwrap_or(crate::serving::IndexK::Fp8),
        schedule: ScheduleKind::Overlap,
        mtp: false,
        cache_bytes: 0,
        host_bytes: 0,
        url: Some(url.to_owned()),
    };
    let graphs = GraphFigures::default();
    let transfer = match args.prefill_servers.is_empty() {
        true => None,
        false => Some(Transfer::measured(moved()?.since(before))?),
    };
    Ok(E2eReport { setup, machine: crate::report::machine_facts(), runs, graphs, transfer })
}

/// Host and port of a URL.
fn address(url: &str) -> Result<String, E2eError> {
    let rest = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let address =
        rest.filter(|rest| !rest.contains('/') && rest.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok()));
    address.map(str::to_owned).ok_or_else(|| {
        let message = "expected a URL of the form http://HOST:PORT".to_owned();
        E2eError::Server { url: url.to_owned(), message }
    })
}

fn run(args: &E2eArgs, address: &str, prompts: &[Vec<TokenId>], concurrency: u32, quiet: bool) -> Result<Run, Error> {
    let bar = progress_bar(prompts.len() as u64 * u64::from(args.new_tokens), "tokens", !quiet);
    let (next, seen) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let connections = (0..concurrency).map(|_| Connection::open(address)).collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    let client = |mut connection: Connection| -> Result<(), Error> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(prompt) = prompts.get(number) else { return Ok(()) };
            let body = json!({
                "prompt": prompt, "max_tokens": args.new_tokens, "temperature": args.temperature,
                "seed": args.seed.wrapping_add(number as u64), "ignore_eos": args.ignore_eos, "return_token_ids": true,
                "stream": true, "stream_options": { "include_usage": true },
            });
            let submitted = start.elapsed().as_secs_f64();
            let mut request = Seen { number, prompt_tokens: prompt.len(), submitted, ..Seen::default() };
            connection.ask(&body, |event| {
                let at = start.elapsed().as_secs_f64();
                for id in event["choices"][0]["token_ids"].as_array().into_iter().flatten() {
                    bar.inc(1);
                    request.tokens.push((id.as_u64().unwrap_or(u64::MAX) as u32, at));
                }
                request.failed |= event.get("error").is_some();
                let cached = event["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
                request.cached = cached.map_or(request.cached, |cached| cached as u32);
            })?;
            seen.lock().expect("no client panics").push(request);
        }
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = connections.into_iter().map(|connection| scope.spawn(|| client(connection))).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("no client panics"))
    })?;
    bar.finish_and_clear();
    Ok(figures(concurrency, &seen.into_inner().expect("no client panics")))
}

/// An HTTP/1.1 connection that asks for streams, one after another.
pub(crate) struct Connection {
    address: String,
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: &str) -> Result<Self, Error> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { address: address.to_owned(), reader: BufReader::new(stream) })
    }

    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Asks, and hands every event over as it comes.
    pub(crate) fn ask(&mut self, body: &Value, mut event: impl FnMut(&Value)) -> Result<(), Error> {
        let body = body.to_string();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        self.reader.get_mut().write_all((head + &body).as_bytes())?;
        let status = self.line()?;
        let mut length = None;
        loop {
            match self.line()?.to_lowercase() {
                line if line.is_empty() => break,
                line => {
                    length = line.strip_prefix("content-length:").and_then(|n| n.trim().parse::<u64>().ok()).or(length)
                }
            }
        }
        if !status.starts_with("HTTP/1.1 200") {
            let mut message = String::new();
            (&mut self.reader).take(length.unwrap_or(0).min(4096)).read_to_string(&mut message)?;
            return Err(Error::other(format!("{status}: {message}")));
        }
        let mut text = Vec::new();
        loop {
            let size = self.line()?;
            let size = usize::from_str_radix(&size, 16)
                .map_err(|_| Error::other(format!("expected a chunk, got {size:?}")))?;
            let begun = text.len();
            text.resize(begun + size + 2, 0);
            self.reader.read_exact(&mut text[begun..])?;
            text.truncate(begun + size);
            // Events may stand across chunks, and several in one.
            while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
                let data = text.drain(..end + 2).skip("data: ".len()).collect::<Vec<u8>>();
                if !data.starts_with(b"[DONE]") {
                    event(&serde_json::from_slice(&data)?);
                }
            }
            if size == 0 {
                return Ok(());
            }
        }
    }
}
