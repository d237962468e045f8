//! What a handle knows, and its calls to `ringdove`.

use super::counting::{Counting, Counts};
use super::group::{Group, Opened, Shape};
use super::raw::Raw;
use super::tensor::Array;
use crate::result::{Failure, Result};
use cudarc::driver::{CudaSlice, CudaStream};
use half::{bf16, f16};
use ringdove::DataType;
use ringdove::experts::{Combined, Handle as Routed, IndexBufferMut, Received, Rows, Tokens};
use std::sync::Arc;

/// Does `$body` with `$type` for a type of tokens.
macro_rules! with_type {
    ($data_type:expr, $type:ident => $body:expr) => {
        match $data_type {
            DataType::F32 => {
                type $type = f32;
                $body
            }
            DataType::F16 => {
                type $type = f16;
                $body
            }
            DataType::BF16 => {
                type $type = bf16;
                $body
            }
            other => {
                let expected = "ncclFloat16, ncclBfloat16 or ncclFloat32";
                return Err(Failure::argument("type of tokens", expected, format!("{other:?}")));
            }
        }
    };
}

/// What calls change.
pub struct State {
    /// Known from the beginning (low latency), or from the first routing.
    pub top_k: Option<u32>,
    pub routing: Option<Routing>,
    pub ways: Vec<Way>,
    /// Where counts go that the program did not ask for.
    pub counts: CudaSlice<u32>,
    pub counting: Option<Counting>,
    pub pending: Option<Pending>,
}

/// A copy of the program's indices: it may overwrite them.
pub struct Routing {
    pub indices: CudaSlice<u8>,
    pub tokens: u32,
    pub top_k: u32,
    pub is_wide: bool,
}

/// Tokens of one shape, and where they went.
pub struct Way {
    shape: Shape,
    opened: Arc<Opened>,
    routed: Routed,
    /// Went a dispatch of the present routing this way?
    is_routed: bool,
}

/// The second half of a call that was only begun.
pub enum Pending {
    Dispatch { shape: Shape, outputs: DispatchArrays },
    Combine { shape: Shape, outputs: CombineArrays },
}

pub struct DispatchArrays {
    pub tokens: Array,
    pub indices: Option<Array>,
    pub weights: Option<Array>,
    pub counts: Option<Array>,
}

pub struct CombineArrays {
    pub tokens: Array,
    pub factors: Option<Array>,
    pub weights: Option<Array>,
}

impl State {
    /// Is no call half done?
    pub fn idle(&self) -> Result<()> {
        match self.pending {
            None => Ok(()),
            Some(_) => Err(Failure::usage("expected ncclEpComplete first: a call is half done")),
        }
    }

    /// The shape of rows.
    pub fn shape(&self, rows: &Array) -> Result<Shape> {
        let Some(top_k) = self.top_k.filter(|_| self.routing.is_some()) else {
            return Err(Failure::usage("expected ncclEpUpdateHandle first: there is no routing"));
        };
        let hidden = *rows.extents.last().expect("a tensor has a dimension");
        let Ok(hidden) = u32::try_from(hidden) else {
            return Err(Failure::argument("hidden", "less than 2^32", hidden));
        };
        Ok(Shape { top_k, hidden, data_type: rows.data_type })
    }

    /// The place for a routing.
    pub fn routed(
        &mut self,
        group: &Group,
        (tokens, top_k, is_wide): (u32, u32, bool),
        stream: &Arc<CudaStream>,
    ) -> Result<&mut Routing> {
        self.top_k = Some(top_k);
        self.ways.iter_mut().for_each(|way| way.is_routed = false);
        if self.routing.is_none() {
            let bytes = group.tokens_max as usize * top_k as usize * 8;
            let indices = zeros(stream, bytes)?;
            self.routing = Some(Routing { indices, tokens, top_k, is_wide });
        }
        let routing = self.routing.as_mut().expect("set just now");
        (routing.tokens, routing.top_k, routing.is_wide) = (tokens, top_k, is_wide);
        Ok(routing)
    }

    pub fn count(
        &mut self,
        group: &Group,
        wanted: &Counts,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let Self { routing, counting, .. } = self;
        let routing = routing.as_ref().expect("set before");
        if counting.is_none() {
            *counting = Some(Counting::new(group, routing.top_k)?);
        }
        counting.as_mut().expect("set just now").count(routing, wanted, stream)
    }

    fn way(&mut self, shape: Shape) -> Result<&mut Way> {
        self.ways.iter_mut().find(|way| way.shape == shape).ok_or_else(|| {
            Failure::usage("expected ncclEpDispatch of such tokens with this handle before")
        })
    }

