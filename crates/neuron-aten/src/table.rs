//! The table itself.

use crate::call::Call;
use crate::lower::{Lower, LowerError, Lowered, OutputType};
use crate::ops;
use neuron_ir::{DType, Graph};
use std::sync::LazyLock;

/// One ATen overload and how it is lowered.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Qualified name, `aten::add.Tensor`.
    pub name: &'static str,
    /// Builds the graph.
    pub lower: fn(&mut Lower) -> Lowered,
}

static TABLE: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    ops::FAMILIES
        .iter()
        .flat_map(|family| family.iter())
        .flat_map(|(names, lower)| names.iter().map(|name| Entry { name, lower: *lower }))
        .collect()
});

/// The operators that take types without arithmetic.
const STORAGE: &[&str] = &["neuron::copy", "aten::zero_", "aten::fill_.Scalar"];

/// Every operator, in a fixed order: an operator's number is its position.
pub fn table() -> &'static [Entry] {
    &TABLE
}

/// Lowers a call to a graph; also how many values of the random generator a launch consumes.
///
/// # Errors
/// [`LowerError::Unsupported`] where the operator has to run on the CPU.
pub fn lower(call: &Call, outputs: &[Option<OutputType>]) -> Result<(Graph, u64), LowerError> {
    let name = TABLE[call.op].name;
    let stored = |dtype: DType| dtype.is_float8();
    let float8 = call.args.iter().any(|a| a.has_dtype(&stored)) || outputs.iter().flatten().any(|o| stored(o.ty.dtype));
    if float8 && !STORAGE.contains(&name) {
        return Err(LowerError::unsupported("float8 is a storage type, without arithmetic"));
    }
    let mut l = Lower::new(call, outputs);
    (TABLE[call.op].lower)(&mut l)?;
    let (graph, random) = l.finish();
    // Arguments that no meta kernel has checked, such as values that do not broadcast to what is indexed, show here: the
    // CPU's kernel then raises PyTorch's error.
    neuron_ir::verify(&graph).map_err(|e| LowerError::unsupported(e.to_string()))?;
    Ok((graph, random))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique() {
        let mut seen = HashSet::new();
        for e in table() {
            assert!(seen.insert(e.name), "{} is listed twice", e.name);
        }
    }
}
