//! The lowerings, by family.

use crate::lower::{Lower, Lowered};

mod activation;
mod attention;
mod batch_norm;
mod binary;
mod class_loss;
mod convolution;
mod factory;
mod folding;
mod foreach;
mod indexing;
mod loss;
mod matmul;
mod movement;
mod norm;
mod optimizer;
mod pooling;
mod random;
mod recurrent;
mod reduction;
mod resampling;
mod scatter;
mod searching;
mod selection;
mod shape;
mod special;
mod ternary;
mod unary;
mod vector_norm;

/// Overloads that share a lowering, and the lowering.
pub(crate) type Row = (&'static [&'static str], fn(&mut Lower) -> Lowered);

/// Every family of operators.
pub(crate) const FAMILIES: &[&[Row]] = &[
    unary::ROWS,
    binary::ROWS,
    ternary::ROWS,
    activation::ROWS,
    reduction::ROWS,
    matmul::ROWS,
    norm::ROWS,
    attention::ROWS,
    indexing::ROWS,
    scatter::ROWS,
    movement::ROWS,
    selection::ROWS,
    searching::ROWS,
    vector_norm::ROWS,
    shape::ROWS,
    factory::ROWS,
    random::ROWS,
    recurrent::ROWS,
    loss::ROWS,
    class_loss::ROWS,
    convolution::ROWS,
    batch_norm::ROWS,
    foreach::ROWS,
    pooling::ROWS,
    resampling::ROWS,
    folding::ROWS,
    special::ROWS,
    optimizer::ROWS,
];

/// The functional, in-place and `out=` overloads of an operator without overload name.
macro_rules! overloads {
    ($name:literal) => {
        &[concat!("aten::", $name), concat!("aten::", $name, "_"), concat!("aten::", $name, ".out")]
    };
    ($name:literal, $overload:literal) => {
        &[
            concat!("aten::", $name, ".", $overload),
            concat!("aten::", $name, "_.", $overload),
            concat!("aten::", $name, ".", $overload, "_out"),
        ]
    };
}
pub(crate) use overloads;
