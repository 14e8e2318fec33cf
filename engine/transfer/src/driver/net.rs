//! Sockets, real or simulated.

use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};

/// A network of streams.
pub trait Net: Clone + Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// A listening socket.
    type Listener: Send + 'static;

    /// Listens at `HOST:PORT`.
    fn bind(&self, address: &str) -> impl Future<Output = io::Result<Self::Listener>> + Send;

    /// Where it listens.
    fn address(listener: &Self::Listener) -> io::Result<SocketAddr>;

    /// The next connection.
    fn accept(listener: &Self::Listener) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Connects to `HOST:PORT`.
    fn connect(&self, address: &str) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// The machine's network.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokioNet;

impl Net for TokioNet {
    type Stream = tokio::net::TcpStream;
    type Listener = tokio::net::TcpListener;

    async fn bind(&self, address: &str) -> io::Result<Self::Listener> {
        tokio::net::TcpListener::bind(address).await
    }

    fn address(listener: &Self::Listener) -> io::Result<SocketAddr> {
        listener.local_addr()
    }

    async fn accept(listener: &Self::Listener) -> io::Result<Self::Stream> {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn connect(&self, address: &str) -> io::Result<Self::Stream> {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
