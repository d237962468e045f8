//! Variables of the program's device code, by their host shadows.

use crate::call::{Out, Stream, runtime_calls};
use crate::copy::{Return, check_direction, copy};
use crate::error::{INVALID_VALUE, Outcome};
use crate::registry::variable;
use std::ffi::c_int;

/// Where a part of a variable is.
pub(crate) fn part(symbol: u64, bytes: usize, offset: usize) -> Outcome<u64> {
    let (address, size) = variable(symbol)?.place()?;
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok(address + offset as u64),
        _ => Err(INVALID_VALUE),
    }
}

runtime_calls! {
    with device_call;

    fn cudaGetSymbolAddress(address: Out<u64>, symbol: u64) {
        address.set(variable(symbol)?.place()?.0)
    }

    fn cudaGetSymbolSize(bytes: Out<usize>, symbol: u64) {
        bytes.set(variable(symbol)?.place()?.1)
    }

    #[twin(cudaMemcpyToSymbol_ptds)]
    fn cudaMemcpyToSymbol(symbol: u64, from: u64, bytes: usize, offset: usize, kind: c_int) {
        check_direction(kind)?;
        copy(part(symbol, bytes, offset)?, from, bytes, 0, Return::Done)
    }

    #[twin(cudaMemcpyToSymbolAsync_ptsz)]
    fn cudaMemcpyToSymbolAsync(
        symbol: u64, from: u64, bytes: usize, offset: usize, kind: c_int, on: Stream,
    ) {
        check_direction(kind)?;
        copy(part(symbol, bytes, offset)?, from, bytes, on, Return::Queued)
    }

    #[twin(cudaMemcpyFromSymbol_ptds)]
    fn cudaMemcpyFromSymbol(to: u64, symbol: u64, bytes: usize, offset: usize, kind: c_int) {
        check_direction(kind)?;
        copy(to, part(symbol, bytes, offset)?, bytes, 0, Return::Done)
    }

    #[twin(cudaMemcpyFromSymbolAsync_ptsz)]
    fn cudaMemcpyFromSymbolAsync(
        to: u64, symbol: u64, bytes: usize, offset: usize, kind: c_int, on: Stream,
    ) {
        check_direction(kind)?;
        copy(to, part(symbol, bytes, offset)?, bytes, on, Return::Queued)
    }
}