    pub fn send(
        &mut self,
        group: &Group,
        shape: Shape,
        (x, weights, is_backward): (&Array, Option<&Array>, bool),
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        if !self.ways.iter().any(|way| way.shape == shape) {
            let opened = group.opened(shape)?;
            let routed = opened.experts().handle()?;
            self.ways.push(Way { shape, opened, routed, is_routed: false });
        }
        let Self { routing, ways, .. } = self;
        let routing = routing.as_ref().expect("there is a shape");
        let way = ways.iter_mut().find(|way| way.shape == shape).expect("pushed just now");
        let count = x.extents[0];
        if x.extents.len() != 2 || count != routing.tokens as usize {
            let expected = format!("extents [{}, hidden], as topk_idx has", routing.tokens);
            let seen = format!("{:?}", x.extents);
            return Err(Failure::argument("inputs->tokens", &expected, seen));
        }
        let choices = count * routing.top_k as usize;
        let weights = match weights {
            Some(weights) => Some(weights.is("inputs->topk_weights", DataType::F32, choices)?),
            None => None,
        };
        let weights = weights.map(|weights| weights.raw::<f32>(stream));
        let experts = way.opened.experts();
        with_type!(shape.data_type, T => {
            let x = x.raw::<T>(stream);
            if is_backward && way.is_routed {
                experts.dispatch_again_send(&mut way.routed, &x, None, stream)?;
                return Ok(());
            }
            macro_rules! send {
                ($index:ty) => {{
                    let indices = routing.indices.as_view();
                    // SAFETY: the copy has room for the widest.
                    let indices = unsafe { indices.transmute::<$index>(choices) };
                    let indices = indices.expect("aligned, and large enough");
                    let tokens = Tokens {
                        x: &x,
                        scales: None,
                        indices: &indices,
                        weights: weights.as_ref().map(|weights| weights as _),
                        count: routing.tokens,
                    };
                    experts.dispatch_send(&mut way.routed, &tokens, stream)?;
                }};
            }
            if routing.is_wide { send!(i64) } else { send!(i32) }
        });
        way.is_routed = true;
        Ok(())
    }

    pub fn receive(
        &mut self,
        shape: Shape,
        outputs: &DispatchArrays,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let DispatchArrays { tokens, indices, weights, counts } = outputs;
        same_type("outputs->tokens", tokens, shape)?;
        let Self { ways, counts: own_counts, .. } = self;
        let way = ways.iter_mut().find(|way| way.shape == shape).expect("sent before");
        let own = || own_counts.len();
        let (own_count, own_address) = (own(), address(own_counts, stream));
        let mut counts = match counts {
            Some(counts) => counts.raw::<u32>(stream),
            None => Raw::new(own_address, own_count, stream),
        };
        let mut wide = indices.as_ref().filter(|indices| indices.data_type == DataType::I64);
        let mut wide = wide.take().map(|indices| indices.raw::<i64>(stream));
        let mut narrow = match (indices, &wide) {
            (Some(indices), None) => {
                indices.is("outputs->topk_idx", DataType::I32, 0)?;
                Some(indices.raw::<i32>(stream))
            }
            _ => None,
        };
        let mut weights = weights.as_ref().map(|weights| weights.raw::<f32>(stream));
        let indices = match (wide.as_mut(), narrow.as_mut()) {
            (Some(wide), _) => Some(IndexBufferMut::I64(wide)),
            (None, Some(narrow)) => Some(IndexBufferMut::I32(narrow)),
            (None, None) => None,
        };
        with_type!(shape.data_type, T => {
            let mut x = tokens.raw::<T>(stream);
            let received = Received {
                x: &mut x,
                scales: None,
                counts: &mut counts,
                indices,
                weights: weights.as_mut().map(|weights| weights as _),
                sources: None,
            };
            way.opened.experts().dispatch_receive(&mut way.routed, received, stream)?;
        });
        Ok(())
    }

    pub fn give_back(
        &mut self,
        shape: Shape,
        results: &Array,
        weights: Option<&Array>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let way = self.way(shape)?;
        let weights = weights.map(|weights| weights.raw::<f32>(stream));
        with_type!(shape.data_type, T => {
            let y = results.raw::<T>(stream);
            let rows = Rows { y: &y, weights: weights.as_ref().map(|weights| weights as _) };
            way.opened.experts().combine_send(&way.routed, &rows, stream)?;
        });
        Ok(())
    }

    pub fn take_back(
        &mut self,
        shape: Shape,
        outputs: &CombineArrays,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let CombineArrays { tokens, factors, weights } = outputs;
        same_type("outputs->tokens", tokens, shape)?;
        let way = self.way(shape)?;
        if let Some(factors) = factors {
            factors.is("outputs->topk_weights", DataType::F32, 0)?;
        }
        let factors = factors.as_ref().map(|factors| factors.raw::<f32>(stream));
        let mut weights = weights.as_ref().map(|weights| weights.raw::<f32>(stream));
        with_type!(shape.data_type, T => {
            let mut x = tokens.raw::<T>(stream);
            let combined = Combined {
                x: &mut x,
                weights: weights.as_mut().map(|weights| weights as _),
                factors: factors.as_ref().map(|factors| factors as _),
                missing: None,
            };
            way.opened.experts().combine_receive(&way.routed, combined, stream)?;
        });
        Ok(())
    }
}

fn same_type(what: &str, array: &Array, shape: Shape) -> Result<()> {
    match array.data_type == shape.data_type {
        true => Ok(()),
        false => {
            let expected = format!("{:?}, as the inputs", shape.data_type);
            Err(Failure::argument(what, &expected, format!("{:?}", array.data_type)))
        }
    }
}

fn address(slice: &CudaSlice<u32>, stream: &Arc<CudaStream>) -> u64 {
    use cudarc::driver::DevicePtr;
    slice.device_ptr(stream).0
}

/// Zeroed memory.
pub fn zeros<T>(stream: &Arc<CudaStream>, count: usize) -> Result<CudaSlice<T>>
where
    T: cudarc::driver::DeviceRepr + cudarc::driver::ValidAsZeroBits,
{
    let made = stream.alloc_zeros(count.max(1));
    made.map_err(|error| Failure::cuda("cuMemAlloc", error.0))
}
