//! The page of supported operators, written from the tables.

use crate::{DECLARED, table};
use std::collections::BTreeSet;

const INTRODUCTION: &str = "\
# Operators

Every ATen operator works on the device. Most run natively: they are lowered to Neuron IR and executed by this project's
kernels. The others run on PyTorch's CPU kernels over the device's memory; `torch_neuronx.get_fallback_reasons()` lists
which did, why and how often, each warns once, and `NEURON_FALLBACK_ENABLED=0` makes it an error.
This page is generated from the tables in `crates/neuron-aten`.

## On the CPU by decision

Tensors of complex numbers and sparse tensors live on the device, but arithmetic on them is the CPU's. So are these
operators, with all their overloads:

";

/// Names as they are listed: without namespace, overload and the mark of in-place operators.
fn plain(name: &str) -> &str {
    let name = name.split("::").nth(1).unwrap_or(name);
    let name = name.split('.').next().unwrap_or(name);
    if name.ends_with("__") { name } else { name.strip_suffix('_').unwrap_or(name) }
}

/// A list wrapped into lines.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    let mut width = 0;
    for (i, name) in names.enumerate() {
        let piece = format!("{}`{name}`", if i == 0 { "" } else { ", " });
        if width + piece.len() > 120 {
            text += ",\n";
            text += &piece[2..];
            width = piece.len() - 2;
        } else {
            width += piece.len();
            text += &piece;
        }
    }
    text + "\n"
}

/// The whole page.
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    for d in DECLARED {
        page += &format!("**{}** ({}):\n{}\n", d.family, d.reason, listed(d.names.iter().map(|n| plain(n))));
    }
    let native: BTreeSet<&str> =
        table().iter().filter(|e| e.name.starts_with("aten::")).map(|e| plain(e.name)).collect();
    page += "## Native\n\n\
             Of some operators, single cases still fall back (an integer type, an exotic argument): the reason says so.\n\n";
    page += &listed(native.into_iter());
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_what_distinguishes_overloads() {
        assert_eq!(plain("aten::add_.Tensor"), "add");
        assert_eq!(plain("aten::_softmax"), "_softmax");
        assert_eq!(plain("aten::__and__.Scalar"), "__and__");
    }

    #[test]
    fn lists_are_wrapped() {
        let names: Vec<String> = (0..40).map(|i| format!("name{i:02}")).collect();
        let text = listed(names.iter().map(String::as_str));
        assert!(text.lines().all(|l| l.len() <= 121), "{text}");
        assert_eq!(text.matches("name").count(), 40);
        assert!(!text.contains(",,"));
    }

    #[test]
    fn the_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operators.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, page()).expect("the page can be written");
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(written == page(), "docs/operators.md is out of date: run the tests with UPDATE_DOCS=1");
    }
}
