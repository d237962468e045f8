//! Tensors by gRPC, as frameworks move them: each rank has a service that is asked for a tensor by
//! name and step, and answers when it is there, in one message with the values as bytes.

use prost::Message;
use prost::bytes::Bytes;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

const PATH: &str = "/ringdove.graphs.Tensors/Receive";

/// Which tensor, of which step, for whom.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Wanted {
    #[prost(uint64, tag = "1")]
    pub step: u64,
    #[prost(string, tag = "2")]
    pub tensor: String,
    #[prost(uint32, tag = "3")]
    pub reader: u32,
}

/// Its values.
#[derive(Clone, PartialEq, Message)]
pub struct Values {
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
}

/// Either side may come first.
enum Waiting {
    Values(Bytes),
    Reader(oneshot::Sender<Bytes>),
}

/// Where producers leave tensors and readers wait for them.
#[derive(Clone, Default)]
struct Meeting(Arc<Mutex<HashMap<Wanted, Waiting>>>);

impl Meeting {
    fn put(&self, name: Wanted, data: Bytes) {
        let mut all = self.0.lock().unwrap();
        match all.remove(&name) {
            Some(Waiting::Reader(reader)) => drop(reader.send(data)),
            _ => drop(all.insert(name, Waiting::Values(data))),
        }
    }

    async fn take(&self, name: Wanted) -> Result<Bytes, Status> {
        let waits = {
            let mut all = self.0.lock().unwrap();
            match all.remove(&name) {
                Some(Waiting::Values(data)) => return Ok(data),
                Some(Waiting::Reader(_)) => {
                    return Err(Status::already_exists(format!("{name:?} is asked for twice")));
                }
                None => {
                    let (sender, receiver) = oneshot::channel();
                    all.insert(name, Waiting::Reader(sender));
                    receiver
                }
            }
        };
        waits.await.map_err(|_| Status::aborted("the rank ends"))
    }
}

/// Answers one request.
#[derive(Clone)]
struct Receive(Meeting);

impl tonic::server::UnaryService<Wanted> for Receive {
    type Response = Values;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Response<Values>, Status>> + Send + 'static>>;

    fn call(&mut self, request: Request<Wanted>) -> Self::Future {
        let meeting = self.0.clone();
        Box::pin(async move {
            let data = meeting.take(request.into_inner()).await?;
            Ok(Response::new(Values { data }))
        })
    }
}

/// The service of one rank, and its connections to others.
pub struct Rpc {
    runtime: Runtime,
    meeting: Meeting,
    channels: HashMap<u16, Channel>,
    /// Where others find it, on this machine.
    pub port: u16,
}

impl Rpc {
    /// Serves on a port of its own.
    ///
    /// # Panics
    /// Where no port can be had.
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let meeting = Meeting::default();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let of_service = meeting.clone();
        let service = tower::service_fn(move |request: http::Request<tonic::body::Body>| {
            let receive = Receive(of_service.clone());
            async move {
                let codec = ProstCodec::<Values, Wanted>::default();
                let mut grpc = tonic::server::Grpc::new(codec)
                    .apply_max_message_size_config(None, Some(usize::MAX));
                Ok::<_, Infallible>(grpc.unary(receive, request).await)
            }
        });
        runtime.spawn(Server::builder().serve_with_incoming(service, incoming));
        Self { runtime, meeting, channels: HashMap::new(), port }
    }

    /// Gives a tensor to whoever asks for it.
    pub fn put(&self, name: Wanted, data: Vec<u8>) {
        self.meeting.put(name, data.into());
    }

    /// Asks the rank at `port` for a tensor; it may take until it is computed.
    ///
    /// # Panics
    /// Where nobody listens.
    pub fn ask(&mut self, port: u16, name: Wanted) -> JoinHandle<Bytes> {
        let channel = self.channels.entry(port).or_insert_with(|| {
            let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
            let endpoint = endpoint.tcp_nodelay(true);
            // As wide as a tensor, where the defaults of HTTP/2 are 64 KiB.
            let endpoint = endpoint.initial_stream_window_size(16 << 20);
            let endpoint = endpoint.initial_connection_window_size(16 << 20);
            self.runtime.block_on(endpoint.connect()).unwrap()
        });
        let mut grpc =
            tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
        self.runtime.spawn(async move {
            grpc.ready().await.unwrap();
            let path = http::uri::PathAndQuery::from_static(PATH);
            let codec = ProstCodec::<Wanted, Values>::default();
            let answer = grpc.unary(Request::new(name), path, codec).await;
            answer.expect("a tensor").into_inner().data
        })
    }

    /// Waits for what was asked for.
    ///
    /// # Panics
    /// Where the other rank does not answer.
    pub fn wait(&self, asked: JoinHandle<Bytes>) -> Bytes {
        self.runtime.block_on(asked).unwrap()
    }
}

impl Default for Rpc {
    fn default() -> Self {
        Self::new()
    }
}
