//! Every environment variable this software reads, in one table.
//!
//! Names and meanings are AWS's where AWS has one. A value that makes no sense is an error that names the variable,
//! what it has and what it may have; it is raised when the runtime starts, never at import.

use crate::error::Error;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What a variable may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `0`, `1`, `true`, `false`, `yes`, `no`, `on`, `off`.
    Flag,
    /// A whole number in a range.
    Integer {
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: i64,
    },
    /// Core numbers, `0,2-3`.
    Cores,
    /// One of some words.
    Choice(&'static [&'static str]),
    /// `key=value` pairs of whole numbers, separated by commas.
    Settings(&'static [&'static str]),
    /// A path; anything goes.
    Path,
    /// Any text.
    Text,
}

/// One variable.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it may hold.
    pub kind: Kind,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

const fn variable(name: &'static str, kind: Kind, default: &'static str, meaning: &'static str) -> Variable {
    Variable { name, kind, default, meaning }
}

/// Launches wait for their completion.
pub const LAUNCH_BLOCKING: &str = "NEURON_LAUNCH_BLOCKING";
/// Whether operators that pile up are fused.
pub const EAGER_FUSION: &str = "NEURON_EAGER_FUSION";
/// How many logical cores appear.
pub const NUM_CORES: &str = "NEURON_RT_NUM_CORES";
/// Which logical cores appear.
pub const VISIBLE_CORES: &str = "NEURON_RT_VISIBLE_CORES";
/// Physical cores per logical core.
pub const LOGICAL_NC_CONFIG: &str = "NEURON_LOGICAL_NC_CONFIG";
/// Target profile.
pub const PLATFORM_TARGET: &str = "NEURON_PLATFORM_TARGET_OVERRIDE";
/// Python stacks in errors.
pub const ENABLE_STACK_TRACE: &str = "TORCH_NEURONX_ENABLE_STACK_TRACE";
/// Fallback only where no implementation exists.
pub const FALLBACK_ONLY_FOR_UNIMPLEMENTED: &str = "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS";
/// Whether operators may fall back to the CPU.
pub const FALLBACK_ENABLED: &str = "NEURON_FALLBACK_ENABLED";
/// Verbosity.
pub const LOG_LEVEL: &str = "TORCH_NEURONX_LOG_LEVEL";
/// Allocator tuning.
pub const SEGMENT_ALLOCATOR_CONFIG: &str = "TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG";
/// Makes device memory unreadable for the host.
pub const PROTECT_DEVICE_MEMORY: &str = "NEURON_PROTECT_DEVICE_MEMORY";

const LAST_CORE: i64 = crate::stream::MAX_DEVICES as i64 - 1;

/// The table.
pub const VARIABLES: &[Variable] = &[
    variable(
        LAUNCH_BLOCKING,
        Kind::Flag,
        "0",
        "Every operator runs to completion before its call returns, and raises its own errors there.",
    ),
    variable(
        EAGER_FUSION,
        Kind::Flag,
        "1",
        "Operators that pile up behind a busy device are fused; results are the same, to the bit, with 0.",
    ),
    variable(
        NUM_CORES,
        Kind::Integer { min: 0, max: LAST_CORE + 1 },
        "0",
        "How many logical NeuronCores appear as devices; 0 is all of a chip's, 4 at the default \
         `NEURON_LOGICAL_NC_CONFIG`. `NEURON_RT_VISIBLE_CORES` decides if both are set.",
    ),
    variable(
        VISIBLE_CORES,
        Kind::Cores,
        "all",
        "Which logical NeuronCores appear, as a list of numbers and ranges such as `0,2-3`; they become devices 0, 1, ...",
    ),
    variable(
        LOGICAL_NC_CONFIG,
        Kind::Integer { min: 1, max: 2 },
        "2",
        "Physical NeuronCores per logical one. With 1, twice as many devices appear with half the memory each.",
    ),
    variable(
        PLATFORM_TARGET,
        Kind::Choice(&["trn2", "trn3", "gen3", "gen4"]),
        "trn2",
        "Target profile of the device: its name, memory and data types.",
    ),
    variable(ENABLE_STACK_TRACE, Kind::Flag, "0", "Errors of operators say where in Python the operator was issued."),
    variable(
        FALLBACK_ONLY_FOR_UNIMPLEMENTED,
        Kind::Flag,
        "0",
        "Only operators without any implementation run on the CPU; one whose implementation refuses its arguments raises.",
    ),
    variable(FALLBACK_ENABLED, Kind::Flag, "1", "With 0 no operator runs on the CPU: what would fall back raises."),
    variable(
        LOG_LEVEL,
        Kind::Integer { min: 0, max: 3 },
        "1",
        "What is logged to the standard error stream: 0 errors, 1 warnings, 2 information, 3 debugging.",
    ),
    variable(
        SEGMENT_ALLOCATOR_CONFIG,
        Kind::Settings(&["kMaxSplitSizeBytes", "kMaxNonSplitRoundingBytes"]),
        "",
        "Device memory allocator: free blocks larger than `kMaxSplitSizeBytes` are not split, and serve a request only \
         if they exceed it by at most `kMaxNonSplitRoundingBytes`.",
    ),
    variable(
        PROTECT_DEVICE_MEMORY,
        Kind::Flag,
        "0",
        "Debugging: host code that dereferences a device address faults, as it would with a real device.",
    ),
];

