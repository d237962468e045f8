//! Expressions: what is computed for each element, as instructions for a small stack.

use super::error::ProgramError;
use ringdove_kernels::program::{
    EXPRESSION_DEPTH, Instruction, PARAMETERS, TASK_OPERANDS, TaskElement,
};

/// A list of instructions in postfix order. `load(1).load(2).add().store(0)` adds operands 1 and 2
/// into operand 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Expression {
    words: Vec<(Instruction, u32)>,
}

macro_rules! instructions {
    ($($(#[$doc:meta])* $name:ident => $instruction:ident),+ $(,)?) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(self) -> Self {
            self.with(Instruction::$instruction, 0)
        })+
    };
}

impl Expression {
    /// No instruction: the value as it is.
    pub fn new() -> Self {
        Self::default()
    }

    fn with(mut self, instruction: Instruction, number: u32) -> Self {
        self.words.push((instruction, number));
        self
    }

    /// Pushes the element of an operand.
    #[must_use]
    pub fn load(self, operand: u32) -> Self {
        self.with(Instruction::Load, operand)
    }

    /// Writes the top to an operand, and keeps it.
    #[must_use]
    pub fn store(self, operand: u32) -> Self {
        self.with(Instruction::Store, operand)
    }

    /// Pushes a constant.
    #[must_use]
    pub fn constant(self, value: f32) -> Self {
        self.with(Instruction::Constant, value.to_bits())
    }

    /// Pushes a parameter of the iteration.
    #[must_use]
    pub fn parameter(self, number: u32) -> Self {
        self.with(Instruction::Parameter, number)
    }

    instructions! {
        /// Pushes the top again.
        duplicate => Duplicate,
        /// a + b; in all binary instructions b is the top and a the value below.
        add => Add,
        /// a - b.
        subtract => Subtract,
        /// a * b.
        multiply => Multiply,
        /// a / b.
        divide => Divide,
        /// The larger one.
        maximum => Maximum,
        /// The smaller one.
        minimum => Minimum,
        /// 1 if a > b, else 0.
        greater => Greater,
        /// -a.
        negate => Negate,
        /// |a|.
        absolute => Absolute,
        /// The square root.
        square_root => SquareRoot,
        /// e to the power of a.
        exponential => Exponential,
        /// The natural logarithm.
        logarithm => Logarithm,
        /// Drops the top.
        drop_top => Drop,
    }

    /// x / (1 + |x|), of the top.
    #[must_use]
    pub fn softsign(self) -> Self {
        self.duplicate().absolute().constant(1.0).add().divide()
    }

    /// The top times the derivative of [`softsign`](Self::softsign) where its value is that of the
    /// operand.
    #[must_use]
    pub fn times_softsign_slope(self, operand: u32) -> Self {
        let rest = self.constant(1.0).load(operand).absolute().subtract();
        rest.duplicate().multiply().multiply()
    }

    /// Gradient descent: operand 0 -= parameter * operand 1.
    pub fn descend(rate: u32) -> Self {
        Self::new().load(0).parameter(rate).load(1).multiply().subtract().store(0)
    }

    /// Descent with momentum: operand 2 = decay * operand 2 + operand 1, operand 0 -= parameter *
    /// operand 2.
    pub fn momentum(rate: u32, decay: f32) -> Self {
        let momentum = Self::new().constant(decay).load(2).multiply().load(1).add().store(2);
        momentum.drop_top().load(0).parameter(rate).load(2).multiply().subtract().store(0)
    }

    /// Adam: operands 0 parameters, 1 gradients, 2 and 3 the moments. The parameters of the
    /// iteration are, from `first` on: rate, 1 / (1 - decay of the first moment ^ step), and the
    /// same of the second.
    pub fn adam(first: u32, decays: [f32; 2], epsilon: f32) -> Self {
        let [mean, square] = decays;
        let mean = Self::new().constant(mean).load(2).multiply().constant(1.0 - mean);
        let mean = mean.load(1).multiply().add().store(2).drop_top();
        let moments = mean.constant(square).load(3).multiply().constant(1.0 - square);
        let moments = moments.load(1).multiply().load(1).multiply().add().store(3).drop_top();
        let above = moments.load(0).parameter(first).load(2).multiply();
        let above = above.parameter(first + 1).multiply();
        let root = above.load(3).parameter(first + 2).multiply().square_root();
        root.constant(epsilon).add().divide().subtract().store(0)
    }

    /// Operands that it loads.
    pub fn loads(&self) -> impl Iterator<Item = usize> {
        self.operands(Instruction::Load)
    }

    /// Operands that it writes.
    pub fn stores(&self) -> impl Iterator<Item = usize> {
        self.operands(Instruction::Store)
    }

    fn operands(&self, wanted: Instruction) -> impl Iterator<Item = usize> {
        let is_wanted = move |(instruction, number): &(Instruction, u32)| {
            (*instruction == wanted).then_some(*number as usize)
        };
        self.words.iter().filter_map(is_wanted)
    }

    /// How many instructions there are.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Is there no instruction?
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// As the kernel reads them, for operands of these types.
    pub(super) fn encoded(&self, types: [TaskElement; TASK_OPERANDS]) -> impl Iterator<Item = u64> {
        self.words.iter().map(move |&(instruction, number)| {
            // Numbers of operands have been checked; those of other instructions mean other things.
            let element = types.get(number as usize).copied().unwrap_or_default();
            let instruction = match (instruction, element) {
                (Instruction::Load, TaskElement::F16) => Instruction::LoadF16,
                (Instruction::Load, TaskElement::BF16) => Instruction::LoadBF16,
                (Instruction::Store, TaskElement::F16) => Instruction::StoreF16,
                (Instruction::Store, TaskElement::BF16) => Instruction::StoreBF16,
                (instruction, _) => instruction,
            };
            u64::from(number) << 32 | instruction as u64
        })
    }

    /// Checks operands, parameters and the depth of the stack, which begins with `depth` values
    /// and must keep one of them at least where there is one.
    pub(super) fn check(&self, mut depth: usize) -> Result<(), ProgramError> {
        let kept = depth;
        let fault = |what: &'static str, at: usize| ProgramError::Expression { what, at };
        for (at, &(instruction, number)) in self.words.iter().enumerate() {
            let (takes, gives) = match instruction {
                Instruction::Load if number as usize >= TASK_OPERANDS => {
                    return Err(fault("loads an operand that no task has", at));
                }
                Instruction::Store if number as usize >= TASK_OPERANDS => {
                    return Err(fault("writes an operand that no task has", at));
                }
                Instruction::Parameter if number as usize >= PARAMETERS => {
                    return Err(fault("names a parameter that no iteration has", at));
                }
                Instruction::Load | Instruction::Constant | Instruction::Parameter => (0, 1),
                Instruction::Duplicate => (1, 2),
                Instruction::Drop => (1, 0),
                Instruction::Add
                | Instruction::Subtract
                | Instruction::Multiply
                | Instruction::Divide
                | Instruction::Maximum
                | Instruction::Minimum
                | Instruction::Greater => (2, 1),
                _ => (1, 1),
            };
            if depth < takes {
                return Err(fault("takes more values than there are", at));
            }
            depth = depth - takes + gives;
            if depth > EXPRESSION_DEPTH {
                return Err(fault("keeps more values than the stack holds", at));
            }
        }
        match depth < kept.min(1) {
            true => Err(fault("leaves no value", self.words.len())),
            false => Ok(()),
        }
    }
}
