//! The device runtime's functions that the interpreter answers itself.

use super::fault::{FaultKind, Trouble};
use super::format::{Field, Specifier, TEXT_BYTES_MAX};
use super::place::Place;
use super::program::{Builtin, BuiltinKind, NO_SLOT, Space};
use super::registers::{LANES, each_lane};
use super::warp::{Context, Warp};
use crate::kernel::Clock;
use crate::memory::Memory;

impl Warp {
    /// Runs a built-in function for each lane.
    #[inline(never)]
    pub(super) fn builtin<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        builtin: &Builtin,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        if matches!(builtin.kind, BuiltinKind::Allocate | BuiltinKind::Free) {
            return self.heap(context, builtin, active);
        }
        let mut results = [0_u32; LANES];
        let mut outcome = Ok(());
        each_lane(active, |lane| {
            if outcome.is_err() {
                return;
            }
            let argument = |number: usize| {
                let slot = builtin.arguments.get(number).copied();
                slot.map_or(0, |slot| self.registers.get::<u64>(slot)[lane])
            };
            outcome = match builtin.kind {
                BuiltinKind::Print => {
                    self.print(context, lane, argument(0), argument(1)).map(|count| {
                        results[lane] = count;
                    })
                }
                _ => {
                    let arguments = std::array::from_fn(argument);
                    Err(self.assertion(context, lane, arguments))
                }
            };
        });
        outcome?;
        if builtin.result != NO_SLOT {
            self.registers.put(builtin.result, &results, active);
        }
        Ok(())
    }

    /// `malloc` and `free`, lane by lane.
    fn heap<M: Memory, C: Clock>(
        &mut self,
        context: &mut Context<'_, M, C>,
        builtin: &Builtin,
        active: u32,
    ) -> Result<(), Box<Trouble>> {
        let argument = builtin.arguments.first().copied();
        let arguments = argument.map_or([0; LANES], |slot| *self.registers.get::<u64>(slot));
        let mut results = [0_u64; LANES];
        let mut outcome = Ok(());
        each_lane(active, |lane| {
            let value = arguments[lane];
            if builtin.kind == BuiltinKind::Allocate {
                results[lane] = context.memory.allocate(value);
            } else if value != 0 && outcome.is_ok() && !context.memory.release(value) {
                outcome = Err(Trouble::at(FaultKind::InvalidFree, lane, value, 0));
            }
        });
        outcome?;
        if builtin.result != NO_SLOT {
            self.registers.put(builtin.result, &results, active);
        }
        Ok(())
    }

    /// A fault that says what `assert` says.
    fn assertion<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        [message, file, line, function]: [u64; 4],
    ) -> Box<Trouble> {
        let mut text = |address| self.text(context, lane, address).unwrap_or_default();
        let (message, file, function) = (text(message), text(file), text(function));
        let mut trouble = Trouble::new(FaultKind::Assert, 1 << lane);
        trouble.detail =
            format!("{file}:{}: {function}: assertion `{message}` failed", line as u32);
        trouble
    }

    /// Bytes at a generic address, as one lane sees them.
    fn bytes_at<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        address: u64,
        bytes: &mut [u8],
    ) -> Result<(), Box<Trouble>> {
        let place = Place { space: Space::Generic, address, lane, word: 1 };
        self.read_at(context, place, bytes)
    }

    /// A NUL-terminated string.
    fn text<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        address: u64,
    ) -> Result<String, Box<Trouble>> {
        let mut text = Vec::new();
        for offset in 0..TEXT_BYTES_MAX as u64 {
            let mut byte = [0];
            self.bytes_at(context, lane, address.wrapping_add(offset), &mut byte)?;
            if byte[0] == 0 {
                break;
            }
            text.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// `vprintf`: gives the number of arguments, or -1 for none to print.
    fn print<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        format: u64,
        arguments: u64,
    ) -> Result<u32, Box<Trouble>> {
        let format = self.text(context, lane, format)?;
        let mut out = String::new();
        let mut cursor = arguments;
        let mut count = 0;
        let mut rest = format.as_str();
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            let (specifier, after) = Specifier::parse(&rest[at + 1..]);
            rest = after;
            if specifier.conversion == '%' {
                out.push('%');
                continue;
            }
            let width = self.star(context, lane, &mut cursor, specifier.width)?;
            let precision = self.star(context, lane, &mut cursor, specifier.precision)?;
            let specifier = specifier.with(width, precision);
            let raw = self.argument(context, lane, &mut cursor, specifier.argument_bytes())?;
            count += 1;
            let text = match specifier.conversion {
                's' => specifier.text(&self.text(context, lane, raw)?),
                _ => specifier.number(raw),
            };
            out.push_str(&text);
        }
        out.push_str(rest);
        context.clock.print(&out);
        Ok(count)
    }

    /// One argument from the buffer, at its natural alignment.
    fn argument<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        cursor: &mut u64,
        size: u64,
    ) -> Result<u64, Box<Trouble>> {
        let address = cursor.wrapping_add(size - 1) & !(size - 1);
        let mut raw = [0; 8];
        self.bytes_at(context, lane, address, &mut raw[..size as usize])?;
        *cursor = address.wrapping_add(size);
        Ok(u64::from_le_bytes(raw))
    }

    /// A width or precision, taken from the arguments where it is `*`.
    fn star<M: Memory, C: Clock>(
        &self,
        context: &mut Context<'_, M, C>,
        lane: usize,
        cursor: &mut u64,
        field: Field,
    ) -> Result<Option<i32>, Box<Trouble>> {
        Ok(match field {
            Field::None => None,
            Field::Given(value) => Some(value),
            Field::Star => Some(self.argument(context, lane, cursor, 4)? as i32),
        })
    }
}