/// A value that passed its variable's check.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Flag(bool),
    Integer(i64),
    Cores(Vec<u32>),
    Settings(BTreeMap<&'static str, u64>),
    Text(String),
}

impl Kind {
    fn expected(self) -> String {
        match self {
            Kind::Flag => "0 or 1".to_string(),
            Kind::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Kind::Cores => format!("core numbers and ranges from 0 to {LAST_CORE}, such as 0,2-3, each core once"),
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Settings(keys) => format!("key=bytes pairs separated by commas, with keys {}", keys.join(", ")),
            Kind::Path => "a path".to_string(),
            Kind::Text => "text".to_string(),
        }
    }

    fn parse(self, text: &str) -> Option<Value> {
        let text = text.trim();
        match self {
            Kind::Flag => match text.to_ascii_lowercase().as_str() {
                "1" | "true" | "yes" | "on" => Some(Value::Flag(true)),
                "" | "0" | "false" | "no" | "off" => Some(Value::Flag(false)),
                _ => None,
            },
            Kind::Integer { min, max } => text.parse().ok().filter(|v| (min..=max).contains(v)).map(Value::Integer),
            Kind::Cores => parse_cores(text).map(Value::Cores),
            Kind::Choice(words) => words.contains(&text).then(|| Value::Text(text.to_string())),
            Kind::Settings(keys) => parse_settings(keys, text).map(Value::Settings),
            Kind::Path | Kind::Text => Some(Value::Text(text.to_string())),
        }
    }
}

fn parse_cores(text: &str) -> Option<Vec<u32>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        if from > to || i64::from(to) > LAST_CORE {
            return None;
        }
        cores.extend(from..=to);
    }
    let mut unique = cores.clone();
    unique.sort_unstable();
    unique.dedup();
    (unique.len() == cores.len()).then_some(cores)
}

