//! Fused steps of optimizers.

/// One step of an optimizer on one parameter.
///
/// Operands: the tensors `param, grad, state..`, then `step?`, `grad_scale?` and `found_inf?` (one `f32` each), then the
/// numbers, 0-dimensional `f64`. Results: the tensors, in the operands' order and types, after the step. Half floats are
/// computed in `f32`. A gradient scale divides the gradient; where `found_inf` is 1 nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptimizerOp {
    /// State: first and second moment, and the largest second moment with `amsgrad`. `step` counts this step. Numbers:
    /// learning rate, beta 1, beta 2, weight decay, epsilon.
    Adam {
        /// Weight decay shrinks the parameter itself.
        adamw: bool,
        /// The denominator takes the largest second moment so far.
        amsgrad: bool,
        /// Ascends.
        maximize: bool,
        /// The operand is present.
        grad_scale: bool,
        /// The operand is present.
        found_inf: bool,
    },
    /// State: the momentum buffer with `momentum`. No `step`. Numbers: weight decay, momentum, learning rate, dampening.
    Sgd {
        /// There is a momentum buffer.
        momentum: bool,
        /// The momentum buffer becomes the gradient.
        first_step: bool,
        /// Looks ahead along the momentum.
        nesterov: bool,
        /// Ascends.
        maximize: bool,
        /// The operand is present.
        grad_scale: bool,
        /// The operand is present.
        found_inf: bool,
    },
    /// State: the sum of squares. `step` counts this step. Numbers: learning rate, its decay, weight decay, epsilon.
    Adagrad {
        /// Ascends.
        maximize: bool,
        /// The operand is present.
        grad_scale: bool,
        /// The operand is present.
        found_inf: bool,
    },
}

impl OptimizerOp {
    /// Tensors that are operands and results: parameter, gradient and state.
    pub const fn tensors(self) -> usize {
        match self {
            OptimizerOp::Adam { amsgrad, .. } => 4 + amsgrad as usize,
            OptimizerOp::Sgd { momentum, .. } => 2 + momentum as usize,
            OptimizerOp::Adagrad { .. } => 3,
        }
    }

    /// Numbers among the operands.
    pub const fn numbers(self) -> usize {
        match self {
            OptimizerOp::Adam { .. } => 5,
            _ => 4,
        }
    }

    /// True if the gradient is among what changes.
    pub const fn scales_gradient(self) -> bool {
        match self {
            OptimizerOp::Adam { grad_scale, .. }
            | OptimizerOp::Sgd { grad_scale, .. }
            | OptimizerOp::Adagrad { grad_scale, .. } => grad_scale,
        }
    }
}
