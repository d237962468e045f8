//! Where tokens travel: to the GPUs of their experts and back, or nowhere.

use super::train::Result;
use cudarc::driver::{CudaSlice, CudaStream};
use ringdove::Communicator;
use ringdove::experts::{Combined, Group, Handle, IndexBufferMut, Received, Rows, Tokens};
use std::sync::Arc;

/// How a worker reaches the experts.
pub enum Exchange<'c> {
    /// They are all here: tokens are rows.
    Alone,
    /// They are on all GPUs. The handle knows the way of the step's tokens.
    Grouped { communicator: &'c Communicator, group: Box<Group<'c>>, handle: Box<Handle> },
}

/// One value for each choice of a token or a row.
pub struct Choices {
    pub experts: CudaSlice<i32>,
    pub weights: CudaSlice<f32>,
}

/// What a worker sends; to itself, where it is alone.
pub struct Sent<'a> {
    pub tokens: &'a CudaSlice<f32>,
    pub count: u32,
    pub choices: &'a Choices,
}

/// Rows of this GPU: what came for its experts.
pub struct Arrived<'a> {
    pub rows: &'a mut CudaSlice<f32>,
    /// Choices of each expert, and the number of rows.
    pub counts: &'a mut CudaSlice<u32>,
    pub choices: &'a mut Choices,
}

/// What experts give for each row, or what came of it for each token.
pub struct Given<'a> {
    pub values: &'a mut CudaSlice<f32>,
    /// One number for each choice beside it.
    pub weights: Option<&'a mut CudaSlice<f32>>,
}

impl<'c> Exchange<'c> {
    pub fn new(communicator: &'c Communicator, group: Group<'c>) -> Result<Self> {
        let handle = Box::new(group.handle()?);
        Ok(Self::Grouped { communicator, group: Box::new(group), handle })
    }

    /// Forwards: the tokens leave.
    pub fn send(&mut self, sent: &Sent<'_>, stream: &Arc<CudaStream>) -> Result<()> {
        let Self::Grouped { group, handle, .. } = self else { return Ok(()) };
        let Choices { experts: indices, weights } = sent.choices;
        let (x, count) = (sent.tokens, sent.count);
        let tokens = Tokens { x, scales: None, indices, weights: Some(weights), count };
        Ok(group.dispatch_send(handle, &tokens, stream)?)
    }

    /// Backwards: gradients of what the experts gave leave, on the way of the tokens.
    pub fn send_again(&mut self, sent: &Sent<'_>, stream: &Arc<CudaStream>) -> Result<()> {
        let Self::Grouped { group, handle, .. } = self else { return Ok(()) };
        Ok(group.dispatch_again_send(handle, sent.tokens, None, stream)?)
    }

    /// What all workers sent arrives.
    pub fn receive(
        &mut self,
        sent: &Sent<'_>,
        arrived: Arrived<'_>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let Arrived { rows, counts, choices } = arrived;
        let Self::Grouped { group, handle, .. } = self else {
            let last = counts.len() - 1;
            stream.memcpy_htod(&[sent.count], &mut counts.slice_mut(last..))?;
            stream.memcpy_dtod(&sent.choices.experts, &mut choices.experts)?;
            stream.memcpy_dtod(&sent.choices.weights, &mut choices.weights)?;
            return Ok(stream.memcpy_dtod(sent.tokens, rows)?);
        };
        let Choices { experts, weights } = choices;
        let (indices, weights): (_, _) = (Some(IndexBufferMut::I32(experts)), Some(weights as _));
        let received = Received { x: rows, scales: None, counts, indices, weights, sources: None };
        Ok(group.dispatch_receive(handle, received, stream)?)
    }

    /// What the experts have given for each row leaves, to where the token came from.
    pub fn give_back(&mut self, given: &Given<'_>, stream: &Arc<CudaStream>) -> Result<()> {
        let Self::Grouped { group, handle, .. } = self else { return Ok(()) };
        let weights = given.weights.as_deref().map(|weights| weights as _);
        Ok(group.combine_send(handle, &Rows { y: given.values, weights }, stream)?)
    }

    /// What all experts have given for this worker's tokens is added.
    pub fn take_back(
        &mut self,
        given: &Given<'_>,
        into: Given<'_>,
        stream: &Arc<CudaStream>,
    ) -> Result<()> {
        let Given { values, weights } = into;
        let Self::Grouped { group, handle, .. } = self else {
            if let (Some(from), Some(into)) = (given.weights.as_deref(), weights) {
                stream.memcpy_dtod(from, into)?;
            }
            return Ok(stream.memcpy_dtod(given.values, values)?);
        };
        let weights = weights.map(|weights| weights as _);
        Ok(group.combine_receive(
            handle,
            Combined { x: values, weights, factors: None, missing: None },
            stream,
        )?)
    }

    /// Gathers the gradients of all workers: each has its own part of the buffer.
    pub fn gather(&self, parts: &mut CudaSlice<f32>, stream: &Arc<CudaStream>) -> Result<()> {
        let Self::Grouped { communicator, .. } = self else { return Ok(()) };
        Ok(communicator.all_gather_in_place(parts, stream)?)
    }

    /// Fails where something was wrong with the step, on any GPU. The caller has waited for it.
    pub fn check(&self) -> Result<()> {
        let Self::Grouped { group, .. } = self else { return Ok(()) };
        Ok(group.check()?)
    }
}
