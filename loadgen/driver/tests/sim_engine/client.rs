//! An HTTP/1.1 client that hides nothing: header names as sent, one chunk at a time.

use std::{fmt::Write, net::SocketAddr};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// Empty for bodies of known length.
    pub(crate) chunks: Vec<String>,
    /// Whether the body came to its proper end.
    pub(crate) complete: bool,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {}", self.body))
    }

    /// Payloads of the events of a stream, without `[DONE]`.
    pub(crate) fn events(&self) -> Vec<serde_json::Value> {
        let data = self
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        data.filter(|d| *d != "[DONE]")
            .map(|d| serde_json::from_str(d).unwrap_or_else(|e| panic!("{e} in {d}")))
            .collect()
    }
}

/// A connection that stays open.
pub(crate) struct Connection {
    pub(crate) stream: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) async fn open(addr: SocketAddr) -> std::io::Result<Self> {
        Ok(Self {
            stream: BufReader::new(TcpStream::connect(addr).await?),
        })
    }

    pub(crate) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: engine\r\n");
        if method == "POST" {
            let _ = write!(
                head,
                "content-type: application/json\r\ncontent-length: {}\r\n",
                body.len()
            );
        }
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let request = format!("{head}\r\n{body}");
        self.stream
            .write_all(request.as_bytes())
            .await
            .expect("the connection is open");
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).await.ok()?;
        (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Status and headers, or `None` if the connection ends first.
    pub(crate) async fn head(&mut self) -> Option<Response> {
        let status = self.line().await?;
        let status = status.split(' ').nth(1)?.parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(": ") else {
                break;
            };
            headers.push((name.to_owned(), value.to_owned()));
        }
        Some(Response {
            status,
            headers,
            body: String::new(),
            chunks: Vec::new(),
            complete: false,
        })
    }

    /// The next chunk; `None` if the connection breaks, empty at the end.
    pub(crate) async fn chunk(&mut self) -> Option<String> {
        let size = usize::from_str_radix(&self.line().await?, 16).ok()?;
        let mut bytes = vec![0; size + 2];
        self.stream.read_exact(&mut bytes).await.ok()?;
        bytes.truncate(size);
        Some(String::from_utf8(bytes).expect("chunks never split a character"))
    }

    pub(crate) async fn receive(&mut self) -> Option<Response> {
        let mut response = self.head().await?;
        if response
            .header("transfer-encoding")
            .is_some_and(|v| v.contains("chunked"))
        {
            while let Some(chunk) = self.chunk().await {
                if chunk.is_empty() {
                    response.complete = true;
                    break;
                }
                response.body.push_str(&chunk);
                response.chunks.push(chunk);
            }
            return Some(response);
        }
        let length: usize = response
            .header("content-length")
            .and_then(|v| v.parse().ok())
            .unwrap_or(0);
        let mut bytes = vec![0; length];
        let mut read = 0;
        while read < length {
            match self.stream.read(&mut bytes[read..]).await {
                Ok(0) | Err(_) => break,
                Ok(n) => read += n,
            }
        }
        response.complete = read == length;
        response.body = String::from_utf8_lossy(&bytes[..read]).into_owned();
        Some(response)
    }
}

pub(crate) async fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Response {
    let mut connection = Connection::open(addr).await.expect("the engine listens");
    connection.send(method, path, headers, body).await;
    connection.receive().await.expect("the engine answers")
}

pub(crate) async fn get(addr: SocketAddr, path: &str) -> Response {
    request(addr, "GET", path, &[], "").await
}

pub(crate) async fn post(addr: SocketAddr, path: &str, body: &serde_json::Value) -> Response {
    request(addr, "POST", path, &[], &body.to_string()).await
}
