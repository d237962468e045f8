//! Reads the `.litmus` format in which tests of PTX's memory model are published: a header, the
//! initial values, one column of instructions for each thread, and a condition.
//!
//! ```text
//! PTX MP
//! "message passing"
//! { x=0; y=0; P1:r0=0; }
//!  P0@cta 0,gpu 0     | P1@cta 1,gpu 0     ;
//!  st.weak x, 1       | ld.acquire.gpu r0, y ;
//!  st.release.gpu y, 1 | ld.weak r1, x      ;
//! exists (P1:r0 == 1 /\ P1:r1 == 0)
//! ```

use super::condition::{Formula, Quantifier};
use super::{Instruction, Place, Test, Value};
use crate::memory::{AtomicOp, Order, Scope, Strength};

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct LitmusError {
    /// Where, from 1 on.
    pub line: usize,
    /// What.
    pub reason: String,
}

/// Reads one test.
///
/// # Errors
///
/// The first thing that is no litmus test, or that the model does not have (proxies, quorums).
pub fn parse(text: &str) -> Result<Test, LitmusError> {
    let at = |offset: usize, reason: String| LitmusError {
        line: text[..offset].matches('\n').count() + 1,
        reason,
    };
    let first = text.lines().next().unwrap_or_default();
    let mut words = first.split_whitespace();
    if words.next() != Some("PTX") {
        return Err(at(0, format!("expected `PTX NAME`, found `{first}`")));
    }
    let name = words.next().unwrap_or("unnamed").to_owned();
    // Braces in the quoted comment are not the ones of the initial values.
    let quoted = text.rfind('"').map_or(0, |end| end + 1);
    let open = text[quoted..].find('{').map(|open| quoted + open);
    let open = open.ok_or_else(|| at(quoted, "no `{` with initial values".to_owned()))?;
    let close = text[open..].find('}').map(|close| open + close);
    let close = close.ok_or_else(|| at(open, "the `{` is not closed".to_owned()))?;
    let mut test = Test { name, ..Test::default() };
    for item in text[open + 1..close].split(';') {
        test.initial(item.trim()).map_err(|reason| at(open, reason))?;
    }
    let rows = close + 1;
    let end = text[rows..].rfind(';').map_or(rows, |end| rows + end + 1);
    let mut offset = rows;
    for (number, row) in text[rows..end].split_terminator(';').enumerate() {
        let columns = row.split('|').map(str::trim).enumerate();
        for (thread, cell) in columns {
            let read = match number {
                0 => test.thread(thread, cell),
                _ => test.instruction(thread, cell),
            };
            let start = offset + row.len() - row.trim_start().len();
            read.map_err(|reason| at(start, reason))?;
        }
        offset += row.len() + 1;
    }
    test.claim(text[end..].trim()).map_err(|reason| at(end, reason))?;
    test.check().map_err(|reason| at(rows, reason))?;
    Ok(test)
}

fn value(text: &str) -> Result<Value, String> {
    if let Ok(number) = text.parse() {
        return Ok(Value::Number(number));
    }
    let is_register = text.strip_prefix('r').is_some_and(|n| n.parse::<u32>().is_ok());
    if is_register {
        return Ok(Value::Register(text.to_owned()));
    }
    Err(format!("`{text}` is neither a number nor a register"))
}

fn order(word: &str) -> Option<Order> {
    Some(match word {
        "weak" => Order::Weak,
        "relaxed" => Order::Relaxed,
        "acquire" => Order::Acquire,
        "release" => Order::Release,
        "acq_rel" => Order::AcquireRelease,
        "sc" => Order::SequentiallyConsistent,
        _ => return None,
    })
}

fn strength(words: &[&str]) -> Result<Strength, String> {
    let mut found = Strength { order: Order::Weak, scope: Scope::System };
    for word in words {
        match (*word, order(word)) {
            (_, Some(order)) => found.order = order,
            ("cta", _) => found.scope = Scope::Block,
            ("gpu" | "gl", _) => found.scope = Scope::Gpu,
            ("sys", _) => found.scope = Scope::System,
            _ => return Err(format!("`.{word}` is neither an order nor a scope")),
        }
    }
    Ok(found)
}

fn operation(word: &str) -> Option<AtomicOp> {
    Some(match word {
        "add" | "sub" => AtomicOp::Add,
        "and" => AtomicOp::And,
        "or" => AtomicOp::Or,
        "xor" => AtomicOp::Xor,
        "exch" => AtomicOp::Exch,
        "cas" => AtomicOp::Cas,
        _ => return None,
    })
}

impl Test {
    fn initial(&mut self, item: &str) -> Result<(), String> {
        if item.is_empty() {
            return Ok(());
        }
        let (name, number) = item.split_once('=').ok_or_else(|| {
            format!("`{item}` is no initial value: aliases and proxies are not modelled")
        })?;
        let (name, number) = (name.trim(), number.trim());
        let number = number.parse().map_err(|_| format!("`{number}` is no number"))?;
        match name.split_once(':') {
            Some((thread, register)) => {
                let thread = thread.trim_start_matches('P').parse();
                let thread = thread.map_err(|_| format!("`{name}` names no thread"))?;
                self.registers.push((thread, register.to_owned(), number));
            }
            None => self.locations.push((name.to_owned(), number)),
        }
        Ok(())
    }

