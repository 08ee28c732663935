//! Operators that move elements.

use super::text::Text;
use super::{Call, Written};
use crate::Op;

pub(super) fn write(t: &mut Text, c: &Call) -> Written {
    let to = &c.result().sizes;
    let a = &c.args[0];
    Ok(vec![match &c.node.op {
        Op::Broadcast => t.broadcast(a, to),
        Op::Reshape => t.reshape(a, to),
        Op::Transpose { permutation } => t.transpose(a, permutation),
        Op::Slice { dim, start, step } => t.slice(a, *dim, *start, to[*dim], *step),
        Op::Concat { dim } => {
            let parts: Vec<_> = c.args.iter().collect();
            t.concat(&parts, *dim)
        }
        other => unreachable!("{} does not move", other.name()),
    }])
}
