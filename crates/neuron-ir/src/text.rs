//! The text form of a graph, for golden tests and for people.

use crate::{Destination, Graph, Op, Scalar};
use std::fmt;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.nodes {
            for i in 0..node.results.len() as u32 {
                write!(f, "{}%{}", if i > 0 { ", " } else { "" }, node.first.0 + i)?;
            }
            write!(f, " = {}", node.op.name())?;
            for (i, v) in node.operands.iter().enumerate() {
                write!(f, "{} %{}", if i > 0 { "," } else { "" }, v.0)?;
            }
            write_attributes(f, &node.op)?;
            f.write_str(" :")?;
            for (i, r) in node.results.iter().enumerate() {
                if let Op::Param { index } = node.op {
                    write!(f, " {}", self.params[index])?;
                } else {
                    write!(f, "{} {r}", if i > 0 { "," } else { "" })?;
                }
            }
            writeln!(f)?;
        }
        for o in &self.outputs {
            let (kind, i) = match o.to {
                Destination::Fresh(i) => ("fresh", i),
                Destination::Param(i) => ("param", i),
            };
            writeln!(f, "store %{} -> {kind} {i} : {}", o.value.0, o.layout)?;
        }
        Ok(())
    }
}

fn write_attributes(f: &mut fmt::Formatter<'_>, op: &Op) -> fmt::Result {
    match op {
        Op::Param { index } | Op::ScalarParam { index } => write!(f, " {index}"),
        Op::Constant(Scalar::F64(v)) => write!(f, " {v:?}"),
        Op::Constant(Scalar::I64(v)) => write!(f, " {v}"),
        Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Convert | Op::Broadcast | Op::Reshape | Op::Dot => Ok(()),
        // The derived form names the attributes: `Softmax { dim: 1, log: false }` gives `{ dim: 1, log: false }`.
        other => {
            let text = format!("{other:?}");
            match text.find([' ', '(']) {
                Some(i) => write!(f, " {}", text[i..].trim()),
                None => Ok(()),
            }
        }
    }
}
