//! A plain HTTP/1.1 client, so that the server is not judged by the library it is made of.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("answers are UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The message of an error.
    pub(crate) fn message(&self) -> String {
        self.json()["error"]["message"].as_str().expect("a message").to_owned()
    }

    /// The events of a stream; the last is `None` if it is `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Option<Value>> {
        assert!(self.head.contains("content-type: text/event-stream"), "{}", self.head);
        let text = self.text();
        let events = text.strip_suffix("\n\n").expect("events end").split("\n\n");
        let data = events.map(|event| event.strip_prefix("data: ").expect("an event of data"));
        data.map(|data| (data != "[DONE]").then(|| serde_json::from_str(data).expect("JSON"))).collect()
    }
}

/// A request as bytes.
pub(crate) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A connection.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self(BufReader::new(TcpStream::connect(address).expect("the server listens")))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the server reads");
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line),
        }
    }

    /// Status and head; `None` if the server hung up.
    pub(crate) fn head(&mut self) -> Option<(u16, String)> {
        let status = self.line()?;
        let mut head = String::new();
        loop {
            match self.line()? {
                line if line == "\r\n" => break,
                line => head += &line,
            }
        }
        let code = status.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        Some((code.unwrap_or_else(|| panic!("a status line, got {status:?}")), head.to_lowercase()))
    }

    /// One piece of a chunked body; empty at its end.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.line().filter(|line| line.ends_with('\n'))?;
        let size = usize::from_str_radix(line.trim(), 16).expect("the size of a chunk");
        let mut data = vec![0; size + 2];
        self.0.read_exact(&mut data).ok()?;
        data.truncate(size);
        Some(data)
    }

    /// A whole answer; `None` if the server hung up before its end.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        let (status, head) = self.head()?;
        let mut body = Vec::new();
        if head.contains("transfer-encoding: chunked") {
            loop {
                match self.chunk()? {
                    chunk if chunk.is_empty() => break,
                    chunk => body.extend(chunk),
                }
            }
        } else {
            let len = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            body = vec![0; len.trim().parse().expect("a number")];
            self.0.read_exact(&mut body).ok()?;
        }
        Some(Answer { status, head, body })
    }
}

/// One request, one answer.
pub(crate) fn ask(address: SocketAddr, path: &str, body: &Value) -> Answer {
    ask_bytes(address, path, body.to_string().as_bytes())
}

/// The same with any bytes as body.
pub(crate) fn ask_bytes(address: SocketAddr, path: &str, body: &[u8]) -> Answer {
    let mut client = Client::connect(address);
    client.send(&post(path, body));
    client.answer().expect("an answer")
}

/// `GET`.
pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    let mut client = Client::connect(address);
    client.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes());
    client.answer().expect("an answer")
}