fn parse_settings(keys: &[&'static str], text: &str) -> Option<BTreeMap<&'static str, u64>> {
    let mut settings = BTreeMap::new();
    for part in text.split(',').filter(|p| !p.trim().is_empty()) {
        let (key, value) = part.split_once('=')?;
        let key = keys.iter().find(|k| **k == key.trim())?;
        settings.insert(*key, value.trim().parse().ok()?);
    }
    Some(settings)
}

fn find(name: &str) -> &'static Variable {
    VARIABLES.iter().find(|v| v.name == name).expect("every variable that is read is in the table")
}

/// The variable's value or, if it is not set, its default's.
fn read(name: &str) -> Result<Option<Value>, Error> {
    let v = find(name);
    let Some(text) = std::env::var_os(name) else {
        return Ok(v.kind.parse(v.default));
    };
    let text = text.to_string_lossy();
    match v.kind.parse(&text) {
        Some(value) => Ok(Some(value)),
        None => Err(Error::Environment { variable: v.name, got: text.into_owned(), expected: v.kind.expected() }),
    }
}

/// The value of a flag.
///
/// # Errors
/// [`Error::Environment`].
pub fn flag(name: &str) -> Result<bool, Error> {
    Ok(matches!(read(name)?, Some(Value::Flag(true))))
}

/// The value of a whole number.
///
/// # Errors
/// [`Error::Environment`].
pub fn integer(name: &str) -> Result<i64, Error> {
    match read(name)? {
        Some(Value::Integer(v)) => Ok(v),
        _ => Ok(0),
    }
}

/// The value of a choice, a path or a text.
///
/// # Errors
/// [`Error::Environment`].
pub fn text(name: &str) -> Result<String, Error> {
    match read(name)? {
        Some(Value::Text(v)) => Ok(v),
        _ => Ok(String::new()),
    }
}

/// The value of a list of cores; none if it is not set.
///
/// # Errors
/// [`Error::Environment`].
pub fn cores(name: &str) -> Result<Option<Vec<u32>>, Error> {
    match read(name)? {
        Some(Value::Cores(v)) => Ok(Some(v)),
        _ => Ok(None),
    }
}

/// The value of a setting among `key=value` pairs.
///
/// # Errors
/// [`Error::Environment`].
pub fn setting(name: &str, key: &str) -> Result<Option<u64>, Error> {
    match read(name)? {
        Some(Value::Settings(v)) => Ok(v.get(key).copied()),
        _ => Ok(None),
    }
}

/// Checks every variable of the table.
///
/// # Errors
/// [`Error::Environment`] for the first that makes no sense.
pub fn check() -> Result<(), Error> {
    VARIABLES.iter().try_for_each(|v| read(v.name).map(drop))
}

/// The table as a page of the documentation.
pub fn documentation() -> String {
    let mut page = String::from(
        "# Environment variables\n\n\
         Read when the device is first used. A value that makes no sense raises an error that names the variable, what \
         it has\nand what it may have. This page is generated from `crates/neuron-runtime/src/env.rs`.\n\n\
         | name | values | default | meaning |\n|---|---|---|---|\n",
    );
    for v in VARIABLES {
        let default = if v.default.is_empty() { "unset" } else { v.default };
        let _ = writeln!(page, "| `{}` | {} | {default} | {} |", v.name, v.kind.expected(), v.meaning);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_lists_and_ranges() {
        assert_eq!(parse_cores("0,2-3"), Some(vec![0, 2, 3]));
        assert_eq!(parse_cores("5"), Some(vec![5]));
        for bad in ["", "a", "3-1", "0,0", "1-", "-1", "128", "0-4294967295"] {
            assert_eq!(parse_cores(bad), None, "{bad}");
        }
    }

    #[test]
    fn settings_have_known_keys() {
        let keys = &["a", "b"];
        assert_eq!(parse_settings(keys, "a=1, b=2,").map(|s| s.len()), Some(2));
        assert_eq!(parse_settings(keys, ""), Some(BTreeMap::new()));
        assert_eq!(parse_settings(keys, "c=1"), None);
        assert_eq!(parse_settings(keys, "a=x"), None);
    }

    #[test]
    fn a_bad_value_says_what_was_expected() {
        let kind = find(NUM_CORES).kind;
        assert_eq!(kind.parse("-1"), None);
        let e = Error::Environment { variable: NUM_CORES, got: "-1".into(), expected: kind.expected() };
        assert_eq!(
            e.to_string(),
            "Invalid value for environment variable NEURON_RT_NUM_CORES: got \"-1\", expected a whole number from 0 to 128"
        );
    }

    #[test]
    fn defaults_parse_and_names_are_unique() {
        for v in VARIABLES {
            let shown_only = v.kind == Kind::Cores;
            assert!(shown_only || v.kind.parse(v.default).is_some(), "{}", v.name);
            assert_eq!(VARIABLES.iter().filter(|w| w.name == v.name).count(), 1);
        }
    }

    #[test]
    fn the_documentation_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/environment.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, documentation()).expect("the page can be written");
        }
        let page = std::fs::read_to_string(path).expect("the page exists");
        assert!(page == documentation(), "docs/environment.md is out of date: run the tests with UPDATE_DOCS=1");
    }
}