    fn thread(&mut self, thread: usize, cell: &str) -> Result<(), String> {
        let wrong = || format!("`{cell}` is not like `P0@cta 0,gpu 0`");
        let (name, place) = cell.split_once('@').ok_or_else(wrong)?;
        let expected = format!("P{thread}");
        if name.trim() != expected {
            return Err(format!("expected {expected}, found {name}"));
        }
        let (block, gpu) = place.split_once(',').ok_or_else(wrong)?;
        let number = |text: &str, word: &str| {
            text.trim().strip_prefix(word).and_then(|n| n.trim().parse().ok()).ok_or_else(wrong)
        };
        let (block, gpu) = (number(block, "cta")?, number(gpu, "gpu")?);
        self.threads.push((Place::Block { gpu, block }, Vec::new()));
        Ok(())
    }

    fn instruction(&mut self, thread: usize, cell: &str) -> Result<(), String> {
        if cell.is_empty() {
            return Ok(());
        }
        if thread >= self.threads.len() {
            return Err(format!("`{cell}` belongs to no thread"));
        }
        let instruction = instruction(cell).map_err(|reason| format!("`{cell}`: {reason}"))?;
        self.threads[thread].1.push(instruction);
        Ok(())
    }

    fn claim(&mut self, text: &str) -> Result<(), String> {
        // Behind the condition there may be filters of other tools.
        let found = [
            ("~exists", Quantifier::NotExists),
            ("exists", Quantifier::Exists),
            ("forall", Quantifier::Forall),
        ]
        .into_iter()
        .find_map(|(word, quantifier)| Some((quantifier, text.strip_prefix(word)?)));
        let (quantifier, formula) =
            found.ok_or_else(|| format!("expected exists, ~exists or forall, found `{text}`"))?;
        self.claim = Some((quantifier, Formula::parse(formula.trim())?));
        Ok(())
    }

    /// Every label is there, every location has a value, and the condition names threads.
    fn check(&mut self) -> Result<(), String> {
        let mut named = Vec::new();
        for (_, code) in &self.threads {
            for instruction in code {
                if let Some(label) = instruction.target()
                    && !code.contains(&Instruction::Label(label.to_owned()))
                {
                    return Err(format!("no label {label}"));
                }
                named.extend(instruction.location().map(str::to_owned));
            }
        }
        for name in named {
            if !self.locations.iter().any(|(known, _)| *known == name) {
                self.locations.push((name, 0));
            }
        }
        Ok(())
    }
}

fn instruction(text: &str) -> Result<Instruction, String> {
    if let Some(label) = text.strip_suffix(':') {
        return Ok(Instruction::Label(label.to_owned()));
    }
    let (opcode, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let words: Vec<&str> = opcode.split('.').collect();
    let operands: Vec<&str> =
        rest.split(',').map(str::trim).filter(|operand| !operand.is_empty()).collect();
    let name = |index: usize| {
        let operand = operands.get(index).ok_or("an operand is missing")?;
        Ok::<_, String>((*operand).trim_matches(['[', ']']).to_owned())
    };
    let number = |index: usize| value(operands.get(index).ok_or("an operand is missing")?);
    match words[0] {
        "ld" if words.len() == 1 => Ok(Instruction::Move(name(0)?, number(1)?)),
        "ld" => Ok(Instruction::Load(strength(&words[1..])?, name(0)?, name(1)?)),
        "st" => Ok(Instruction::Store(strength(&words[1..])?, name(0)?, number(1)?)),
        "add" => Ok(Instruction::Add(name(0)?, number(1)?, number(2)?)),
        "fence" if words.get(1) != Some(&"proxy") => Ok(Instruction::Fence(strength(&words[1..])?)),
        "atom" | "red" => {
            let word = words.last().copied().unwrap_or_default();
            let op = operation(word).ok_or_else(|| format!("`.{word}` is not modelled"))?;
            let strength = strength(&words[1..words.len() - 1])?;
            let first = usize::from(words[0] == "atom");
            let register = (first == 1).then(|| name(0)).transpose()?;
            let (mut operand, mut compare) = (number(first + 1)?, Value::Number(0));
            if op == AtomicOp::Cas {
                (compare, operand) = (operand, number(first + 2)?);
            }
            if word == "sub" {
                let Value::Number(number) = operand else {
                    return Err("a difference of registers is not modelled".to_owned());
                };
                operand = Value::Number(-number);
            }
            let location = name(first)?;
            Ok(Instruction::Atomic { strength, op, register, location, operand, compare })
        }
        "bar" if words[1..] == ["cta", "sync"] && operands.len() < 3 => {
            Ok(Instruction::Barrier(number(operands.len().saturating_sub(1))?))
        }
        "beq" => Ok(Instruction::Branch(number(0)?, number(1)?, true, name(2)?)),
        "bne" => Ok(Instruction::Branch(number(0)?, number(1)?, false, name(2)?)),
        "goto" => Ok(Instruction::Jump(name(0)?)),
        _ => Err("an instruction that the model does not have".to_owned()),
    }
}
